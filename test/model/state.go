package main

import (
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// slots is how many addresses a control plane has: five voters, two more Machines, and room for those
// that the fair environment adds.
const slots = 9

// slot is everything at one address: a Machine and its Node, and the member that is listed there. etcd
// lists a peer URL once, so there is never more than one.
type slot uint64

// field is some bits of a slot: the shift and, in the last three bits, the width.
type field uint16

// The low fields are what no Snapshot shows, so that slots sorted by all bits are sorted by those that
// it does show: a sorted state without its hidden bits is the key of a decision.
const (
	targetA field = 0<<3 | 1 // reconciler A's action is about this slot
	targetB field = 1<<3 | 1
	toA     field = 2<<3 | 1 // reconciler A moves the leader here
	toB     field = 3<<3 | 1
	targetS field = 4<<3 | 1 // the set is about to delete this Machine
	own     field = 5<<3 | 1 // the listed member runs, or would, on the host that stands here now
	broken  field = 6<<3 | 1 // etcd never starts on this host
	barren  field = 7<<3 | 1 // the Machine never gets an instance

	leads    field = 8<<3 | 1
	gave     field = 9<<3 | 2  // the Node gave way: 1 earlier, 2 last of all
	record   field = 11<<3 | 2 // of the listed member: recNone, recHere, recGone
	stalled  field = 13<<3 | 1
	answers  field = 14<<3 | 2 // of the listed member: up, down, dead
	member   field = 16<<3 | 3
	node     field = 19<<3 | 2
	instance field = 21<<3 | 1 // the Machine has one; without, it never had
	evidence field = 22<<3 | 1 // the Machine has evidence of the listed member
	latch    field = 23<<3 | 1
	hook     field = 24<<3 | 1
	machine  field = 25<<3 | 2
	ledger   field = 27<<3 | 2 // of the release ledger: recNone, recHere, recGone
	lifts    field = 29<<3 | 2 // a person lifted rule escape-hatch for the Machine: notLifted, liftedNow, liftedOnce
	pod      field = 31<<3 | 2 // the Node's guard pod: noPod, podWaits, podReady
	cordon   field = 33<<3 | 1 // the Node is cordoned

	outdated field = 34<<3 | 1 // the Machine differs from the set's template
	index    field = 35<<3 | 3 // the Machine's in the set, plus one; 0 for none
	domain   field = 38<<3 | 2 // the Machine's failure domain, plus one; 0 for none

	lower field = 40<<3 | 1 // the listed member takes one learner at a time, whatever the others do
	moved field = 41<<3 | 1 // the host has another address than the one at which its member is listed
	mute  field = 42<<3 | 1 // the listed voter takes part, and answers nobody but etcd
)

// targets are what reconcilers and the set are in the middle of at a slot.
const targets slot = 1<<5 - 1

const ( // lifts
	notLifted = iota
	liftedNow
	liftedOnce // the override is still there, and its hour is over
)

const hidden slot = 1<<8 - 1

// guardPod is what a request about the Machine changes nothing of.
const guardPod slot = 3 << 31

const ( // machine
	noMachine = iota
	live
	deleting
)

const ( // node
	noNode = iota
	notReady
	ready
)

const ( // member
	noMember = iota
	unstarted
	behind
	caughtUp
	voter
	stray // a voter that somebody listed by hand, and that never starts
)

const ( // answers
	up = iota
	down
	dead // down for longer than any limit
)

const ( // pod
	noPod    = iota
	podWaits // it is not ready
	podReady
)

const ( // record, and what an action is about
	recNone = iota
	recHere // the Machine that stands here
	recGone // one that stood here before
)

func (s slot) get(f field) uint32 { return uint32(s >> (f >> 3) & (1<<(f&7) - 1)) }
func (s slot) is(f field) bool    { return s.get(f) != 0 }
func (s *slot) set(f field, v uint32) {
	*s = *s&^((1<<(f&7)-1)<<(f>>3)) | slot(v)<<(f>>3)
}

// put sets several fields to the same.
func (s *slot) put(v uint32, fields ...field) {
	for _, f := range fields {
		s.set(f, v)
	}
}

func (s slot) votes() bool   { return s.get(member) >= voter }
func (s slot) heard() bool   { return s.votes() && s.get(answers) == up }    // what probes say
func (s slot) healthy() bool { return s.heard() || s.votes() && s.is(mute) } // what etcd knows
func (s slot) hooked() bool  { return s.is(hook) && s.is(latch) }
func (s slot) freed() bool   { return s.get(machine) == deleting && !s.is(hook) && !s.is(latch) } // nothing holds it any more
func (s slot) lives() bool   { return s.get(machine) == live }
func (s slot) going() bool   { return s.get(machine) == deleting }
func (s slot) learner() bool { return s.get(member) != noMember && !s.votes() }

// state is one situation of the control plane, and what the reconcilers are in the middle of.
type state struct {
	at  [slots]slot
	ctl ctl
}

// ctl is what is at no address: two reconcilers of 12 bits, then the budgets of spares and faults, then what the quorum
// guard's budget says, then what the set is in the middle of.
type ctl uint64

// doing is what one reconciler is in the middle of; zero is nothing.
//
//	0-1  idle, looked, confirmed or operating
//	2-5  quorum.Kind
//	6-7  about: which Machine of the slot; of SizeGuard underLock
//	8-11 flags, or of SizeGuard the number
type doing uint32

const ( // doing, first bits
	idle      = iota
	looked    // it has seen a Snapshot and decided on this action
	confirmed // a second look led to the same; a membership change is made under the lock
	operating // guard mode: cluster-etcd-operator is, not a reconciler
)

// underLock is what a SizeGuard is about that is made under the membership lock.
const underLock = recHere

const ( // doing, flags
	putHook     doing = 1 << (8 + iota) // AddHook, ReleaseHook
	putLatch                            // AddHook, ReleaseHook
	putEvidence                         // AddHook
	oldEvidence                         // AddHook: of a member that is not listed any more
	givesWay          = putHook         // RemoveLearner
	final             = putEvidence     // ReleaseHook
	wasUp             = putLatch        // RemoveVoter: the member was healthy at the second look
	doingMask         = 1<<12 - 1
	stageMask         = 3
	faultShift        = 24
	spareShift        = 26
	rewanted    ctl   = 1 << 28 // another number of voters is wanted by now
	beyond      ctl   = 1 << 29 // more failed than etcd tolerates, or a person lifted a rule that forbade it
	budgetShift       = 32
	budgetMask  ctl   = 15 << budgetShift // minAvailable plus one, 0 without a budget
	setShift          = 36
	setMask     ctl   = 1<<10 - 1 // a setDoing
	editShift         = 46        // how often the set's template is still edited
)

func do(kind membership.Kind, about uint32, flags doing) doing {
	return looked | doing(kind)<<2 | doing(about)<<6 | flags
}

func (d doing) stage() int            { return int(d & stageMask) }
func (d doing) kind() membership.Kind { return membership.Kind(d >> 2 & 15) }
func (d doing) about() uint32         { return uint32(d >> 6 & 3) }
func (d doing) has(f doing) bool      { return d&f != 0 }
func (d doing) number() int           { return int(d >> 8 & 15) }

// guards says whether an action is about the quorum guard.
func (d doing) guards() bool {
	return d.kind() == membership.KindSizeGuard || d.kind() == membership.KindCreateGuardPod || d.kind() == membership.KindDeleteGuardPod
}

// locks says whether an action is done under the membership lock.
func (d doing) locks() bool {
	return d.kind().Membership() || d.kind() == membership.KindReleaseHook && d.has(final) || d.kind() == membership.KindSizeGuard && d.about() == underLock
}

func (s *state) rec(r int) doing       { return doing(s.ctl>>(12*r)) & doingMask }
func (s *state) setRec(r int, d doing) { s.ctl = s.ctl&^(doingMask<<(12*r)) | ctl(d)<<(12*r) }

func (s *state) faults() int { return int(s.ctl >> faultShift & 3) }
func (s *state) spares() int { return int(s.ctl >> spareShift & 3) }

// budget is minAvailable of the quorum guard's budget; ok is false where there is no budget.
func (s *state) budget() (minAvailable int, ok bool) {
	n := int(s.ctl & budgetMask >> budgetShift) // one more than minAvailable
	return max(0, n-1), n > 0
}

func target(r int) field { return targetA + field(r)<<3 }
func to(r int) field     { return toA + field(r)<<3 }

// find is the first slot with a field set; ok is false if there is none.
func (s *state) find(f field) (i int, ok bool) {
	for i := range s.at {
		if s.at[i].is(f) {
			return i, true
		}
	}
	return 0, false
}

// forget makes a reconciler idle: it is done, or it crashed; nothing is remembered.
func (s *state) forget(r int) {
	s.setRec(r, 0)
	for i := range s.at {
		s.at[i].put(0, target(r), to(r))
	}
}

// capture makes a reconciler set out to do an action.
func (s *state) capture(r int, a act) {
	s.setRec(r, a.doing)
	if a.kind() == membership.KindSizeGuard {
		return // it is about no slot
	}
	s.at[a.slot].set(target(r), 1)
	if a.kind() == membership.KindMoveLeader {
		s.at[a.to].set(to(r), 1)
	}
}

// canon puts the state into the one form that it shares with all those that differ from it by the names
// of hosts and reconcilers alone. perm, if given, is permuted alike.
func (s *state) canon(perm *[slots]int) {
	if a, b := s.rec(0), s.rec(1); a < b && b.stage() != operating {
		s.setRec(0, b)
		s.setRec(1, a)
		for i, o := range s.at {
			if o&15 != 0 { // the targets of the two reconcilers
				s.at[i] = o&^15 | o&5<<1 | o&10>>1
			}
		}
	}
	for i := 1; i < slots; i++ {
		for k := i; k > 0 && s.at[k] > s.at[k-1]; k-- {
			s.at[k], s.at[k-1] = s.at[k-1], s.at[k]
			if perm != nil {
				perm[k], perm[k-1] = perm[k-1], perm[k]
			}
		}
	}
}

// count counts slots.
func (s *state) count(such func(slot) bool) (n int) {
	for _, o := range s.at {
		if such(o) {
			n++
		}
	}
	return n
}

// tally counts the voters, and those of them that answer.
func (s *state) tally() (voters, healthy int) { return s.count(slot.votes), s.count(slot.healthy) }

// quorate says whether etcd has quorum.
func (s *state) quorate() bool {
	voters, healthy := s.tally()
	return healthy > voters/2
}

// recorded writes a slot's part of the release ledger. A reconciler that read it before cannot write it any more.
func (s *state) recorded(i int, as uint32) {
	if s.at[i].get(ledger) == as {
		return
	}
	s.at[i].set(ledger, as)
	for r := range 2 {
		if s.rec(r).kind() == membership.KindRecordRelease {
			s.forget(r)
		}
	}
}

// countOf counts the slots with a field set.
func (s *state) countOf(f field) int { return s.count(func(o slot) bool { return o.is(f) }) }

// survivors counts the voters, and those that answer and are held by something. A learner that is let go while cluster-etcd-operator
// is about to promote it is a voter already.
func (s *state) survivors() (voters, left int) {
	voters, left = s.count(slot.votes), s.count(func(o slot) bool { return o.healthy() && !s.conceded(o) })
	if d := s.rec(operatorRec); d.stage() == operating && d.kind() == membership.KindPromote {
		if i, ok := s.find(target(operatorRec)); ok && s.conceded(s.at[i]) {
			voters++
		}
	}
	return voters, left
}

// conceded says whether a voter's loss is accepted: nothing holds its Machine any more, or its release is recorded and its
// guard pod gone for it.
func (s *state) conceded(o slot) bool {
	_, sized := s.budget()
	return o.freed() || sized && o.get(machine) == deleting && o.get(ledger) == recHere && !o.is(pod) && o.get(node) == ready
}

// wanted is how many voters are.
func (s *state) wanted(c *config) int {
	if s.ctl&rewanted != 0 {
		return c.then
	}
	return c.desired
}

func (s *state) learners() int { return s.count(slot.learner) }

// starts says whether etcd starts at an address: one that takes one learner does not while there are two.
func (s *state) starts(i int) bool { return !s.at[i].is(lower) || s.learners() < 2 }

// joined ends those members that take one learner, for another has started beside one.
func (s *state) joined(i int) {
	for k := range s.at {
		if o := &s.at[k]; k != i && o.is(lower) && o.get(member) != unstarted && s.learners() > 1 {
			s.stop(k)
			o.set(own, 0)
		}
	}
}

// The world's own doings, each on a state that is not in canonical form any more afterwards.

// stop ends a member's process.
func (s *state) stop(i int) {
	if s.at[i].get(answers) == up || s.at[i].is(mute) {
		s.at[i].set(answers, down)
	}
	s.at[i].put(0, mute, leads)
}

// unlist takes a member off etcd's list. A reconciler that is in the middle of something with that
// member can only fail, so it is idle.
func (s *state) unlist(i int) {
	s.at[i].put(0, member, answers, stalled, evidence, record, leads, own, lower, moved, mute)
	if s.at[i].get(ledger) == recGone {
		s.at[i].set(ledger, recNone) // of a member that is not listed and a Machine that is gone: it says nothing
	}
	for r := range 2 {
		d := s.rec(r)
		if d == 0 || !s.at[i].is(target(r)) && !s.at[i].is(to(r)) {
			continue
		}
		switch d.kind() {
		case membership.KindAddHook:
			if d.has(putEvidence) {
				s.setRec(r, d&^putEvidence|oldEvidence)
			}
		case membership.KindRecordRelease:
			if d.about() == recGone {
				s.forget(r) // what it writes says nothing any more
			}
		case membership.KindReleaseHook, membership.KindAddLearner, membership.KindCreateGuardPod, membership.KindDeleteGuardPod:
		default:
			s.forget(r)
		}
	}
}

// terminate takes a Machine away with its instance; its Node may stay.
func (s *state) terminate(i int, nodeStays bool) {
	o := &s.at[i]
	if o.get(member) != noMember {
		s.stop(i)
	}
	had := o.get(node)
	if o.is(targetS) {
		s.setSet(0) // it acts on that very Machine or on none
	}
	o.put(0, machine, hook, latch, evidence, instance, node, own, broken, barren, gave, lifts, outdated, index, domain, moved)
	if nodeStays && had != noNode {
		o.set(node, notReady)
	}
	s.unpod(i)
	if o.get(record) == recHere {
		o.set(record, recGone)
	}
	if o.get(ledger) == recHere {
		o.set(ledger, recNone)
		if o.get(member) != noMember {
			o.set(ledger, recGone)
		}
	}
	for r := range 2 {
		if d := s.rec(r); d != 0 && o.is(target(r)) && d.about() == recHere {
			s.setRec(r, d&^(3<<6)|recGone<<6)
			if d.kind() == membership.KindRecordRelease && o.get(member) == noMember {
				s.forget(r)
			}
		}
	}
}

// arrive gives a Machine its instance and a ready Node. A member that never started starts on
// whatever host stands at its address.
func (s *state) arrive(i int) {
	o := &s.at[i]
	o.set(instance, 1)
	o.set(node, ready)
	o.set(cordon, 0)
	if o.get(member) == unstarted {
		o.set(own, 1)
	}
}

// refuses says whether etcd adds no member: before 3.7 while a voter is not connected to its leader, then while too few are.
func (s *state) refuses(c *config) bool {
	voters, connected := s.tally()
	if c.new() && voters > 1 {
		return connected < (voters+1)/2+1
	}
	return connected < voters
}

// etcd makes one change of membership, unless it refuses.
func (s *state) etcd(c *config, a act) (done bool) {
	voters, healthy := s.tally()
	leader, led := s.find(leads)
	if healthy <= voters/2 || !led {
		return false
	}
	o := &s.at[a.slot]
	switch a.kind() {
	case membership.KindAddLearner:
		if s.learners() >= max(1, c.learners) || o.get(member) != noMember || s.refuses(c) {
			return false
		}
		o.set(member, unstarted)
		o.set(answers, down)
		o.set(own, o.get(instance))
		if c.lowNew {
			o.set(lower, 1)
		}
	case membership.KindRemoveLearner, membership.KindRemoveVoter:
		if o.get(member) == noMember || o.healthy() && healthy-1 < (voters-1)/2+1 {
			return false
		}
		s.unlist(int(a.slot))
	case membership.KindPromote:
		if o.get(member) != caughtUp {
			return false
		}
		o.set(member, voter)
		o.set(stalled, 0)
	case membership.KindMoveLeader:
		if !s.at[a.to].healthy() || !s.at[leader].heard() {
			return false
		}
		o.set(leads, 0)
		s.at[a.to].set(leads, 1)
	default:
		return false
	}
	return true
}

// giveWay marks a Node as the last of those that gave way.
func (s *state) giveWay(i int) {
	if s.at[i].get(node) == noNode {
		return
	}
	for k := range s.at {
		if s.at[k].get(gave) == 2 {
			s.at[k].set(gave, 1)
		}
	}
	s.at[i].set(gave, 2)
}
