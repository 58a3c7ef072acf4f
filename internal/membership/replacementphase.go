package membership

import (
	"cmp"
	"slices"
	"time"

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

// WaitsFor is what the old Machine waits for, for people.
func (p Phase) WaitsFor(mode quorum.Mode) string {
	if p == PhaseAwaitRelease && mode == quorum.ModeGuard {
		return "its release, for which cluster-etcd-operator looks once a minute"
	}
	return [...]string{
		PhaseAwaitNode:      "a new Machine's Node",
		PhaseAwaitLearner:   "the new member to be added",
		PhaseAwaitStart:     "the new member to start",
		PhaseAwaitPromotion: "the new member's promotion",
		PhaseAwaitRemoval:   "its member's removal",
		PhaseAwaitRelease:   "its release",
	}[p]
}

// Replacement is a deleting Machine that is held until another votes in its place.
type Replacement struct {
	Machine, UID string
	Phase        Phase
}

// Replacements are those under way, in the order in which the Machines were deleted. Nothing says
// which new member replaces which old one, so the one that has got furthest counts for the Machine that was deleted first. None if
// etcd is unknown, or its list is wrong.
func Replacements(join *quorum.Join) []Replacement {
	s := join.Snapshot()
	if !s.Ring.Known || s.Mislisted() != nil {
		return nil
	}
	voters, _ := s.Ring.Voters()
	have := map[Phase]int{}
	if s.Desired > 0 {
		have[PhaseAwaitRemoval] = voters - s.Desired
	}
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		switch m := join.Host(member).Machine(); {
		case !member.Learner || m == nil || m.Deleting():
		case member.Started():
			have[PhaseAwaitPromotion]++
		default:
			have[PhaseAwaitStart]++
		}
	}
	var held []*quorum.Machine
	for i := range s.Machines {
		m := &s.Machines[i]
		switch n := join.Node(m); {
		case !m.ControlPlane() || m.Mirrored:
		case m.Deleting():
			if m.Hook != quorum.EntryAbsent || m.Latch == quorum.EntryOurs {
				held = append(held, m)
			}
		case n != nil && n.Ready && len(join.Joined(m)) == 0:
			have[PhaseAwaitLearner]++
		}
	}
	slices.SortStableFunc(held, func(a, b *quorum.Machine) int {
		return cmp.Or(a.DeletedAt.Compare(b.DeletedAt), cmp.Compare(a.Name, b.Name))
	})
	var out []Replacement
	for _, m := range held {
		r := Replacement{Machine: m.Name, UID: m.UID, Phase: PhaseAwaitNode}
		switch {
		case join.Voter(m) != nil && s.Mode == quorum.ModeGuard && !join.Voter(m).Healthy && s.Desired > 0 && voters >= s.Desired:
			r.Phase = PhaseAwaitRemoval // cluster-etcd-operator waits for no replacement then
		case join.Voter(m) != nil:
			for _, phase := range [...]Phase{PhaseAwaitRemoval, PhaseAwaitPromotion, PhaseAwaitStart, PhaseAwaitLearner} {
				if have[phase] > 0 {
					have[phase]--
					r.Phase = phase
					break
				}
			}
		case len(join.Members(m)) > 0: // a learner, which is not promoted any more
			r.Phase = PhaseAwaitRemoval
		case join.WhyHeldAfterRestore(m) != "":
		default:
			r.Phase = PhaseAwaitRelease
		}
		out = append(out, r)
	}
	return out
}

// Learners counts those for which there is a seat, and of these those that are being sent data. A learner without a seat is a warm spare.
func Learners(j *quorum.Join) (waiting, receiving int) {
	p := newPlanner(j)
	if !p.s.Ring.Known || p.s.Desired == 0 || !p.seatFree() {
		return 0, 0
	}
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		if !member.Learner {
			continue
		}
		waiting++
		if p.receiving(member) {
			receiving++
		}
	}
	return waiting, receiving
}

// receivedLately is how long ago a learner that is being sent data has grown at most, seen by looks that are ten seconds apart.
const receivedLately = 15 * time.Second

// receiving reports whether a learner is being sent the data that it lacks.
func (p *planner) receiving(m *quorum.Member) bool {
	return m.Receiving || m.Healthy && !p.s.CaughtUp(m) && p.s.Now.Sub(m.ProgressAt) < receivedLately
}

// InMaintenance are the unhealthy voters whose Node is cordoned and whose Machine stays, as when an upgrade restarts the Node.
func InMaintenance(join *quorum.Join) (ids []quorum.MemberID) {
	s := join.Snapshot()
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		if member.Learner || member.Healthy {
			continue
		}
		if m := join.Host(member).Machine(); m != nil && !m.Deleting() {
			if node := join.Node(m); node != nil && node.Cordoned {
				ids = append(ids, member.ID)
			}
		}
	}
	return ids
}
