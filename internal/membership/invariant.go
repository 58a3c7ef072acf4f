package membership

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Invariant is the name of a thing that must hold whatever is done.
type Invariant string

const (
	InvariantQuorum          Invariant = "I1"  // no action leaves fewer healthy voters than the quorum of the resulting set
	InvariantHookedPromotion Invariant = "I2"  // no member is promoted unless its Machine carries the hook
	InvariantRelease         Invariant = "I3"  // a Machine that may host a member is released only if its hook is off, the ledger lists it, and etcd keeps quorum without it or a person lifted rule escape-hatch
	InvariantVoterCount      Invariant = "I4"  // no action raises voters above desired + 1, or removes a healthy voter below desired
	InvariantLivePromotion   Invariant = "I5"  // a learner whose Machine is deleting is not promoted
	InvariantNoRegain        Invariant = "I6"  // once gone from a deleting Machine, the hook never returns
	InvariantOneChange       Invariant = "I7"  // at most one membership change a round
	InvariantTolerance       Invariant = "I10" // no action lowers what etcd tolerates, but for the moment between a promotion and the removal that follows it
	InvariantDead            Invariant = "I11" // no voter is removed below desired unless etcd's leader calls it lost
)

// Invariants are all that are checked.
func Invariants() []Invariant {
	return []Invariant{
		InvariantQuorum, InvariantHookedPromotion, InvariantRelease, InvariantVoterCount, InvariantLivePromotion, InvariantNoRegain, InvariantOneChange, InvariantTolerance, InvariantDead,
	}
}

// Violation is an action that would break an invariant. It always means a bug in the planner.
type Violation struct {
	Invariant Invariant
	Action    Action
	What      string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s would break invariant %s: %s", v.Action.Describe(), v.Invariant, v.What)
}

// CheckPlan checks actions against I1 to I7, I10 and I11, from the facts and the actions alone: it shares
// nothing with the steps that chose them but the join.
func CheckPlan(j *quorum.Join, actions []Action) error {
	changes := 0
	for _, a := range actions {
		if a.Kind().Membership() {
			changes++
		}
		if err := check(j, a); err != nil {
			return err
		}
		if changes > 1 {
			return &Violation{InvariantOneChange, a, "it is the second membership change of this round"}
		}
	}
	return nil
}

// check checks one action.
func check(j *quorum.Join, a Action) error {
	s := j.Snapshot()
	m := s.Machine(a.Machine)
	if m != nil && m.UID != a.UID {
		m = nil
	}
	var i Invariant
	var what string
	switch {
	case !a.Kind().Membership():
		i, what = checkMachine(j, a, m)
	case !s.Ring.Known, s.Mislisted() != nil:
		i, what = InvariantQuorum, "etcd's members are not known"
	case a.Kind() != KindAddLearner && s.Ring.Member(a.MemberID()) == nil:
		i, what = InvariantOneChange, fmt.Sprintf("member %x is not listed", a.MemberID())
	default:
		if i, what = checkMember(j, a, m); what == "" {
			i, what = InvariantQuorum, checkQuorum(j, a)
		}
	}
	if what != "" {
		return &Violation{i, a, what}
	}
	return nil
}

// checkMachine checks a change of a Machine's hook and latch, "" if it breaks nothing.
func checkMachine(j *quorum.Join, a Action, m *quorum.Machine) (_ Invariant, what string) {
	switch c := a.Change.(type) {
	case AddHook:
		if m == nil || m.Deleting() && (c.Hook || c.Latch) {
			return InvariantNoRegain, "the Machine is deleting or gone"
		}
	case ReleaseHook:
		if m == nil || !m.Deleting() {
			return InvariantRelease, "the Machine is not deleting"
		}
		switch is, why := j.Hosting(m); {
		case is == quorum.HostingNothing:
		case m.Hook != quorum.EntryAbsent:
			return InvariantRelease, "it may host a member: " + why
		case !j.Snapshot().Ledger.Has(m.UID):
			return InvariantRelease, "it may host a member, and the ledger does not say that it is let go: " + why
		case !j.MayRelease(m):
			return InvariantRelease, "etcd does not keep quorum for certain without this Machine"
		}
	case RecordRelease:
		if m == nil || !m.Deleting() || m.Hook != quorum.EntryAbsent {
			return InvariantRelease, "the Machine is not deleting, or its hook is not off"
		}
	case MarkIdle, SizeGuard, CreateGuardPod, DeleteGuardPod: // neither touches a hook or a member
	case RemoveLearner, MoveLeader, RemoveVoter, Promote, AddLearner: // checkMember's
	}
	return "", ""
}

// checkMember checks who is added, promoted or removed, "" if that breaks nothing.
func checkMember(j *quorum.Join, a Action, m *quorum.Machine) (_ Invariant, what string) {
	s := j.Snapshot()
	voters, _ := s.Ring.Voters()
	member := s.Ring.Member(a.MemberID())
	switch a.Change.(type) {
	case RemoveLearner:
		if !member.Learner {
			return InvariantVoterCount, "the member is a voter"
		}
	case RemoveVoter:
		if member.Learner {
			return InvariantVoterCount, "the member is a learner"
		}
		if n := j.Serving(member, 0); j.StaysHealthy(member) && n < s.Desired {
			return InvariantVoterCount, fmt.Sprintf("%d voters that have started, answer and run on a Machine or Node would remain for %d wanted", n, s.Desired)
		}
		if lost := member.LostSince; voters <= s.Desired && (member.Healthy || lost.IsZero() || s.Now.Sub(lost) < s.Limits.DeadAfter) {
			return InvariantDead, fmt.Sprintf("etcd's leader has not called it lost for %s", s.Limits.DeadAfter)
		}
	case Promote:
		switch {
		case !member.Learner:
			return InvariantVoterCount, "the member is a voter already"
		case m != nil && j.Host(member).Machine() != m:
			return InvariantHookedPromotion, "the member does not run on that Machine"
		case m == nil || m.Hook != quorum.EntryOurs:
			return InvariantHookedPromotion, "its Machine does not carry the hook"
		case m.Deleting():
			return InvariantLivePromotion, "its Machine is deleting"
		case voters > s.Desired:
			return InvariantVoterCount, fmt.Sprintf("there would be %d voters for %d wanted", voters+1, s.Desired)
		case voters == s.Desired && !removalFollows(j):
			return InvariantTolerance, fmt.Sprintf("there would be %d voters, and none of them could be removed", voters+1)
		}
	case MoveLeader, AddLearner: // neither changes who votes
	case AddHook, ReleaseHook, MarkIdle, RecordRelease, SizeGuard, CreateGuardPod, DeleteGuardPod: // checkMachine's
	}
	return "", ""
}

// removalFollows reports whether a voter can be removed once one more serves: one that leaves, or that the set may delete.
func removalFollows(j *quorum.Join) bool {
	s := j.Snapshot()
	for k := range s.Ring.Members {
		m := &s.Ring.Members[k]
		leaves := j.Replacing(m) || j.Stale(m) || j.Host(m).Bootstrap || s.Surge && (m.Healthy || s.Dead(m))
		if !m.Learner && leaves && (!j.StaysHealthy(m) || j.Serving(m, 0)+1 >= s.Desired) {
			return true
		}
	}
	return false
}

// checkQuorum checks what etcd has left after a change of its members, "" if that is enough.
func checkQuorum(j *quorum.Join, a Action) string {
	s := j.Snapshot()
	voters, answers := s.Ring.Voters() // those of Machines that were let go answer until they are gone
	after, kept := voters, j.Staying()
	member := s.Ring.Member(a.MemberID())
	if (a.Kind() == KindRemoveVoter || a.Kind() == KindRemoveLearner) && !s.Ring.Removable(member) {
		return "each etcd of 3.6 would panic, if an upgrade brought the member back"
	}
	switch a.Kind() {
	case KindRemoveVoter:
		after--
		if member.Healthy {
			answers--
			if !j.Released(member) {
				kept--
			}
		}
	case KindPromote:
		after++
		if member.Healthy {
			answers++
			kept++
		}
	default:
	}
	if answers < quorum.Size(after) {
		return fmt.Sprintf("%d healthy of %d voters would be no quorum", answers, after)
	}
	if missing := quorum.Size(after) - kept; missing > 0 && missing > quorum.Size(voters)-j.Staying() {
		return fmt.Sprintf("%d healthy of %d voters whose Machines stay would be no quorum, and further from it than now", kept, after)
	}
	return ""
}
