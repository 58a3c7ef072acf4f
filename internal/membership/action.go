package membership

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Kind is what an Action does.
type Kind uint8

const (
	AddHook        Kind = 1 + iota // put hook, latch and evidence on a Machine, as far as Action says
	ReleaseHook                    // take hook and latch off a deleting Machine
	SizeGuard                      // size the quorum guard's budget
	CreateGuardPod                 // create the guard pod of a Node
	DeleteGuardPod                 // delete a guard pod
	RecordRelease                  // write a final release into the ledger, before it is performed
	RemoveLearner                  // remove a learner from etcd
	MoveLeader                     // move leadership to the member Action.To
	RemoveVoter                    // remove a voter from etcd
	Promote                        // make a learner a voter
	AddLearner                     // add a member as a learner
)

func (k Kind) String() string {
	return [...]string{
		AddHook: "add-hook", ReleaseHook: "release-hook", SizeGuard: "size-guard", CreateGuardPod: "create-guard-pod", DeleteGuardPod: "delete-guard-pod", RecordRelease: "record-release", RemoveLearner: "remove-learner", MoveLeader: "move-leader",
		RemoveVoter: "remove-voter", Promote: "promote", AddLearner: "add-learner",
	}[k]
}

// Membership says whether the action changes etcd: at most one such action a round.
func (k Kind) Membership() bool { return k >= RemoveLearner }

// Action is one change, as data. Which fields count depends on Kind.
type Action struct {
	Kind    Kind
	Step    int    // of the reconciler, 1 to 8
	Machine string // name and UID of the Machine that it is about, "" for a member without one
	UID     string
	Node    string // AddLearner, CreateGuardPod, DeleteGuardPod, and a RemoveLearner that gives way: the Node

	Member     uint64 // the etcd member
	MemberName string
	To         uint64 // MoveLeader: the new leader
	ToName     string
	PeerURL    string // AddLearner

	Hook, Latch bool            // AddHook: which entries to put; ReleaseHook: which to take off
	Evidence    quorum.Evidence // AddHook: what to write, nothing if it has no members
	GivesWay    bool            // RemoveLearner: its Node goes to the end of the queue
	Final       bool            // ReleaseHook: of what may host a member
	Release     quorum.Release  // RecordRelease

	MinAvailable int        // SizeGuard
	Version      string     // SizeGuard: of the budget that was read
	Address      netip.Addr // CreateGuardPod: where the Node's member answers
	Pod, PodUID  string     // DeleteGuardPod, and a final ReleaseHook: it goes first

	Why string // for people
}

// Same says whether two actions do the same thing: what a second look at the cluster must confirm
// before an irreversible one is made.
func (a Action) Same(b Action) bool {
	return a.Kind == b.Kind && a.UID == b.UID && a.Member == b.Member && a.To == b.To && a.PeerURL == b.PeerURL && a.GivesWay == b.GivesWay &&
		a.Hook == b.Hook && a.Latch == b.Latch && a.MinAvailable == b.MinAvailable && a.Node == b.Node && a.Address == b.Address && a.PodUID == b.PodUID
}

// Describe is the action in one line, the same in logs, Events and transcripts.
func (a Action) Describe() string {
	member := (&quorum.Member{ID: a.Member, Name: a.MemberName}).String()
	switch a.Kind {
	case AddHook:
		var what []string
		if a.Hook {
			what = append(what, "hook")
		}
		if a.Latch {
			what = append(what, "latch")
		}
		if len(a.Evidence.MemberIDs) > 0 {
			what = append(what, "evidence")
		}
		return fmt.Sprintf("put %s on Machine %s", strings.Join(what, ", "), a.Machine)
	case ReleaseHook:
		if !a.Hook {
			return fmt.Sprintf("release the latch of Machine %s", a.Machine)
		}
		return fmt.Sprintf("release hook and latch of Machine %s", a.Machine)
	case SizeGuard:
		return fmt.Sprintf("size the quorum guard: minAvailable %d", a.MinAvailable)
	case CreateGuardPod:
		return fmt.Sprintf("create the quorum guard's pod on Node %s, for %s", a.Node, a.Address)
	case DeleteGuardPod:
		return fmt.Sprintf("delete pod %s of the quorum guard on Node %s", a.Pod, a.Node)
	case RecordRelease:
		by := ""
		if a.Release.By != "" {
			by = " at the word of " + quorum.Clip(a.Release.By, 140)
		}
		return fmt.Sprintf("record that Machine %s is let go%s", a.Machine, by)
	case RemoveLearner:
		return fmt.Sprintf("remove learner %s", member)
	case MoveLeader:
		return fmt.Sprintf("move leadership from %s to %s", member, &quorum.Member{ID: a.To, Name: a.ToName})
	case RemoveVoter:
		return fmt.Sprintf("remove voter %s", member)
	case Promote:
		return fmt.Sprintf("promote learner %s", member)
	case AddLearner:
		return fmt.Sprintf("add a learner for Machine %s at %s", a.Machine, a.PeerURL)
	}
	return fmt.Sprintf("action %d", a.Kind)
}

// Shows says whether the cluster is as the action leaves it. An answer that got lost may belong to a change that was made:
// this is how one finds out. False also stands for what a Snapshot does not tell.
func Shows(s *quorum.Snapshot, a Action) bool {
	if a.Kind.Membership() && !s.Ring.Known {
		return false
	}
	member := s.Ring.Member(a.Member)
	machine := slices.IndexFunc(s.Machines, func(m quorum.Machine) bool { return m.UID == a.UID })
	switch a.Kind {
	case RemoveLearner, RemoveVoter:
		return member == nil
	case Promote:
		return member != nil && !member.Learner
	case MoveLeader:
		return s.Ring.Leader == a.To
	case AddLearner:
		return slices.ContainsFunc(s.Ring.Members, func(m quorum.Member) bool { return slices.Contains(m.PeerURLs, a.PeerURL) })
	case ReleaseHook:
		return machine < 0 || (!a.Hook || s.Machines[machine].Hook != quorum.EntryOurs) && (!a.Latch || s.Machines[machine].Latch != quorum.EntryOurs)
	case AddHook:
		return machine >= 0 && (!a.Hook || s.Machines[machine].Hook == quorum.EntryOurs) && (!a.Latch || s.Machines[machine].Latch == quorum.EntryOurs)
	case RecordRelease:
		return s.Ledger.Has(a.UID)
	case SizeGuard, CreateGuardPod, DeleteGuardPod: // the plan says so anew if it is still to do, and nobody asks after it
	}
	return false
}
