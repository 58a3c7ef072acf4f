package membership

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Failing is the failure of an action, nil if it is not known to fail.
func Failing(s *quorum.Snapshot, a Action) *quorum.Failure {
	for i := range s.Failures {
		if f := &s.Failures[i]; f.Reason == string(ReasonActionFails) && f.What == a.Describe() {
			return f
		}
	}
	return nil
}

// allFailing reports whether all of a step's actions have failed for some time, so that the next step need not wait for them: one Machine
// that cannot be changed holds up no other. A failing change of etcd's members or final release does hold up the next step,
// except an AddLearner that etcd refuses.
func (p *planner) allFailing(actions []Action) bool {
	for _, a := range actions {
		f := Failing(p.s, a)
		if f == nil || p.s.Now.Sub(f.Since) < quorum.FailsAfter || (a.Kind().Membership() || a.Final()) && !f.Refused {
			return false
		}
	}
	return true
}

// noteFailures notes what does not get done.
func (p *planner) noteFailures() {
	for i := range p.s.Failures {
		f := &p.s.Failures[i]
		switch {
		case p.s.Now.Sub(f.Since) < quorum.FailsAfter || len(p.s.Ring.Alarms) > 0 || f.Refused: // alarms and unhealthy voters say why
		case f.Reason == string(ReasonMembershipNotPublished):
			p.note(ReasonMembershipNotPublished, "", "etcd's membership is not published, by which hosts start a new member and clients find etcd: %s", f)
		default:
			p.note(Reason(f.Reason), f.Machine, "%s", f)
		}
	}
}

// AlarmNotes say which alarms stand, and what disarms them.
func AlarmNotes(r *quorum.Ring) (notes []Note) {
	var full, corrupt []string
	for _, a := range r.Alarms {
		who := "an unknown member"
		if m := r.Member(a.Member); m != nil {
			who = m.String()
		} else if a.Member != 0 {
			who = fmt.Sprintf("member %x, which is gone", a.Member)
		}
		if a.Kind == quorum.AlarmCorrupt {
			corrupt = append(corrupt, who)
		} else {
			full = append(full, who)
		}
	}
	if full != nil {
		notes = append(notes, Note{ReasonEtcdNoSpace, "", fmt.Sprintf("etcd has run out of space (alarm %s of %s) and refuses every write, so nothing is changed. Once there is space again, by etcdctl compaction and etcdctl defrag --cluster, "+
			"or by a larger --quota-backend-bytes: etcdctl alarm disarm (docs/alerts.md)", quorum.AlarmNoSpace, strings.Join(full, ", "))})
	}
	if corrupt != nil {
		notes = append(notes, Note{ReasonEtcdCorrupt, "", fmt.Sprintf("the data of an etcd member differ from the others' (alarm %s of %s), and etcd refuses every write, so nothing is changed; that member counts as unhealthy. "+
			"Compare: etcdctl endpoint hashkv --cluster. Mend it, or restore etcd from a backup (docs/alerts.md), then: etcdctl alarm disarm", quorum.AlarmCorrupt, strings.Join(corrupt, ", "))})
	}
	return notes
}
