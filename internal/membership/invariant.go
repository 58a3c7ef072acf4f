package membership

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Invariant is the name of a thing that must hold whatever is done.
type Invariant string

const (
	InvariantQuorum          Invariant = "I1" // no action leaves fewer healthy voters than the quorum of the resulting set
	InvariantHookedPromotion Invariant = "I2" // no member is promoted unless its Machine carries the hook
	InvariantRelease         Invariant = "I3" // a Machine that may host a member is released only if its hook is off, the ledger lists it, and etcd keeps quorum without it or a person lifted rule escape-hatch
	InvariantVoterCount      Invariant = "I4" // no action raises voters above desired + 1, or removes a healthy voter below desired
	InvariantLivePromotion   Invariant = "I5" // a learner whose Machine is deleting is not promoted
	InvariantNoRegain        Invariant = "I6" // once gone from a deleting Machine, the hook never returns
	InvariantOneChange       Invariant = "I7" // at most one membership change a round
)

// Violation is an action that would break an invariant. It always means a bug in the planner.
type Violation struct {
	Invariant Invariant
	Action    Action
	What      string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s would break invariant %s: %s", v.Action.Describe(), v.Invariant, v.What)
}

// CheckPlan checks actions against I1 to I7, from the Snapshot and the actions alone: it shares
// nothing with the steps that chose them but the join.
func CheckPlan(s *quorum.Snapshot, actions []Action) error {
	changes := 0
	for _, a := range actions {
		if a.Kind.Membership() {
			changes++
		}
		if err := check(s, a); err != nil {
			return err
		}
		if changes > 1 {
			return &Violation{InvariantOneChange, a, "it is the second membership change of this round"}
		}
	}
	return nil
}

func check(s *quorum.Snapshot, a Action) error {
	violated := func(i Invariant, format string, args ...any) error {
		return &Violation{i, a, fmt.Sprintf(format, args...)}
	}
	var m *quorum.Machine
	i := slices.IndexFunc(s.Machines, func(m quorum.Machine) bool { return m.Name == a.Machine && m.UID == a.UID })
	if i >= 0 {
		m = &s.Machines[i]
	}
	voters, _ := s.Ring.Voters()
	after, alive := voters, votersKept(s)
	if a.Kind.Membership() && !s.Ring.Known {
		return violated(InvariantQuorum, "etcd's members are not known")
	}
	member := s.Ring.Member(a.Member)
	if member == nil && a.Kind >= RemoveLearner && a.Kind != AddLearner {
		return violated(InvariantOneChange, "member %x is not listed", a.Member)
	}
	switch a.Kind {
	case AddHook:
		if m == nil || m.Deleting() && (a.Hook || a.Latch) {
			return violated(InvariantNoRegain, "the Machine is deleting or gone")
		}
	case ReleaseHook:
		if m == nil || !m.Deleting() {
			return violated(InvariantRelease, "the Machine is not deleting")
		}
		j := quorum.NewJoin(s)
		switch is, why := j.Hosting(i); {
		case is == quorum.HostingNothing:
		case m.Hook != quorum.EntryAbsent:
			return violated(InvariantRelease, "it may host a member: %s", why)
		case !s.Ledger.Has(m.UID):
			return violated(InvariantRelease, "it may host a member, and the ledger does not say that it is let go: %s", why)
		case (!s.Ring.Known || surelyHosted(s, i) < quorum.Size(voters)) && !m.Lifts(quorum.RuleEscapeHatch, s.Now):
			return violated(InvariantRelease, "%d of %d voters are healthy for certain without this Machine, which is less than quorum", surelyHosted(s, i), voters)
		}
	case RecordRelease:
		if m == nil || !m.Deleting() || m.Hook != quorum.EntryAbsent {
			return violated(InvariantRelease, "the Machine is not deleting, or no person took its hook off")
		}
	case SizeGuard, CreateGuardPod, DeleteGuardPod: // neither touches a hook or a member
	case RemoveLearner:
		if !member.Learner {
			return violated(InvariantVoterCount, "the member is a voter")
		}
	case RemoveVoter:
		if member.Learner {
			return violated(InvariantVoterCount, "the member is a learner")
		}
		after--
		if k := s.Ring.MemberIndex(a.Member); member.Healthy && !quorum.NewJoin(s).Released(k) {
			alive--
			if n := replacementsOf(s, a.Member); n < s.Desired {
				return violated(InvariantVoterCount, "%d voters that have started, answer and run on a Machine or Node would remain for %d wanted", n, s.Desired)
			}
		}
	case Promote:
		after++
		if member.Healthy {
			alive++
		}
		k := slices.IndexFunc(s.Ring.Members, func(m quorum.Member) bool { return m.ID == a.Member })
		switch {
		case !member.Learner:
			return violated(InvariantVoterCount, "the member is a voter already")
		case m != nil && quorum.NewJoin(s).Hosts[k].Machine() != i:
			return violated(InvariantHookedPromotion, "the member does not run on that Machine")
		case m == nil || m.Hook != quorum.EntryOurs:
			return violated(InvariantHookedPromotion, "its Machine does not carry the hook")
		case m.Deleting():
			return violated(InvariantLivePromotion, "its Machine is deleting")
		case after > s.Desired+1:
			return violated(InvariantVoterCount, "there would be %d voters for %d wanted", after, s.Desired)
		}
	case MoveLeader, AddLearner: // neither changes who votes
	}
	if !a.Kind.Membership() {
		return nil
	}
	_, answers := s.Ring.Voters() // those of Machines that were let go vote until they are gone
	switch {
	case a.Kind == RemoveVoter && member.Healthy:
		answers--
	case a.Kind == Promote && member.Healthy:
		answers++
	}
	if answers < quorum.Size(after) {
		return violated(InvariantQuorum, "%d healthy of %d voters would be no quorum", answers, after)
	}
	if missing := quorum.Size(after) - alive; missing > 0 && missing > quorum.Size(voters)-votersKept(s) {
		return violated(InvariantQuorum, "%d healthy of %d voters whose Machines stay would be no quorum, and further from it than now", alive, after)
	}
	return nil
}

// votersKept counts the healthy voters that are not released.
func votersKept(s *quorum.Snapshot) int {
	j, n := quorum.NewJoin(s), 0
	for k, m := range s.Ring.Members {
		if !m.Learner && m.Healthy && !j.Released(k) {
			n++
		}
	}
	return n
}

// surelyHosted counts the healthy voters that are not released, have no release pending, and have a known host other than this
// Machine.
func surelyHosted(s *quorum.Snapshot, machine int) int {
	j, n := quorum.NewJoin(s), 0
	for k, m := range s.Ring.Members {
		if !m.Learner && m.Healthy && !j.Released(k) && !j.ReleasePending(k) && j.Hosts[k].Known() && !slices.Contains(j.Hosts[k].Machines, machine) {
			n++
		}
	}
	return n
}

// replacementsOf counts the other voters that are healthy, have started, are not released, and are joined to exactly one Machine or
// Node.
func replacementsOf(s *quorum.Snapshot, other uint64) int {
	j, n := quorum.NewJoin(s), 0
	for k, m := range s.Ring.Members {
		if m.ID != other && !m.Learner && m.Healthy && m.Name != "" && !j.Released(k) && len(j.Hosts[k].Machines)+len(j.Hosts[k].Nodes) == 1 {
			n++
		}
	}
	return n
}
