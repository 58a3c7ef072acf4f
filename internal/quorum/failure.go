package quorum

import (
	"fmt"
	"strings"
	"time"
)

// Failure is something that is tried again and again, and does not get done.
type Failure struct {
	Reason  string // of the Note that tells of it: ActionFails or MembershipNotPublished
	What    string // an Action as Describe has it, or the object that is not published
	Machine string // "" if it is about no Machine in particular
	Since   time.Time
	Why     string
}

// failsFor is for how long something must fail to be told as a failure: an election of etcd's is shorter.
const failsFor = 10 * time.Second

// String is what does not get done, since when, and why not.
func (f *Failure) String() string {
	return fmt.Sprintf("%s has failed since %s: %s", f.What, f.Since.UTC().Format(time.RFC3339), f.Why)
}

// Failing is the failure of an action, nil if it is not known to fail.
func (s *Snapshot) Failing(a Action) *Failure {
	for i := range s.Failures {
		if f := &s.Failures[i]; f.Reason == string(ActionFails) && f.What == a.Describe() {
			return f
		}
	}
	return nil
}

// stuck says whether all of a step's actions have failed for some time, so that the next step need not wait for them: one Machine
// that cannot be changed holds up no other. Of changes of etcd's members there is one in a round, so these are waited for.
func (p *planner) stuck(actions []Action) bool {
	for _, a := range actions {
		if f := p.s.Failing(a); a.Kind.Membership() || a.Final || f == nil || p.s.Now.Sub(f.Since) < failsFor {
			return false
		}
	}
	return true
}

// failures notes what does not get done.
func (p *planner) failures() {
	for i := range p.s.Failures {
		f := &p.s.Failures[i]
		switch {
		case p.s.Now.Sub(f.Since) < failsFor || len(p.s.Ring.Alarms) > 0: // these say why
		case f.Reason == string(MembershipNotPublished):
			p.note(MembershipNotPublished, "", "etcd's membership is not published, by which hosts start a new member and clients find etcd: %s", f)
		default:
			p.note(ActionFails, f.Machine, "%s", f)
		}
	}
}

// AlarmNotes say which alarms stand, and what disarms them.
func (r *Ring) AlarmNotes() (notes []Note) {
	var full, corrupt []string
	for _, a := range r.Alarms {
		who := "an unknown member"
		if m := r.Member(a.Member); m != nil {
			who = m.String()
		} else if a.Member != 0 {
			who = fmt.Sprintf("member %x, which is gone", a.Member)
		}
		if a.Kind == Corrupt {
			corrupt = append(corrupt, who)
		} else {
			full = append(full, who)
		}
	}
	if full != nil {
		notes = append(notes, Note{EtcdNoSpace, "", fmt.Sprintf("etcd has run out of space (alarm %s of %s) and refuses every write, so nothing is changed. Once there is space again, by etcdctl defrag --cluster, "+
			"or by a larger --quota-backend-bytes: etcdctl alarm disarm (docs/alerts.md)", NoSpace, strings.Join(full, ", "))})
	}
	if corrupt != nil {
		notes = append(notes, Note{EtcdCorrupt, "", fmt.Sprintf("the data of an etcd member differ from the others' (alarm %s of %s), and etcd refuses every write, so nothing is changed; that member counts as unhealthy. "+
			"Compare: etcdctl endpoint hashkv --cluster. Mend it, or restore etcd from a backup (docs/alerts.md), then: etcdctl alarm disarm", Corrupt, strings.Join(corrupt, ", "))})
	}
	return notes
}
