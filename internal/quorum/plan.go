package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
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

	Hook, Latch bool     // AddHook: which entries to put; ReleaseHook: which to take off
	Evidence    Evidence // AddHook: what to write, nothing if it has no members
	GivesWay    bool     // RemoveLearner: its Node goes to the end of the queue
	Final       bool     // ReleaseHook: of what may host a member
	Release     Release  // RecordRelease

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

// Reason is a machine-readable word for a Note.
type Reason string

const (
	EtcdUnknown             Reason = "EtcdUnknown"
	EtcdNoLeader            Reason = "EtcdNoLeader"
	EtcdMembersUnhealthy    Reason = "EtcdMembersUnhealthy"
	MachineAPINotFunctional Reason = "MachineAPINotFunctional"
	DesiredReplicasUnknown  Reason = "DesiredReplicasUnknown"
	MemberHostUnknown       Reason = "MemberHostUnknown"
	LearnerOrphaned         Reason = "LearnerOrphaned"
	MachineMirrored         Reason = "MachineMirrored"
	HookOwnerForeign        Reason = "HookOwnerForeign"
	MemberAddressChanged    Reason = "MemberAddressChanged"
	OperatorSeesNoMember    Reason = "OperatorSeesNoMember"
	LearnerStuck            Reason = "LearnerStuck"
	EtcdVotersMissing       Reason = "EtcdVotersMissing"
	EtcdVotersTooMany       Reason = "EtcdVotersTooMany"
	OneFailureDomain        Reason = "OneFailureDomain"
	MachineWithoutNode      Reason = "MachineWithoutNode"
	DrainBlocked            Reason = "DrainBlocked"
	QuorumGuardAbsent       Reason = "QuorumGuardAbsent"
	QuorumGuardPodMissing   Reason = "QuorumGuardPodMissing"
	QuorumGuardOthersPod    Reason = "QuorumGuardOthersPod"
	EtcdOperatorPresent     Reason = "EtcdOperatorPresent"
	LockForeign             Reason = "LockForeign"
	VoterNotStarted         Reason = "VoterNotStarted"
	ReleaseHeld             Reason = "ReleaseHeld"
	LedgerGarbled           Reason = "LedgerGarbled"
	MachineUnreadable       Reason = "MachineUnreadable"
	RecordsGarbled          Reason = "RecordsGarbled"
	RecordsNotKept          Reason = "RecordsNotKept"
	InstanceClaimedTwice    Reason = "InstanceClaimedTwice"
	ClaimsUnknown           Reason = "ClaimsUnknown"
	InvariantViolated       Reason = "InvariantViolated"
	ReplacementWaits        Reason = "ReplacementWaits"
	LearnerBehind           Reason = "LearnerBehind"
	EtcdNoSpace             Reason = "EtcdNoSpace"
	EtcdCorrupt             Reason = "EtcdCorrupt"
	ActionFails             Reason = "ActionFails"
	MembershipNotPublished  Reason = "MembershipNotPublished"
)

// Degrades says whether a Note with this reason means that something is wrong, rather than on its way.
func (r Reason) Degrades() bool {
	return r != ReplacementWaits && r != LearnerBehind && r != MachineMirrored
}

// Note is something a person should know: what is wrong, or what a replacement waits for.
type Note struct {
	Reason  Reason
	Machine string // "" if it is about no Machine in particular
	Message string
}

// Plan is what to do now. Actions on Machines may be several, on etcd at most one; after it, look again.
type Plan struct {
	Actions []Action
	Notes   []Note
	// Records are the evidence that has to outlive the Machines, for the members listed now.
	// Nil: leave the records as they are.
	Records []Evidence
	// Ledger are the releases that the ledger is to keep. Nil: leave it as it is.
	Ledger []Release
	// Moving: something is under way that etcd or a host must finish, so look again soon.
	Moving bool
	// Violated is the invariant that an action would have broken, so that there are none; "" in order.
	Violated Invariant
}

// Decide computes the plan. Every action has passed the invariants; if one did not, there are no
// actions, and a Note says which.
func Decide(s *Snapshot) Plan {
	p := planner{s: s, join: NewJoin(s)}
	p.decide()
	if err := CheckPlan(s, p.plan.Actions); err != nil {
		p.plan.Actions = nil
		if broken := (*Violation)(nil); errors.As(err, &broken) {
			p.plan.Violated = broken.Invariant
		}
		p.note(InvariantViolated, "", "nothing is done: %v", err)
	}
	return p.plan
}

// Unkept notes what of the plan's Records and its Ledger could not be written, nil for nothing. Without records nothing is done, and
// without a ledger no Machine is let go, for which the ledger that was read is needed anyway.
func (p *Plan) Unkept(records, ledger error) {
	if records != nil {
		p.Actions = nil
		p.Notes = append(p.Notes, Note{RecordsNotKept, "", clip("nothing is done, because it cannot be written down which Machine hosts which member: "+records.Error(), 1000)})
	}
	if ledger != nil {
		p.Notes = append(p.Notes, Note{RecordsNotKept, "", clip("no Machine whose hook a person took off is let go, because the release ledger cannot be written: "+ledger.Error(), 1000)})
	}
}

type planner struct {
	s    *Snapshot
	join *Join
	plan Plan
}

func (p *planner) note(reason Reason, machine, format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, Note{reason, machine, clip(fmt.Sprintf(format, args...), 1000)})
}

// decide fills the plan: the first step that applies.
func (p *planner) decide() {
	s := p.s
	p.plan.Notes = s.Ring.AlarmNotes()
	p.failures()
	switch {
	case !s.Ring.Known:
		p.note(EtcdUnknown, "", "etcd did not answer a linearizable read, so nothing is changed: %s", s.ringWhy())
		if p.plan.Actions = p.finalRelease(); len(s.Ring.Alarms) > 0 {
			p.plan.Actions = nil
		}
		return
	case s.Ring.Leader == 0:
		p.note(EtcdNoLeader, "", "etcd has no leader, so nothing is changed")
		return
	}
	p.observe()
	if len(s.Ring.Alarms) > 0 { // etcd refuses every write, the API server's among them
		p.finalRelease() // tells what is held
		p.explainWaiting()
		p.plan.Moving = false
		return
	}
	p.plan.Ledger = p.ledger()
	if !s.functional() {
		p.note(MachineAPINotFunctional, "", "%s, so only deleting Machines that host nothing are released", s.whyNotFunctional())
		p.plan.Actions = p.release()
		return
	}
	steps := []func() []Action{p.hook, p.release, p.finalRelease}
	if s.Mode == Full {
		p.plan.Records = p.records()
		voters, alive := s.Ring.Voters()
		if _, stay := p.standing(); alive >= Size(voters) && stay < Size(voters) {
			p.note(EtcdMembersUnhealthy, "", "%d of %s are healthy on Machines that stay, and quorum is %d: etcd loses it with the Machines that were let go, unless others vote before", stay, nVoters(voters), Size(voters))
		}
		switch {
		case alive < Size(voters):
			p.note(EtcdMembersUnhealthy, "", "%d of %s are healthy, and quorum is %d, so etcd's members are left alone", alive, nVoters(voters), Size(voters))
		case s.OtherDriver != "":
			p.note(EtcdOperatorPresent, "", "etcd's members are left alone, because cluster-etcd-operator changes them itself (%s): run Holdfast with --mode guard, or remove that operator with its ClusterOperator", s.OtherDriver)
		case s.ForeignLock():
			p.note(LockForeign, "", "etcd's members are left alone, because %s", s.foreignLock())
		case s.Desired == 0:
			p.note(DesiredReplicasUnknown, "", "how many voters are wanted is not known, so etcd's members are left alone: %s", s.DesiredWhy)
		default:
			steps = append(steps, p.removeLearner, p.removeVoter, p.removeDead, p.promote, p.addLearner)
		}
	}
	acts := false
	for _, step := range steps {
		actions := step()
		p.plan.Actions = append(p.plan.Actions, actions...)
		if acts = len(actions) > 0 && !p.stuck(actions); acts {
			p.plan.Moving = p.plan.Moving || slices.ContainsFunc(actions, func(a Action) bool { return p.s.Failing(a) == nil })
			break
		}
	}
	if !acts {
		p.explainWaiting()
		p.number()
	}
	if s.Mode == Full { // it is nobody's turn: the guard's size must not wait for a replacement
		p.plan.Actions = append(p.plan.Actions, p.guard()...)
	}
}

// whyNotFunctional says what the Machine API's failure to run a control-plane Machine looks like.
func (s *Snapshot) whyNotFunctional() string {
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

// hook is step 1: hook, latch and evidence on every live Machine that hosts a member, and in full mode
// hook and latch on one that is about to: a Machine that went while its learner was being added would
// leave a learner that is nobody's.
func (p *planner) hook() []Action {
	var out []Action
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		members := p.join.Members(i)
		n := p.join.Node(i)
		waits := p.s.Mode == Full && m.ControlPlane() && n >= 0 && p.s.Nodes[n].Ready
		if m.Deleting() || m.Mirrored || m.Unread != "" || len(members) == 0 && !waits || p.s.Mode == Guard && m.Hook != Ours {
			continue
		}
		a := Action{Kind: AddHook, Step: 1, Machine: m.Name, UID: m.UID, Hook: m.Hook != Ours, Latch: m.Latch != Ours}
		fresh := p.evidence(i, members)
		if len(fresh.MemberIDs) > 0 && !m.OwnEvidence().same(fresh) {
			a.Evidence = fresh
		}
		if a.Hook || a.Latch || len(a.Evidence.MemberIDs) > 0 {
			a.Why = "a member is to be added on its Node"
			if len(members) > 0 {
				a.Why = fmt.Sprintf("it hosts etcd %s", &p.s.Ring.Members[members[0]])
			}
			out = append(out, a)
		}
	}
	return out
}

// evidence is what a Machine's annotation should say of the members that it hosts for sure. A dead
// member whose record names a Machine that is gone is not this one's: the host may have come back
// with the same address.
func (p *planner) evidence(machine int, members []int) Evidence {
	m := &p.s.Machines[machine]
	e := Evidence{MachineUID: m.UID, Machine: m.Name}
	for _, k := range members {
		member, host := &p.s.Ring.Members[k], &p.join.Hosts[k]
		if host.Machine() == machine && (member.Healthy || host.Departed == nil) {
			e.MemberIDs = append(e.MemberIDs, member.ID)
			e.Addresses = append(e.Addresses, member.PeerAddresses()...)
		}
	}
	slices.Sort(e.MemberIDs)
	slices.SortFunc(e.Addresses, netip.Addr.Compare)
	e.Addresses = slices.Compact(e.Addresses)
	return e
}

func (e Evidence) same(o Evidence) bool {
	return e.MachineUID == o.MachineUID && slices.Equal(e.MemberIDs, o.MemberIDs) && slices.Equal(e.Addresses, o.Addresses)
}

// records are the evidence of every listed member, by the Machine that hosts it now, else as it was
// recorded before.
func (p *planner) records() []Evidence {
	out := []Evidence{}
	for k := range p.s.Ring.Members {
		member, host := &p.s.Ring.Members[k], &p.join.Hosts[k]
		i := host.Machine()
		if i >= 0 && p.s.Machines[i].UID != "" && (member.Healthy || host.Departed == nil) {
			m := &p.s.Machines[i]
			out = append(out, Evidence{MachineUID: m.UID, Machine: m.Name, MemberIDs: []uint64{member.ID}, Addresses: member.PeerAddresses()})
			continue
		}
		if r := slices.IndexFunc(p.s.Records, func(r Evidence) bool { return r.Names(member.ID) }); r >= 0 {
			kept := p.s.Records[r]
			kept.MemberIDs = []uint64{member.ID}
			out = append(out, kept)
		}
	}
	return out
}

// release is step 2: hook and latch go from a deleting Machine that hosts nothing. In guard mode the hook is left to its
// custodian. For a latch whose hook a person took off, see finalRelease.
func (p *planner) release() []Action {
	var out []Action
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if !m.Deleting() || m.Mirrored || m.Unread != "" {
			continue
		}
		a := Action{Kind: ReleaseHook, Step: 2, Machine: m.Name, UID: m.UID, Hook: m.Hook != Absent && p.s.Mode == Full, Latch: m.Latch == Ours}
		if m.Hook == Ours && p.s.Mode == Guard {
			continue // its custodian's
		}
		if is, _ := p.join.Hosting(i); is != HostsNothing {
			continue
		}
		a.Why = "it hosts no etcd member"
		if a.Hook || a.Latch {
			out = append(out, a)
		}
	}
	return out
}

// removeLearner is step 3.
func (p *planner) removeLearner() []Action {
	for k := range p.s.Ring.Members {
		member, host := &p.s.Ring.Members[k], &p.join.Hosts[k]
		if !member.Learner {
			continue
		}
		a := Action{Kind: RemoveLearner, Step: 3, Member: member.ID, MemberName: member.Name}
		i := host.Machine()
		waits := p.waiting(func(o int) bool { return !slices.Contains(host.Machines, o) })
		switch {
		case i >= 0 && p.s.Machines[i].Mirrored:
			continue
		case i >= 0 && p.s.Machines[i].Deleting():
			a.Machine, a.UID = p.s.Machines[i].Name, p.s.Machines[i].UID
			a.Why = "its Machine was deleted before it was promoted"
		case host.Departed != nil && (len(host.Machines) == 0 || p.s.Dead(member)):
			a.Machine, a.UID = host.Departed.Machine, host.Departed.MachineUID
			a.Why = fmt.Sprintf("its Machine %s is gone", host.Departed.Machine)
		case len(host.Machines)+len(host.Nodes) > 0 && waits >= 0 && p.stalled(member, p.turn(i, waits)):
			a.GivesWay = true
			if i >= 0 {
				a.Machine, a.UID = p.s.Machines[i].Name, p.s.Machines[i].UID
				if n := p.join.Node(i); n >= 0 {
					a.Node = p.s.Nodes[n].Name
				}
			}
			a.Why = fmt.Sprintf("it made no progress for %s, and Machine %s waits", p.turn(i, waits), p.s.Machines[waits].Name)
		default:
			continue
		}
		return []Action{a}
	}
	return nil
}

// stalled says whether a learner that is not caught up has made no progress for that long.
func (p *planner) stalled(m *Member, after time.Duration) bool {
	return !p.s.CaughtUp(m) && !m.ProgressAt.IsZero() && p.s.Now.Sub(m.ProgressAt) >= after
}

// longestTurn is how many times Limits.StallAfter a learner has at most before its Node gives way.
const longestTurn = 12

// turn is for how long the learner of a Machine (-1 if it is not known) may make no progress before its Node gives way to that of
// a Machine that waits. A learner that is being sent a large snapshot answers nobody, and looks like one that hangs. So if
// all have given way once, each turn is twice as long as the one before it: a ring that is only slow ends in a vote.
func (p *planner) turn(machine, waits int) time.Duration {
	stall, theirs := p.s.Limits.StallAfter, p.s.Nodes[p.join.Node(waits)].GaveWayAt
	if theirs.IsZero() {
		return stall
	}
	before := stall
	if machine >= 0 && p.join.Node(machine) >= 0 {
		if ours := p.s.Nodes[p.join.Node(machine)].GaveWayAt; !ours.IsZero() {
			before = max(stall, theirs.Sub(ours)) // they had the turn after ours
		}
	}
	return min(2*before, longestTurn*stall)
}

// CaughtUp says whether a learner answers and is no more than Limits.MaxLag entries behind the leader.
// It is asked beside etcd's own readiness, which is 90 % of the leader's log.
func (s *Snapshot) CaughtUp(m *Member) bool {
	return m.Started() && m.Healthy && s.Lag(m) <= s.Limits.MaxLag
}

// SteadyIn is how long the next learner that has caught up has yet to keep up; ok is false if there is none.
func (s *Snapshot) SteadyIn() (left time.Duration, ok bool) {
	for k := range s.Ring.Members {
		m := &s.Ring.Members[k]
		if !m.Learner || !s.CaughtUp(m) || s.Steady(m) {
			continue
		}
		still := s.Limits.SteadyFor
		if !m.CaughtUpAt.IsZero() {
			still -= s.Now.Sub(m.CaughtUpAt)
		}
		if !ok || still < left {
			left, ok = still, true
		}
	}
	return left, ok
}

// Steady says whether a learner has been caught up for as long as Limits.SteadyFor: one that falls
// behind again as soon as clients write is not worth a vote yet.
func (s *Snapshot) Steady(m *Member) bool {
	return s.CaughtUp(m) && !m.CaughtUpAt.IsZero() && s.Now.Sub(m.CaughtUpAt) >= s.Limits.SteadyFor
}

// Lag is how many raft entries a member is behind the leader.
func (s *Snapshot) Lag(m *Member) uint64 {
	if m.Applied >= s.Ring.Index {
		return 0
	}
	return s.Ring.Index - m.Applied
}

// leaving says whether a voter is to go: its Machine is deleting, it is stale, or the installer's.
func (p *planner) leaving(k int) bool {
	return p.join.Replacing(k) || p.join.Stale(k) || p.join.Hosts[k].Bootstrap
}

// goes is the Machine of a leaving voter whose host is known; ok is false if it may not be removed.
func (p *planner) goes(k int) (name, uid string, ok bool) {
	host := &p.join.Hosts[k]
	if i := host.Machine(); i >= 0 && p.s.Machines[i].Deleting() {
		return p.s.Machines[i].Name, p.s.Machines[i].UID, !p.s.Machines[i].Mirrored
	}
	if p.join.Stale(k) && host.Departed != nil {
		return host.Departed.Machine, host.Departed.MachineUID, true
	}
	return "", "", p.join.Stale(k) || host.Bootstrap
}

// going says why a leaving voter is to go.
func (p *planner) going(k int) string {
	switch {
	case p.join.Replacing(k):
		return "its Machine is being deleted"
	case p.join.Hosts[k].Bootstrap:
		return "it is the installer's bootstrap member"
	}
	return "its Machine is gone"
}

// removeVoter is step 4: a voter of a deleting Machine, or the bootstrap member, goes once the others are as many as wanted,
// healthy enough, and tolerate what they should.
func (p *planner) removeVoter() []Action {
	s := p.s
	voters, healthy := p.standing()
	best := -1
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		if _, _, ok := p.goes(k); !ok || member.Learner {
			continue
		}
		left, remain := healthy, voters-1
		if p.stands(k) {
			left--
			remain = p.serving(k)
		}
		spare, now := left-Size(voters-1), healthy-Size(voters)
		if remain < s.Desired || spare < min(now, Tolerance(s.Desired)) || !p.quorate(k) {
			continue
		}
		if best < 0 || p.rank(k, best) < 0 {
			best = k
		}
	}
	if best < 0 {
		return nil
	}
	member := &s.Ring.Members[best]
	machine, uid, _ := p.goes(best)
	a := Action{Kind: RemoveVoter, Step: 4, Machine: machine, UID: uid, Member: member.ID, MemberName: member.Name}
	a.Why = fmt.Sprintf("%s, and %s remain for %d wanted", p.going(best), nVoters(voters-1), s.Desired)
	if to := p.successor(best); s.Ring.Leader == member.ID && to >= 0 {
		a = p.moveLeader(a.Step, best, to, "the leader is about to be removed")
	}
	return []Action{a}
}

// quorate says whether etcd has its quorum of healthy voters without one of them, those on Machines that were let go among them: they
// vote until they are gone.
func (p *planner) quorate(without int) bool {
	voters, alive := p.s.Ring.Voters()
	if p.s.Ring.Members[without].Healthy {
		alive--
	}
	return alive >= Size(voters-1)
}

// standing counts the voters, and those of them that are healthy and whose Machines are held.
func (p *planner) standing() (voters, healthy int) {
	for k := range p.s.Ring.Members {
		if !p.s.Ring.Members[k].Learner {
			voters++
			if p.stands(k) {
				healthy++
			}
		}
	}
	return voters, healthy
}

// stands says whether a member answers, and its Machine is not let go: then it counts as lost already.
func (p *planner) stands(k int) bool { return p.s.Ring.Members[k].Healthy && !p.join.Released(k) }

// serving counts the voters other than k that stand in for it: each has started, answers, and runs on a Machine or Node that is not
// let go. What somebody listed by hand is none of these.
func (p *planner) serving(k int) int {
	n := 0
	for o := range p.s.Ring.Members {
		member, host := &p.s.Ring.Members[o], &p.join.Hosts[o]
		if o != k && !member.Learner && member.Started() && p.stands(o) && len(host.Machines)+len(host.Nodes) == 1 {
			n++
		}
	}
	return n
}

// moveLeader is leadership moved from a voter that is to go.
func (p *planner) moveLeader(step, from, to int, why string) Action {
	one, two := &p.s.Ring.Members[from], &p.s.Ring.Members[to]
	machine, uid, _ := p.goes(from)
	return Action{Kind: MoveLeader, Step: step, Machine: machine, UID: uid, Member: one.ID, MemberName: one.Name, To: two.ID, ToName: two.Name, Why: why}
}

// rank orders leaving voters: unhealthy first, then the bootstrap member, then the most crowded failure
// domain, then the longest deleting.
func (p *planner) rank(a, b int) int {
	one, two := &p.s.Ring.Members[a], &p.s.Ring.Members[b]
	if p.stands(a) != p.stands(b) {
		if p.stands(b) {
			return -1
		}
		return 1
	}
	if p.join.Hosts[a].Bootstrap != p.join.Hosts[b].Bootstrap {
		if p.join.Hosts[a].Bootstrap {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(p.crowd(b), p.crowd(a)),
		p.deletedAt(a).Compare(p.deletedAt(b)),
		cmp.Compare(one.ID, two.ID),
	)
}

// zone is the failure domain of a member, "" if it is not known.
func (p *planner) zone(k int) string {
	if i := p.join.Hosts[k].Machine(); i >= 0 {
		if zone := p.s.Machines[i].Zone; zone != "" {
			return zone
		}
		if n := p.join.Node(i); n >= 0 {
			return p.s.Nodes[n].Zone
		}
	}
	return ""
}

// crowd is the number of voters in a member's failure domain.
func (p *planner) crowd(k int) int {
	n := 0
	for o := range p.s.Ring.Members {
		if !p.s.Ring.Members[o].Learner && p.zone(o) == p.zone(k) {
			n++
		}
	}
	return n
}

func (p *planner) deletedAt(k int) time.Time {
	if i := p.join.Hosts[k].Machine(); i >= 0 {
		return p.s.Machines[i].DeletedAt
	}
	return time.Time{} // gone already: the longest
}

// successor is the healthy voter that leadership moves to, -1 if there is none: one that stays if there is one, and of those the
// one on the newest Machine, as the oldest are the next to be replaced where all are. A leader that joined just now refuses
// the removal that is to come until the others have been connected to it for some seconds, so such a one comes last.
func (p *planner) successor(leader int) int {
	found := -1
	for k := range p.s.Ring.Members {
		m := &p.s.Ring.Members[k]
		if k != leader && !m.Learner && m.Healthy && (found < 0 || p.leads(k, found)) {
			found = k
		}
	}
	return found
}

// leads says whether a healthy voter is to lead rather than another.
func (p *planner) leads(a, b int) bool {
	one, two := p.s.Ring.Members[a].Since, p.s.Ring.Members[b].Since
	switch settled := p.settled(one); {
	case p.leaving(a) != p.leaving(b):
		return p.leaving(b)
	case settled != p.settled(two):
		return settled
	case settled:
		return p.createdAt(a).After(p.createdAt(b))
	}
	return one.Before(two)
}

// settled says whether a member that has been healthy since then is connected for long enough that etcd counts it.
func (p *planner) settled(since time.Time) bool {
	return !since.IsZero() && p.s.Now.Sub(since) >= p.s.Limits.SettledAfter
}

func (p *planner) createdAt(k int) time.Time {
	if i := p.join.Hosts[k].Machine(); i >= 0 {
		return p.s.Machines[i].CreatedAt
	}
	return time.Time{}
}

// removeDead is step 5: a dead voter goes although voters drop below desired for that moment, where
// etcd would take no replacement while it is listed. That is also so if the host that waits has come
// back at its address, for etcd lists a peer URL once, and no other replacement can be made: one whose
// learner gave way before is none. Nothing goes while a learner is on its way, which needs no place: what is taken
// for dead may only be slow. The rest has quorum without it, or decide had stopped.
func (p *planner) removeDead() []Action {
	s := p.s
	w := p.waiting(anyMachine)
	if w < 0 || p.hasLearner() {
		return nil
	}
	accepts, _ := s.Ring.Accepts()
	otherWay := p.waiting(func(i int) bool {
		return p.hostsNothing(i) && p.s.Nodes[p.join.Node(i)].GaveWayAt.IsZero()
	}) >= 0
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		machine, uid, ok := p.goes(k)
		if !ok || member.Learner || !s.Dead(member) || s.Now.Sub(member.Since) < s.Limits.SettledAfter {
			continue
		}
		if accepts && (otherWay || !slices.Contains(p.join.Members(w), k)) {
			continue
		}
		waits := s.Machines[w].Name
		return []Action{{
			Kind: RemoveVoter, Step: 5, Machine: machine, UID: uid, Member: member.ID, MemberName: member.Name,
			Why: fmt.Sprintf("it is dead, %s, and etcd takes no member for Machine %s while it is listed", p.going(k), waits),
		}}
	}
	return nil
}

// Accepts says whether etcd would add a member: from 3.7 on, if a quorum of one voter more than now
// is connected to the leader (a single voter always accepts), before that if all voters are.
func (r *Ring) Accepts() (bool, string) {
	voters, healthy := r.Voters()
	want := voters
	if atLeast(r.Version, 3, 7) && voters > 1 {
		want = Size(voters + 1)
	}
	if healthy >= want {
		return true, ""
	}
	return false, fmt.Sprintf("etcd adds no member while %d of %s are healthy; it wants %d", healthy, nVoters(voters), want)
}

// atLeast compares the major and minor numbers of a version such as "3.7.3". One that cannot be read
// is taken to be older: the stricter rule.
func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, err1 := strconv.Atoi(parts[0])
	b, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}

// waiting is the Machine whose ready Node waits for a member and that suits; Nodes that gave way come
// last, the oldest first. -1 if there is none. A stale voter at its address is not its member.
func (p *planner) waiting(suits func(machine int) bool) int {
	best := -1
	for i := range p.s.Machines {
		m, n := &p.s.Machines[i], p.join.Node(i)
		if m.Deleting() || m.Mirrored || !m.ControlPlane() || n < 0 || !p.s.Nodes[n].Ready || len(p.s.Nodes[n].Addresses) == 0 || !suits(i) {
			continue
		}
		if slices.ContainsFunc(p.join.Members(i), func(k int) bool { return !p.join.Stale(k) }) || !p.s.Guard.has(p.s.Nodes[n].Name) || p.doomed(i) {
			continue
		}
		if best < 0 || p.sooner(i, best) {
			best = i
		}
	}
	return best
}

func anyMachine(int) bool { return true }

// doomed says whether a Machine that is being deleted claims the host of this one, and takes it along when it goes.
func (p *planner) doomed(machine int) bool {
	return slices.ContainsFunc(p.s.Claimants, func(c Machine) bool {
		if !c.Deleting() {
			return false
		}
		goes, _ := p.s.reached(&c)
		return goes != nil && goes.Name == p.s.Machines[machine].Name
	})
}

func (p *planner) hostsNothing(machine int) bool {
	is, _ := p.join.Hosting(machine)
	return is == HostsNothing
}

func (p *planner) hasLearner() bool {
	return slices.ContainsFunc(p.s.Ring.Members, func(m Member) bool { return m.Learner })
}

func (p *planner) sooner(a, b int) bool {
	one, two := &p.s.Nodes[p.join.Node(a)], &p.s.Nodes[p.join.Node(b)]
	return cmp.Or(
		one.GaveWayAt.Compare(two.GaveWayAt),
		one.CreatedAt.Compare(two.CreatedAt),
		cmp.Compare(one.Name, two.Name),
	) < 0
}

// promote is step 6: a learner that caught up becomes a voter if its Machine is live and hooked, a seat is free, and the quorum
// guard is sized for one voter more.
func (p *planner) promote() []Action {
	if !p.seat() || p.holdsPromotion() {
		return nil
	}
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		i := p.join.Hosts[k].Machine()
		if !member.Learner || i < 0 || !p.s.Steady(member) {
			continue
		}
		if m := &p.s.Machines[i]; !m.Deleting() && !m.Mirrored && m.Hook == Ours && m.Latch == Ours && !p.doomed(i) {
			return []Action{{
				Kind: Promote, Step: 6, Machine: m.Name, UID: m.UID, Member: member.ID, MemberName: member.Name,
				Why: fmt.Sprintf("it is %d entries behind the leader, its Machine is hooked, and a seat is free", p.s.Lag(member)),
			}}
		}
	}
	return nil
}

// seat says whether a voter may be added: one is missing, or one is about to go and can. An even
// number of voters is only ever passed through.
func (p *planner) seat() bool {
	voters, _ := p.s.Ring.Voters()
	if voters != p.s.Desired {
		return voters < p.s.Desired
	}
	for k := range p.s.Ring.Members {
		if _, _, ok := p.goes(k); ok && !p.s.Ring.Members[k].Learner {
			return true
		}
	}
	return false
}

// addLearner is step 7: a ready Node whose live Machine hosts nothing gets a member, one learner at a time.
func (p *planner) addLearner() []Action {
	if p.hasLearner() {
		return nil
	}
	// A Machine that cannot be hooked gets no member: see stuck.
	i := p.waiting(func(i int) bool {
		return p.hostsNothing(i) && p.s.Machines[i].Hook == Ours && p.s.Machines[i].Latch == Ours
	})
	if i < 0 {
		return nil
	}
	if accepts, _ := p.s.Ring.Accepts(); !accepts {
		return nil
	}
	m, node := &p.s.Machines[i], &p.s.Nodes[p.join.Node(i)]
	peer, ok := p.peerURL(node)
	if !ok {
		return nil
	}
	// Now, while nothing waits for it: later each step of the replacement would, and a leader that sends a snapshot must not change.
	if leader := p.s.Ring.find(p.s.Ring.Leader); leader >= 0 {
		_, _, goes := p.goes(leader)
		if to := p.successor(leader); goes && to >= 0 && !p.leaving(to) {
			return []Action{p.moveLeader(7, leader, to, fmt.Sprintf("the leader is to be replaced, and a member is about to be added for Machine %s", m.Name))}
		}
	}
	return []Action{{
		Kind: AddLearner, Step: 7, Machine: m.Name, UID: m.UID, Node: node.Name, PeerURL: peer,
		Why: fmt.Sprintf("Node %s is ready and has no member", node.Name),
	}}
}

// peerURL is the peer URL of a new member: scheme, port and address family are those of the leader's.
func (p *planner) peerURL(node *Node) (string, bool) {
	u, ok := p.leaderURL()
	addr, has := p.address(node)
	if !ok || !has {
		return "", false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		return "", false
	}
	return (&url.URL{Scheme: u.Scheme, Host: netip.AddrPortFrom(addr, uint16(port)).String()}).String(), true
}

// address is where a Node's member listens: at the address of the leader's family, if the Node has one.
func (p *planner) address(node *Node) (addr netip.Addr, ok bool) {
	if len(node.Addresses) == 0 {
		return addr, false
	}
	addr = node.Addresses[0]
	if u, ok := p.leaderURL(); ok {
		if known, err := netip.ParseAddr(u.Hostname()); err == nil {
			if n := slices.IndexFunc(node.Addresses, func(a netip.Addr) bool { return a.Unmap().Is4() == known.Unmap().Is4() }); n >= 0 {
				addr = node.Addresses[n]
			}
		}
	}
	return addr.Unmap(), true
}

// leaderURL is the leader's peer URL.
func (p *planner) leaderURL() (*url.URL, bool) {
	leader := p.s.Ring.Member(p.s.Ring.Leader)
	if leader == nil || len(leader.PeerURLs) == 0 {
		return nil, false
	}
	u, err := url.Parse(leader.PeerURLs[0])
	return u, err == nil
}

// explainWaiting says what every deletion that is not finished waits for, where nothing is to be done now.
func (p *planner) explainWaiting() {
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if !m.Deleting() || m.Mirrored || m.Hook == Absent { // without a hook: finalRelease tells
			continue
		}
		k := p.join.Voter(i)
		if p.s.Mode == Guard {
			p.note(ReplacementWaits, m.Name, "Machine %s is held until cluster-etcd-operator has moved its etcd member and taken its hook off; see that operator's log", m.Name)
			continue
		}
		if k < 0 {
			if is, why := p.join.Hosting(i); is == HostsUnknown {
				p.note(ReplacementWaits, m.Name, "Machine %s is held: %s", m.Name, why)
			}
			continue
		}
		p.note(ReplacementWaits, m.Name, "Machine %s is held, it hosts etcd voter %s: %s", m.Name, &p.s.Ring.Members[k], p.blocker())
	}
}

// blocker is what keeps a replacement from getting on.
func (p *planner) blocker() string {
	voters, alive := p.s.Ring.Voters()
	switch {
	case len(p.s.Ring.Alarms) > 0:
		return "etcd refuses every write until its alarm is disarmed"
	case alive < Size(voters):
		return fmt.Sprintf("%d of %s are healthy, and quorum is %d", alive, nVoters(voters), Size(voters))
	case p.s.OtherDriver != "":
		return "Holdfast leaves etcd's members to cluster-etcd-operator"
	case p.s.ForeignLock():
		return p.s.foreignLock()
	case p.s.Desired == 0:
		return "how many voters are wanted is not known"
	}
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		if !member.Learner {
			continue
		}
		switch i := p.join.Hosts[k].Machine(); {
		case i < 0:
			return fmt.Sprintf("learner %s cannot be joined to one Machine", member)
		case !member.Started():
			return fmt.Sprintf("the learner on Machine %s has not started", p.s.Machines[i].Name)
		case !member.Healthy:
			return fmt.Sprintf("learner %s does not answer, as one that is still being sent its data: %s", member, member.Why)
		case !p.s.CaughtUp(member):
			return fmt.Sprintf("learner %s is %s", member, p.behind(member))
		case !p.s.Steady(member):
			return fmt.Sprintf("learner %s has caught up, and is promoted once it has kept up for %s", member, p.s.Limits.SteadyFor)
		case p.s.Machines[i].Hook != Ours || p.s.Machines[i].Latch != Ours:
			return fmt.Sprintf("learner %s has caught up, and is promoted once Machine %s has hook and latch", member, p.s.Machines[i].Name)
		case p.seat() && p.holdsPromotion():
			return fmt.Sprintf("learner %s has caught up, and is promoted once the quorum guard's budget keeps drains from taking one voter too many", member)
		}
	}
	if i := p.waiting(anyMachine); i >= 0 {
		if accepts, why := p.s.Ring.Accepts(); !accepts {
			return why
		}
		_, why := p.join.Hosting(i)
		if m := &p.s.Machines[i]; m.Hook != Ours || m.Latch != Ours {
			why = "it has to be hooked first"
		} else if _, ok := p.peerURL(&p.s.Nodes[p.join.Node(i)]); why == "" && !ok {
			why = "the leader's peer URL does not say on which port one would listen"
		}
		return fmt.Sprintf("Machine %s waits for a member: %s", p.s.Machines[i].Name, cmp.Or(why, "it is added next"))
	}
	if voters > p.s.Desired {
		return fmt.Sprintf("%d of %s are healthy on a Machine or Node, and without it %d have to be; mend the others, or delete their Machines to have them replaced", p.serving(-1), nVoters(voters), p.s.Desired)
	}
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if m.Deleting() || m.Mirrored || !m.ControlPlane() || len(p.join.Members(i)) > 0 {
			continue
		}
		if n := p.join.Node(i); n >= 0 && p.s.Nodes[n].Ready && !p.s.Guard.has(p.s.Nodes[n].Name) {
			return fmt.Sprintf("Node %s of Machine %s has no pod of the quorum guard yet", p.s.Nodes[n].Name, m.Name)
		}
		return fmt.Sprintf("Machine %s has no ready Node yet", m.Name)
	}
	return "no other control-plane Machine waits for its place; create one"
}
