package report

import (
	"cmp"
	"maps"
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

// Replacement is a Machine that was deleted, and the one that came for it. Times are zero where that was not seen.
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
	members  map[string]State // by Machine, or by member where that is on none
	deleting []string
}

// sights are the looks at etcd that the records tell of, in order.
func sights(entries []audit.Entry) (out []sight) {
	for i := range entries {
		e := entries[i].Evidence()
		if e == nil || len(e.Members) == 0 {
			continue
		}
		s := sight{at: e.At, members: map[string]State{}, deleting: e.Deleting}
		for _, m := range e.Members {
			state := StateVoter
			switch {
			case m.Learner:
				state = StateLearner
			case !m.Healthy:
				state = StateUnhealthy
			}
			s.members[cmp.Or(m.Machine, m.Name, "member "+m.ID)] = state
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b sight) int { return a.at.Compare(b.at) })
	return out
}

// lanes are those of all Machines that the records tell of, in the order in which they appeared.
func lanes(entries []audit.Entry, until time.Time) []Lane {
	out := []Lane{}
	lane := func(name string) *Lane {
		k := slices.IndexFunc(out, func(l Lane) bool { return l.Machine == name })
		if k < 0 {
			k, out = len(out), append(out, Lane{Machine: name})
		}
		return &out[k]
	}
	all := sights(entries)
	for k, s := range all {
		end := until
		if k+1 < len(all) {
			end = all[k+1].at
		}
		for _, name := range slices.Sorted(maps.Keys(s.members)) {
			l := lane(name)
			l.Member = lasting(l.Member, Span{s.at, end, s.members[name]})
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

// replacements are the deletions of Machines whose member was seen, oldest first.
func replacements(all []Lane, items []Item) []Replacement {
	out := []Replacement{}
	taken := map[string]bool{}
	for i := range all {
		for _, d := range all[i].Deleting {
			if len(all[i].Member) == 0 {
				continue
			}
			out = append(out, Replacement{Machine: all[i].Machine, Deleted: d.From})
			p := &out[len(out)-1]
			p.User, p.Deleted = deleter(items, p.Machine, d.From)
			last := all[i].Member[len(all[i].Member)-1].To
			if last.Before(d.To) || last.Equal(d.To) && ended(all, last) {
				p.Left = last
			}
			if ended(all, d.To) {
				p.Gone = d.To
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Replacement) int { return a.Deleted.Compare(b.Deleted) })
	for k := range out {
		p := &out[k]
		if l := successor(all, p, taken); l != nil {
			taken[l.Machine] = true
			p.By = l.Machine
			for _, s := range l.Member {
				if p.Learner.IsZero() && s.State == StateLearner {
					p.Learner = s.From
				}
				if p.Votes.IsZero() && s.State != StateLearner {
					p.Votes = s.From
				}
			}
		}
	}
	return out
}

// ended reports whether something was seen after a time: what lasted until then has ended, and not the records.
func ended(all []Lane, at time.Time) bool {
	return slices.ContainsFunc(all, func(l Lane) bool {
		return slices.ContainsFunc(l.Member, func(s Span) bool { return s.To.After(at) })
	})
}

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

const (
	slack = 2 * time.Second // between what a replica's decision saw and the elected one's look
	early = time.Hour       // a replacement may be there before the deletion
)

// successor is the lane that came for a Machine: the first that joined etcd after the deletion, or the last one shortly before.
func successor(all []Lane, p *Replacement, taken map[string]bool) *Lane {
	var before *Lane
	for i := range all {
		l := &all[i]
		if l.Machine == p.Machine || taken[l.Machine] || len(l.Member) == 0 || l.Member[0].From.Equal(first(all)) {
			continue
		}
		joined := l.Member[0].From
		switch {
		case !p.Gone.IsZero() && joined.After(p.Gone) || joined.Before(p.Deleted.Add(-early)):
		case joined.Before(p.Deleted):
			before = l
		default:
			return cmp.Or(before, l)
		}
	}
	return before
}

// first is when etcd was first seen: who was there then joined before.
func first(all []Lane) (at time.Time) {
	for i := range all {
		if m := all[i].Member; len(m) > 0 && (at.IsZero() || m[0].From.Before(at)) {
			at = m[0].From
		}
	}
	return at
}

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
