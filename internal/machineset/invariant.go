package machineset

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Invariant names what no plan may break.
type Invariant string

const (
	InvariantOneAtATime  Invariant = "one-at-a-time" // at most one Machine is created or deleted in a round
	InvariantSurge       Invariant = "surge"         // never more than replicas + 1 live Machines by the set
	InvariantReplicas    Invariant = "replicas"      // never fewer live Machines than replicas by the set
	InvariantGate        Invariant = "gate"          // nothing is deleted while another Machine or etcd is not well
	InvariantVotesFirst  Invariant = "votes-first"   // a voter's Machine is deleted once as many others vote as wanted
	InvariantOwnMachines Invariant = "own-machines"  // the set deletes, and lets go of, only its own Machines
	InvariantNoTakeOver  Invariant = "no-take-over"  // the set adopts no Machine that another controls
	InvariantDissolving  Invariant = "dissolving"    // Machines are let go only of a set that is being deleted, and none is deleted with it
)

// Violation is a planned action that would break an invariant.
type Violation struct {
	Invariant Invariant
	Action    Action
	What      string // for people
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s would break invariant %s: %s", v.Action.Describe(), v.Invariant, v.What)
}

// CheckPlan checks a plan's actions by themselves, without the steps that made them: facts alone are shared. An error is a *Violation.
func CheckPlan(s *quorum.Snapshot, set *Set, actions []Action) error {
	changes := 0
	for _, a := range actions {
		invariant, what := checkAction(s, set, a)
		switch a.Change.(type) {
		case Create, Delete:
			if changes++; changes > 1 {
				invariant, what = InvariantOneAtATime, "it is not the only one"
			}
		default:
		}
		if what != "" {
			return &Violation{invariant, a, what}
		}
	}
	return nil
}

// checkAction checks one action, "" if it breaks nothing.
func checkAction(s *quorum.Snapshot, set *Set, a Action) (_ Invariant, what string) {
	m := s.Machine(a.Machine)
	if m != nil && m.UID != a.UID {
		return InvariantOwnMachines, "its UID is " + m.UID
	}
	switch a.Change.(type) {
	case Create:
		if set.Deleting {
			return InvariantDissolving, "the set is being deleted"
		}
		if n := liveOf(s, set); n > set.Replicas {
			return InvariantSurge, fmt.Sprintf("%d Machines are live, and %d are wanted", n, set.Replicas)
		}
	case Delete:
		return checkDelete(s, set, m)
	case Adopt:
		if m == nil || m.Deleting() || m.Controller() != nil {
			return InvariantNoTakeOver, "it is being deleted, or somebody controls it"
		}
	case Disown:
		if !set.Deleting {
			return InvariantDissolving, "the set is not being deleted"
		}
	case LeaveSet:
		if !set.Deleting && set.OtherOperator == "" {
			return InvariantDissolving, "the set is not being deleted, and nobody else reconciles it"
		}
	case TakeSet:
		if set.Deleting || set.OtherOperator != "" || set.OperatorWhy != "" {
			return InvariantNoTakeOver, "the set is being deleted, or another may reconcile it"
		}
	}
	return "", ""
}

func checkDelete(s *quorum.Snapshot, set *Set, m *quorum.Machine) (_ Invariant, what string) {
	join := quorum.NewJoin(s)
	switch n := liveOf(s, set); {
	case set.Deleting:
		return InvariantDissolving, "the set is being deleted"
	case m == nil || !set.owns(m) || m.Deleting():
		return InvariantOwnMachines, "it is no live Machine of the set"
	case n <= set.Replicas:
		return InvariantReplicas, fmt.Sprintf("%d Machines are live, and %d are wanted", n, set.Replicas)
	}
	if why := unwell(s, join, set, m); why != "" {
		return InvariantGate, why
	}
	if n := voting(s, join, set, m); join.Voter(m) != nil && n < set.Replicas {
		return InvariantVotesFirst, fmt.Sprintf("%d other Machines vote, and %d are wanted", n, set.Replicas)
	}
	return "", ""
}

// liveOf counts the set's live Machines.
func liveOf(s *quorum.Snapshot, set *Set) int {
	n := 0
	for i := range s.Machines {
		if m := &s.Machines[i]; set.owns(m) && !m.Deleting() {
			n++
		}
	}
	return n
}

// unwell is what about etcd or about another Machine of the set speaks against a deletion, "" for nothing.
func unwell(s *quorum.Snapshot, join *quorum.Join, set *Set, goes *quorum.Machine) string {
	voters, healthy := s.Ring.Voters()
	if !s.Ring.Known || s.Ring.Leader == 0 || len(s.Ring.Alarms) > 0 || healthy < quorum.Size(voters) {
		return "etcd is not known to have a leader, quorum and no alarm"
	}
	for i := range s.Ring.Members {
		m := &s.Ring.Members[i]
		switch host := join.Host(m).Machine(); {
		case host == goes:
		case m.Learner:
			return "a learner is under way"
		case !m.Healthy && host != nil && !host.Deleting():
			return fmt.Sprintf("member %s is not healthy", m)
		}
	}
	for i := range s.Machines {
		m := &s.Machines[i]
		place := set.place(m)
		upToDate := place.Outdated == "" && (len(set.Domains) == 0 || slices.Contains(set.Domains, place.Domain))
		if n := join.Node(m); m != goes && set.owns(m) && !m.Deleting() && upToDate && (n == nil || !n.Ready) {
			return fmt.Sprintf("Machine %s has no Node that is ready", m.Name)
		}
	}
	return ""
}

// voting counts the set's live Machines, other than one, that host a healthy voter.
func voting(s *quorum.Snapshot, join *quorum.Join, set *Set, but *quorum.Machine) int {
	n := 0
	for i := range s.Ring.Members {
		v := &s.Ring.Members[i]
		if m := join.Host(v).Machine(); m != nil && m != but && set.owns(m) && !m.Deleting() && v.Healthy && !v.Learner {
			n++
		}
	}
	return n
}
