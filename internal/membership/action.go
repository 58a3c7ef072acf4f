package membership

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Action is one change, what it is about, and why it is made.
type Action struct {
	Step    int    // of the reconciler, 1 to 8
	Machine string // name and UID of the Machine that it is about, "" for none
	UID     string
	Change  Change
	Why     string // for people
}

// Change is what an action changes: one of the types below.
//
//sumtype:decl
type Change interface {
	kind() Kind
	describe(machine string) string
}

// Member is the etcd member that a change is about. The name is for people.
type Member struct {
	ID   quorum.MemberID
	Name string
}

func (m Member) String() string { return (&quorum.Member{ID: m.ID, Name: m.Name}).String() }

// The types of change. Those from RemoveLearner on change etcd.
type (
	// AddHook puts on a Machine that is not deleting what is set.
	AddHook struct {
		Hook, Latch bool
		Evidence    quorum.Evidence // nothing without members
	}
	// ReleaseHook takes off a deleting Machine what is set.
	ReleaseHook struct {
		Hook, Latch bool
		Final       bool   // the Machine may host a member
		Pod, PodUID string // Final: the Node's guard pod, which goes first; "" without one
	}
	// MarkIdle writes an annotation that means nothing to a Machine, so that cluster-etcd-operator looks at it at once: that operator watches
	// Machines, and gets no event when a member leaves etcd.
	MarkIdle struct{}
	// RecordRelease writes a final release into the ledger, before it is performed.
	RecordRelease struct{ Release quorum.Release }
	// SizeGuard sizes the quorum guard's budget.
	SizeGuard struct {
		MinAvailable int
		Version      string // of the budget that was read
	}
	// CreateGuardPod creates the guard pod of a Node.
	CreateGuardPod struct {
		Node    string
		Address netip.Addr // where the Node's member answers
	}
	// DeleteGuardPod deletes a guard pod.
	DeleteGuardPod struct{ Node, Pod, PodUID string }
	// RemoveLearner removes a learner from etcd.
	RemoveLearner struct {
		Member   Member
		GivesWay bool   // its Node goes to the end of the queue
		Node     string // GivesWay: that Node, "" if it is not known
	}
	// MoveLeader moves leadership.
	MoveLeader struct{ From, To Member }
	// RemoveVoter removes a voter from etcd.
	RemoveVoter struct{ Member Member }
	// Promote makes a learner a voter.
	Promote struct{ Member Member }
	// AddLearner adds a member as a learner.
	AddLearner struct{ Node, PeerURL string }
)

// Kind names a type of change.
type Kind uint8

const (
	KindAddHook Kind = 1 + iota
	KindReleaseHook
	KindSizeGuard
	KindCreateGuardPod
	KindDeleteGuardPod
	KindRecordRelease
	KindMarkIdle
	KindRemoveLearner
	KindMoveLeader
	KindRemoveVoter
	KindPromote
	KindAddLearner
)

func (k Kind) String() string {
	return [...]string{
		KindAddHook: "add-hook", KindReleaseHook: "release-hook", KindSizeGuard: "size-guard", KindCreateGuardPod: "create-guard-pod", KindDeleteGuardPod: "delete-guard-pod",
		KindRecordRelease: "record-release", KindMarkIdle: "mark-idle", KindRemoveLearner: "remove-learner", KindMoveLeader: "move-leader", KindRemoveVoter: "remove-voter",
		KindPromote: "promote", KindAddLearner: "add-learner",
	}[k]
}

// Membership reports whether the action changes etcd: at most one such action a round.
func (k Kind) Membership() bool { return k >= KindRemoveLearner }

// Locks reports whether the action, planned on a Snapshot, is made under the membership lock: a change of etcd, a final release, which takes a
// voter away just the same, and what lowers the quorum guard's budget, on which a promotion that another replica is about to make may rely.
func (a Action) Locks(s *quorum.Snapshot) bool {
	switch c := a.Change.(type) {
	case ReleaseHook:
		return c.Final && s.Mode == quorum.ModeFull && s.Ring.Known
	case SizeGuard:
		return s.QuorumGuard.MinAvailable != nil && c.MinAvailable < *s.QuorumGuard.MinAvailable
	case AddHook, MarkIdle, RecordRelease, CreateGuardPod, DeleteGuardPod, AddLearner, Promote, RemoveLearner, RemoveVoter, MoveLeader:
	}
	return a.Kind().Membership()
}

func (AddHook) kind() Kind        { return KindAddHook }
func (ReleaseHook) kind() Kind    { return KindReleaseHook }
func (MarkIdle) kind() Kind       { return KindMarkIdle }
func (RecordRelease) kind() Kind  { return KindRecordRelease }
func (SizeGuard) kind() Kind      { return KindSizeGuard }
func (CreateGuardPod) kind() Kind { return KindCreateGuardPod }
func (DeleteGuardPod) kind() Kind { return KindDeleteGuardPod }
func (RemoveLearner) kind() Kind  { return KindRemoveLearner }
func (MoveLeader) kind() Kind     { return KindMoveLeader }
func (RemoveVoter) kind() Kind    { return KindRemoveVoter }
func (Promote) kind() Kind        { return KindPromote }
func (AddLearner) kind() Kind     { return KindAddLearner }

// Kind names the change's type.
func (a Action) Kind() Kind { return a.Change.kind() }

// MemberID is the listed member that the action is about, 0 for none.
func (a Action) MemberID() quorum.MemberID {
	switch c := a.Change.(type) {
	case RemoveLearner:
		return c.Member.ID
	case MoveLeader:
		return c.From.ID
	case RemoveVoter:
		return c.Member.ID
	case Promote:
		return c.Member.ID
	case AddHook, ReleaseHook, MarkIdle, RecordRelease, SizeGuard, CreateGuardPod, DeleteGuardPod, AddLearner:
	}
	return 0
}

// Final reports whether the action lets a Machine go that may host a member.
func (a Action) Final() bool {
	release, ok := a.Change.(ReleaseHook)
	return ok && release.Final
}

// Same reports whether two actions do the same thing: what a second look at the cluster must confirm
// before an irreversible one is made.
func (a Action) Same(b Action) bool { return a.UID == b.UID && reflect.DeepEqual(a.Change, b.Change) }

// Describe is the action in one line, the same in logs, Events and transcripts.
func (a Action) Describe() string { return a.Change.describe(a.Machine) }

func (c AddHook) describe(machine string) string {
	var what []string
	if c.Hook {
		what = append(what, "hook")
	}
	if c.Latch {
		what = append(what, "latch")
	}
	if len(c.Evidence.MemberIDs) > 0 {
		what = append(what, "evidence")
	}
	return fmt.Sprintf("put %s on Machine %s", strings.Join(what, ", "), machine)
}

func (c ReleaseHook) describe(machine string) string {
	if !c.Hook {
		return fmt.Sprintf("release the latch of Machine %s", machine)
	}
	return fmt.Sprintf("release hook and latch of Machine %s", machine)
}

func (MarkIdle) describe(machine string) string {
	return fmt.Sprintf("mark Machine %s as one that hosts no etcd member", machine)
}

func (c RecordRelease) describe(machine string) string {
	by := ""
	if c.Release.By != "" {
		by = ", requested by " + quorum.Clip(c.Release.By, 140)
	}
	return fmt.Sprintf("record the release of Machine %s%s", machine, by)
}

func (c SizeGuard) describe(string) string {
	return fmt.Sprintf("size the quorum guard: minAvailable %d", c.MinAvailable)
}

func (c CreateGuardPod) describe(string) string {
	return fmt.Sprintf("create the quorum guard's pod on Node %s, for %s", c.Node, c.Address)
}

func (c DeleteGuardPod) describe(string) string {
	return fmt.Sprintf("delete pod %s of the quorum guard on Node %s", c.Pod, c.Node)
}

func (c RemoveLearner) describe(string) string { return fmt.Sprintf("remove learner %s", c.Member) }

func (c MoveLeader) describe(string) string {
	return fmt.Sprintf("move leadership from %s to %s", c.From, c.To)
}

func (c RemoveVoter) describe(string) string { return fmt.Sprintf("remove voter %s", c.Member) }

func (c Promote) describe(string) string { return fmt.Sprintf("promote learner %s", c.Member) }

func (c AddLearner) describe(machine string) string {
	return fmt.Sprintf("add a learner for Machine %s at %s", machine, c.PeerURL)
}

// Shows reports whether the Snapshot shows the result of the action. If the answer to a change was lost, this shows whether it was made.
// False can also mean that a Snapshot cannot show it.
func Shows(s *quorum.Snapshot, a Action) bool {
	if a.Kind().Membership() && !s.Ring.Known {
		return false
	}
	member := s.Ring.Member(a.MemberID())
	var m *quorum.Machine
	if i := slices.IndexFunc(s.Machines, func(m quorum.Machine) bool { return m.UID == a.UID }); i >= 0 {
		m = &s.Machines[i]
	}
	switch c := a.Change.(type) {
	case RemoveLearner, RemoveVoter:
		return member == nil
	case Promote:
		return member != nil && !member.Learner
	case MoveLeader:
		return s.Ring.Leader == c.To.ID
	case AddLearner:
		return slices.ContainsFunc(s.Ring.Members, func(m quorum.Member) bool { return slices.Contains(m.PeerURLs, c.PeerURL) })
	case ReleaseHook:
		return m == nil || (!c.Hook || m.Hook != quorum.EntryOurs) && (!c.Latch || m.Latch != quorum.EntryOurs)
	case AddHook:
		return m != nil && (!c.Hook || m.Hook == quorum.EntryOurs) && (!c.Latch || m.Latch == quorum.EntryOurs) &&
			(len(c.Evidence.MemberIDs) == 0 || m.OwnEvidence().Same(c.Evidence))
	case MarkIdle:
		return m != nil && m.Marked
	case RecordRelease:
		return s.Ledger.Has(a.UID)
	case SizeGuard, CreateGuardPod, DeleteGuardPod: // the plan has it again if it is still to do
	}
	return false
}
