package membership

import (
	"cmp"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Phase is what the replacement of a deleting Machine's member waits for.
type Phase uint8

const (
	PhaseAwaitNode      Phase = 1 + iota // a ready Node without a member
	PhaseAwaitLearner                    // that Node's learner, to be added
	PhaseAwaitStart                      // the learner, to start
	PhaseAwaitPromotion                  // the learner, to catch up and be promoted
	PhaseAwaitRemoval                    // the old member, to be removed
	PhaseAwaitRelease                    // the old Machine, to be released
)

// Phases lists them in their order.
func Phases() []Phase {
	return []Phase{PhaseAwaitNode, PhaseAwaitLearner, PhaseAwaitStart, PhaseAwaitPromotion, PhaseAwaitRemoval, PhaseAwaitRelease}
}

// String is the phase as the metrics' label has it.
func (p Phase) String() string {
	return [...]string{PhaseAwaitNode: "node", PhaseAwaitLearner: "add", PhaseAwaitStart: "start", PhaseAwaitPromotion: "promote", PhaseAwaitRemoval: "remove", PhaseAwaitRelease: "release"}[p]
}

func (p Phase) waitsFor() string {
	return [...]string{
		PhaseAwaitNode:      "it waits for another control-plane Machine with a ready Node",
		PhaseAwaitLearner:   "it waits for the new Node's member to be added",
		PhaseAwaitStart:     "it waits for the new member to start",
		PhaseAwaitPromotion: "it waits for the new member to catch up and to be promoted",
		PhaseAwaitRemoval:   "its member is about to be removed",
		PhaseAwaitRelease:   "it is about to be released",
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
func Replacements(s *quorum.Snapshot) []Replacement {
	if !s.Ring.Known {
		return nil
	}
	join := quorum.NewJoin(s)
	voters, _ := s.Ring.Voters()
	have := map[Phase]int{}
	if s.Desired > 0 {
		have[PhaseAwaitRemoval] = voters - s.Desired
	}
	for k := range s.Ring.Members {
		i := join.Hosts[k].Machine()
		switch m := &s.Ring.Members[k]; {
		case !m.Learner || i < 0 || s.Machines[i].Deleting():
		case m.Started():
			have[PhaseAwaitPromotion]++
		default:
			have[PhaseAwaitStart]++
		}
	}
	var held []int
	for i := range s.Machines {
		switch m, n := &s.Machines[i], join.Node(i); {
		case !m.ControlPlane() || m.Mirrored:
		case m.Deleting():
			if m.Hook != quorum.EntryAbsent || m.Latch == quorum.EntryOurs {
				held = append(held, i)
			}
		case n >= 0 && s.Nodes[n].Ready && len(join.Members(i)) == 0:
			have[PhaseAwaitLearner]++
		}
	}
	slices.SortStableFunc(held, func(a, b int) int {
		return cmp.Or(s.Machines[a].DeletedAt.Compare(s.Machines[b].DeletedAt), cmp.Compare(s.Machines[a].Name, s.Machines[b].Name))
	})
	var out []Replacement
	for _, i := range held {
		r := Replacement{Machine: s.Machines[i].Name, UID: s.Machines[i].UID, Phase: PhaseAwaitNode}
		switch {
		case join.Voter(i) >= 0:
			for _, phase := range [...]Phase{PhaseAwaitRemoval, PhaseAwaitPromotion, PhaseAwaitStart, PhaseAwaitLearner} {
				if have[phase] > 0 {
					have[phase]--
					r.Phase = phase
					break
				}
			}
		case len(join.Members(i)) > 0: // a learner, which is not promoted any more
			r.Phase = PhaseAwaitRemoval
		default:
			r.Phase = PhaseAwaitRelease
		}
		out = append(out, r)
	}
	return out
}

// Promotable counts the learners that could vote: steady, on a live hooked Machine, with a seat free.
func Promotable(s *quorum.Snapshot) int {
	p := planner{s: s, join: quorum.NewJoin(s)}
	if !s.Ring.Known || s.Desired == 0 || !p.seatFree() {
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
