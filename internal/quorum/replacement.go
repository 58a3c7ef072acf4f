package quorum

import (
	"cmp"
	"slices"
)

// Phase is what the replacement of a deleting Machine's member waits for.
type Phase uint8

const (
	AwaitNode      Phase = 1 + iota // a ready Node without a member
	AwaitLearner                    // that Node's learner, to be added
	AwaitStart                      // the learner, to start
	AwaitPromotion                  // the learner, to catch up and be promoted
	AwaitRemoval                    // the old member, to be removed
	AwaitRelease                    // the old Machine, to be released
)

// Phases lists them in their order.
func Phases() []Phase {
	return []Phase{AwaitNode, AwaitLearner, AwaitStart, AwaitPromotion, AwaitRemoval, AwaitRelease}
}

// String is the phase as the metrics' label has it.
func (p Phase) String() string {
	return [...]string{AwaitNode: "node", AwaitLearner: "add", AwaitStart: "start", AwaitPromotion: "promote", AwaitRemoval: "remove", AwaitRelease: "release"}[p]
}

func (p Phase) waitsFor() string {
	return [...]string{
		AwaitNode:      "it waits for another control-plane Machine with a ready Node",
		AwaitLearner:   "it waits for the new Node's member to be added",
		AwaitStart:     "it waits for the new member to start",
		AwaitPromotion: "it waits for the new member to catch up and to be promoted",
		AwaitRemoval:   "its member is about to be removed",
		AwaitRelease:   "it is about to be released",
	}[p]
}

// Replacement is a deleting Machine that is held until another votes in its place.
type Replacement struct {
	Machine, UID string
	Phase        Phase
}

// Replacements are those under way, in the order in which the Machines were deleted. Which new member
// is for which old one nobody says, so those that are furthest are the first Machine's. None if etcd
// is unknown.
func Replacements(s *Snapshot) []Replacement {
	if !s.Ring.Known {
		return nil
	}
	join := NewJoin(s)
	voters, _ := s.Ring.Voters()
	have := map[Phase]int{}
	if s.Desired > 0 {
		have[AwaitRemoval] = voters - s.Desired
	}
	for k := range s.Ring.Members {
		i := join.Hosts[k].Machine()
		switch m := &s.Ring.Members[k]; {
		case !m.Learner || i < 0 || s.Machines[i].Deleting():
		case m.Started():
			have[AwaitPromotion]++
		default:
			have[AwaitStart]++
		}
	}
	var held []int
	for i := range s.Machines {
		switch m, n := &s.Machines[i], join.Node(i); {
		case !m.ControlPlane() || m.Mirrored:
		case m.Deleting():
			if m.Hook != Absent || m.Latch == Ours {
				held = append(held, i)
			}
		case n >= 0 && s.Nodes[n].Ready && len(join.Members(i)) == 0:
			have[AwaitLearner]++
		}
	}
	slices.SortStableFunc(held, func(a, b int) int {
		return cmp.Or(s.Machines[a].DeletedAt.Compare(s.Machines[b].DeletedAt), cmp.Compare(s.Machines[a].Name, s.Machines[b].Name))
	})
	var out []Replacement
	for _, i := range held {
		r := Replacement{Machine: s.Machines[i].Name, UID: s.Machines[i].UID, Phase: AwaitNode}
		switch {
		case join.Voter(i) >= 0:
			for _, phase := range [...]Phase{AwaitRemoval, AwaitPromotion, AwaitStart, AwaitLearner} {
				if have[phase] > 0 {
					have[phase]--
					r.Phase = phase
					break
				}
			}
		case len(join.Members(i)) > 0: // a learner, which is not promoted any more
			r.Phase = AwaitRemoval
		default:
			r.Phase = AwaitRelease
		}
		out = append(out, r)
	}
	return out
}

// Promotable counts the learners that could vote: steady, on a live hooked Machine, with a seat free.
func (s *Snapshot) Promotable() int {
	p := planner{s: s, join: NewJoin(s)}
	if !s.Ring.Known || s.Desired == 0 || !p.seat() {
		return 0
	}
	n := 0
	for k := range s.Ring.Members {
		m, i := &s.Ring.Members[k], p.join.Hosts[k].Machine()
		if m.Learner && s.Steady(m) && i >= 0 && !s.Machines[i].Deleting() && !s.Machines[i].Mirrored {
			n++
		}
	}
	return n
}
