package quorum

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Mode is what Holdfast may do to etcd.
type Mode uint8

const (
	ModeGuard Mode = 1 + iota // enforce, record, report: never change etcd's membership
	ModeFull                  // also drive membership
)

// Snapshot is everything that can influence a decision, read live and as close together as can be.
// It is data: deciding reads nothing else, no clock either.
type Snapshot struct {
	Mode     Mode      `json:"mode,omitzero"`
	Began    time.Time `json:"-"`            // when the look began: all that is in it is newer
	Now      time.Time `json:"now,omitzero"` // when it ended: what is seen first in it is dated by this, so that a pause in it makes nothing older
	Ring     Ring      `json:"etcd"`
	Machines []Machine `json:"machines,omitempty"` // the guarded Machines of the Machine namespace
	Nodes    []Node    `json:"nodes,omitempty"`    // the control-plane Nodes

	// Claimants are Machines that are none of the control plane's, and name the instance, the Node or an address of one that is, as
	// a look now and then finds them, or the instance that a new Machine names. They are joined to nothing. ClaimantsWhy says why they are not known, "" if they are.
	Claimants    []Machine `json:"claimants,omitempty"`
	ClaimantsWhy string    `json:"claimantsWhy,omitzero"`

	// MachineSets and ControlPlaneMachineSets are the UIDs of those that there are, where a request is about a Machine's controller; MachineSetsWhy says why they
	// are not known.
	MachineSets             []string `json:"machineSets,omitempty"`
	ControlPlaneMachineSets []string `json:"controlPlaneMachineSets,omitempty"`
	MachineSetsWhy          string   `json:"machineSetsWhy,omitzero"`

	// Records are the evidence of all Machines that ever hosted a listed member, kept apart from the
	// Machines so that it outlives them. A record whose Machine is not in Machines is of one that is gone.
	Records []Evidence `json:"records,omitempty"`
	// RecordsVersion is of the object that holds them, "" where there is none: what is written counts only if it is still this one.
	RecordsVersion string `json:"recordsVersion,omitzero"`
	// RecordsWhy says which records could not be read, "" for none. The others are good.
	RecordsWhy string `json:"recordsWhy,omitzero"`

	Ledger Ledger `json:"releaseLedger,omitzero"` // final releases

	QuorumGuard Guard `json:"quorumGuard,omitzero"` // in guard mode it is reported on, and nothing is decided by it

	// Bootstrap is the address of the installer's temporary member, as the endpoints object is marked
	// with it; the zero value without. A member named BootstrapName is that one, too.
	Bootstrap netip.Addr `json:"bootstrap,omitzero"`
	// BootstrapWaits is what has to happen before that member may go, "" if nothing has (full mode).
	BootstrapWaits string `json:"bootstrapWaits,omitzero"`
	// APIServersWait is what has to happen before the API servers can do without a voter that is to go, "" if nothing has (full mode).
	APIServersWait string `json:"apiServersWait,omitzero"`

	// Configured is how many voters the install-config asks for, 0 when unknown; Installed is the greatest number that it asked for, as
	// the records have it. Many may write the install-config, so the greater one counts.
	Configured int `json:"configured,omitzero"`
	Installed  int `json:"installed,omitzero"`

	// Desired is the number of voters wanted, or 0 when unknown. DesiredWhy says why it is unknown, or not what the install-config
	// asks for.
	Desired    int    `json:"desired,omitzero"`
	DesiredWhy string `json:"desiredWhy,omitzero"`

	// Replicas are those of the set that Holdfast reconciles, 0 without one. Desired goes towards it step by step.
	Replicas int `json:"replicas,omitzero"`

	// Surge: the control plane's set has one Machine more than wanted, to replace another. One voter more than Desired may be there.
	Surge bool `json:"surge,omitzero"`

	// OtherDriver is what shows that cluster-etcd-operator changes etcd's members as well, or why that is not
	// known; "" where nothing does. Full mode only.
	OtherDriver string `json:"otherDriver,omitzero"`

	Lock Lock `json:"membershipLock,omitzero"` // full mode

	// Failures are the actions that the elected reconciler keeps trying without success. They only influence which other steps are tried as well.
	Failures []Failure `json:"failures,omitempty"`

	Limits Limits `json:"limits"`
}

// Limits are the numbers that flags can change. Use DefaultLimits.
type Limits struct {
	MaxDeleting  int           `json:"maxDeleting"`  // rule one-too-many: how many voters' Machines, or AsTolerated; 0 lifts the rule
	MaxLag       uint64        `json:"maxLag"`       // raft entries that a learner may be behind the leader to be promoted
	SteadyFor    time.Duration `json:"steadyFor"`    // for how long it must have been no further behind
	StableFor    time.Duration `json:"stableFor"`    // for how long a voter must have been healthy to stand in for one that is removed
	MaxLearners  int           `json:"maxLearners"`  // how many learners there may be at a time, one at least; more where all members take them
	StallAfter   time.Duration `json:"stallAfter"`   // a learner without progress for this long gives way to a waiting Node
	DeadAfter    time.Duration `json:"deadAfter"`    // a member that has not answered, and that etcd's leader has got nothing to, for this long is dead
	GoneAfter    time.Duration `json:"goneAfter"`    // the installer's bootstrap member is not needed once it has been dead for this long
	SettledAfter time.Duration `json:"settledAfter"` // etcd's own health interval: how long members must be connected before it accepts another
}

// AsTolerated is a MaxDeleting of as many as etcd can lose, at least one. It is what the flag and the snapshot file say.
const AsTolerated = -1

// DefaultLimits are the limits without flags.
func DefaultLimits() Limits {
	return Limits{MaxDeleting: AsTolerated, MaxLag: 500, SteadyFor: 50 * time.Millisecond, StableFor: 10 * time.Second, MaxLearners: 1, StallAfter: 5 * time.Minute, DeadAfter: 2 * time.Minute, GoneAfter: 5 * time.Minute, SettledAfter: 5 * time.Second}
}

// Machine finds a Machine, nil if it is not there.
func (s *Snapshot) Machine(name string) *Machine {
	for i := range s.Machines {
		if s.Machines[i].Name == name {
			return &s.Machines[i]
		}
	}
	return nil
}

// Node finds a Node, nil if it is not there.
func (s *Snapshot) Node(name string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// MachineAPIFunctional reports whether the Machine API is: some control-plane Machine carries the hook and evidence of its own, or is
// Running, or was before its deletion. Without a Snapshot it is taken to be, so that the rules hold.
func (s *Snapshot) MachineAPIFunctional() bool {
	return s == nil || slices.ContainsFunc(s.Machines, func(m Machine) bool {
		return m.ControlPlane() && (m.WasRunning() || m.Hook == EntryOurs && len(m.OwnEvidence().MemberIDs) > 0)
	})
}

// WhyNotFunctional says what the Machine API's failure to run a control-plane Machine looks like.
func (s *Snapshot) WhyNotFunctional() string {
	var phases []string
	for i := range s.Machines {
		if m := &s.Machines[i]; m.ControlPlane() {
			phases = append(phases, cmp.Or(m.Phase, "no phase yet"))
		}
	}
	if len(phases) == 0 {
		return "there is no control-plane Machine"
	}
	n := len(phases)
	slices.Sort(phases)
	return fmt.Sprintf("none of %d control-plane Machines is or was Running (%s)", n, strings.Join(slices.Compact(phases), ", "))
}

// Mislisted is a member that voted, by the records, and that etcd lists as a learner; nil without one. etcd never takes a vote away: the
// list is wrong, and it is not known who votes.
func (s *Snapshot) Mislisted() *Member {
	for k := range s.Ring.Members {
		if m := &s.Ring.Members[k]; m.Learner && slices.ContainsFunc(s.Records, func(r Evidence) bool { return r.Voted && r.Names(m.ID) }) {
			return m
		}
	}
	return nil
}

// MislistedWhy says what is wrong with a list that has a voter as a learner, and what to type. For raft it is a voter all the
// time: another promotion mends the list alone.
func (m *Member) MislistedWhy() string {
	return fmt.Sprintf("etcd lists %s as a learner, and it votes (etcd issues 19557, 20793): etcdctl member promote %x", m, m.ID)
}

// RingWhy says why the ring is not known, for people.
func (s *Snapshot) RingWhy() string {
	return cmp.Or(s.Ring.Why, "etcd's members could not be read")
}
