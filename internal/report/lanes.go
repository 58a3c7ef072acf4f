package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// State is how a Machine's etcd member was.
type State string

// The states.
const (
	StateLearner   State = "learner"
	StateVoter     State = "voter"
	StateUnhealthy State = "unhealthy voter"
)

// Span is a time in one State, or, where the State is "", in which the Machine was being deleted.
type Span struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	State State     `json:"state,omitempty"`
}

// Lane is how one Machine fared. What was seen lasts until something else was.
type Lane struct {
	Machine  string `json:"machine"` // or the member, where it was on none
	Member   []Span `json:"member,omitempty"`
	Deleting []Span `json:"deleting,omitempty"`
}

// Replacement is a Machine that was deleted, and the one whose member votes, or is about to, in its place: "" where there is none, or not
// known. Times are zero where that was not seen.
type Replacement struct {
	Machine string    `json:"machine"`
	User    string    `json:"user,omitempty"` // who deleted it
	By      string    `json:"by,omitempty"`
	Deleted time.Time `json:"deleted"`
	Learner time.Time `json:"learner,omitzero"` // the new one's member joined
	Votes   time.Time `json:"votes,omitzero"`
	Left    time.Time `json:"left,omitzero"` // the old one's member left etcd
	Gone    time.Time `json:"gone,omitzero"` // the old Machine
}

// sight is one look at the control plane.
type sight struct {
	at       time.Time
	desired  int // voters wanted, 0 if that was not known
	members  []audit.Member
	deleting []string
}

// host is the Machine that a member is on, or the member where that is not known.
func host(m *audit.Member) string { return cmp.Or(m.Machine, m.Name, "member "+m.ID) }

func state(m *audit.Member) State {
	switch {
	case m.Learner:
		return StateLearner
	case !m.Healthy:
		return StateUnhealthy
	}
	return StateVoter
}

// sights are the observations of etcd in the records, in order.
func sights(entries []audit.Entry) (out []sight) {
	for i := range entries {
		if e := entries[i].Evidence(); e != nil && len(e.Members) > 0 {
			slices.SortStableFunc(e.Members, func(a, b audit.Member) int { return cmp.Compare(host(&a), host(&b)) })
			out = append(out, sight{e.At, e.Desired, e.Members, e.Deleting})
		}
	}
	slices.SortStableFunc(out, func(a, b sight) int { return a.at.Compare(b.at) })
	return out
}

// lanes are those of all Machines that were seen, in the order in which they appeared.
func lanes(all []sight, until time.Time) []Lane {
	out := []Lane{}
	lane := func(name string) *Lane {
		k := slices.IndexFunc(out, func(l Lane) bool { return l.Machine == name })
		if k < 0 {
			k, out = len(out), append(out, Lane{Machine: name})
		}
		return &out[k]
	}
	for k, s := range all {
		end := until
		if k+1 < len(all) {
			end = all[k+1].at
		}
		for i := range s.members {
			if i > 0 && host(&s.members[i]) == host(&s.members[i-1]) {
				continue // a lane has one member at a time
			}
			l := lane(host(&s.members[i]))
			l.Member = lasting(l.Member, Span{s.at, end, state(&s.members[i])})
		}
		for _, name := range s.deleting {
			l := lane(name)
			l.Deleting = lasting(l.Deleting, Span{From: s.at, To: end})
		}
	}
	return out
}

// lasting adds a span to those before, as a part of the last one if that goes on.
func lasting(spans []Span, next Span) []Span {
	if n := len(spans); n > 0 && spans[n-1].State == next.State && !spans[n-1].To.Before(next.From) {
		spans[n-1].To = next.To
		return spans
	}
	return append(spans, next)
}

// stay is the time of one member in etcd. A Machine's name may be another Machine's later; a member's ID is no other member's.
type stay struct {
	on                    string    // as host has it, of the last look that knew the Machine
	joined, votes, left   time.Time // zero where that was not seen: joined is as a learner
	voter, vacates, there bool      // it votes, or did; its Machine is being deleted, or it left; the last look has it
	by                    *stay     // who took its place, nil if that is not known
}

// stays are those of all members that were seen, in the order in which they came. A new voter took the place of the one that goes, or went,
// while no other one did and no other voter was new. Where there are several, nothing says which came for which.
func stays(all []sight) (out []*stay) {
	var open, spare []*stay // places that are not taken yet, and new voters that have taken none
	byID := map[string]*stay{}
	for k := range all {
		s, live := &all[k], 0
		for _, t := range out {
			t.there = false
		}
		for i := range s.members {
			m := &s.members[i]
			t := byID[m.ID]
			if t == nil {
				t = &stay{}
				byID[m.ID], out = t, append(out, t)
				if k > 0 && m.Learner {
					t.joined = s.at
				}
			}
			t.left = time.Time{} // two replicas may look at one moment, and see it in another order
			if t.there = true; m.Machine != "" || t.on == "" {
				t.on = host(m)
			}
			if !m.Learner && !t.voter {
				if t.voter = true; k > 0 {
					t.votes, spare = s.at, append(spare, t)
				}
			}
		}
		for _, t := range out {
			if !t.there && t.left.IsZero() {
				t.left = s.at
			}
			if t.voter && !t.vacates && (!t.there || slices.Contains(s.deleting, t.on)) {
				t.vacates = true
				if at := slices.Index(spare, t); at >= 0 {
					spare = slices.Delete(spare, at, at+1)
				} else {
					open = append(open, t)
				}
			}
			if t.voter && !t.vacates {
				live++
			}
		}
		if len(open) == 1 && len(spare) == 1 {
			open[0].by = spare[0]
		}
		same := len(open) == len(spare)
		if same || s.desired > 0 && live >= s.desired { // a place that is left is not filled any more
			open = nil
		}
		if same || live <= s.desired || s.desired == 0 { // it came for none that is still there
			spare = nil
		}
	}
	coming := slices.DeleteFunc(slices.Clone(out), func(t *stay) bool { return !t.there || t.voter || slices.Contains(all[len(all)-1].deleting, t.on) })
	if len(open) == 1 && len(coming) == 1 {
		open[0].by = coming[0]
	}
	return out
}

// replacements are the deletions of Machines whose member was seen, oldest first.
func replacements(all []sight, of []Lane, items []Item) []Replacement {
	out, members := []Replacement{}, stays(all)
	for i := range of {
		for k, d := range of[i].Deleting {
			p := Replacement{Machine: of[i].Machine}
			var member *stay // the last one that was there by then
			for _, t := range members {
				if t.on == p.Machine && !t.first().After(d.From) {
					member = t
				}
			}
			if member == nil {
				continue
			}
			p.User, p.Deleted = deleter(items, p.Machine, d.From)
			if p.Left = member.left; k+1 < len(of[i].Deleting) || !slices.Contains(all[len(all)-1].deleting, p.Machine) {
				p.Gone = d.To
			}
			if by := member.by; by != nil {
				p.By, p.Learner, p.Votes = by.on, by.joined, by.votes
			}
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b Replacement) int { return a.Deleted.Compare(b.Deleted) })
	return out
}

// first is when it was seen first to be there, zero for the first look.
func (t *stay) first() time.Time { return cmp.Or(t.joined, t.votes) }

// deleter is who last asked for the deletion before it was seen, and when.
func deleter(items []Item, machine string, seen time.Time) (user string, at time.Time) {
	at = seen
	for i := range items {
		it := &items[i]
		if it.Source == SourceDecision && it.Machine == machine && it.What == "DELETE" && it.Class() != "denied" && !it.At.After(seen.Add(slack)) {
			user, at = it.User, it.At
		}
	}
	return user, at
}

// slack is between what a replica's decision saw and the elected one's look.
const slack = 2 * time.Second

// clip leaves out of the lanes what is outside the report's time.
func (r *Report) clip() {
	cut := func(spans []Span) (out []Span) {
		for _, s := range spans {
			if s.From.Before(r.From) {
				s.From = r.From
			}
			if s.To.After(r.To) {
				s.To = r.To
			}
			if s.From.Before(s.To) {
				out = append(out, s)
			}
		}
		return out
	}
	for i := range r.Lanes {
		r.Lanes[i].Member, r.Lanes[i].Deleting = cut(r.Lanes[i].Member), cut(r.Lanes[i].Deleting)
	}
	r.Lanes = slices.DeleteFunc(r.Lanes, func(l Lane) bool { return len(l.Member)+len(l.Deleting) == 0 })
	r.Replacements = slices.DeleteFunc(r.Replacements, func(p Replacement) bool {
		return p.Deleted.After(r.To) || !p.Gone.IsZero() && p.Gone.Before(r.From)
	})
}
