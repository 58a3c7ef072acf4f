package main

import (
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// config is one control plane to explore, and what may happen to it.
type config struct {
	name     string
	voters   int    // at first
	desired  int    // wanted
	then     int    // wanted from some time on, 0 for never
	version  string // etcd's
	spares   int    // Machines that are created in the course of it
	faults   int    // members that die, within etcd's tolerance unless beyond
	recs     int    // reconcilers at once
	learners int    // at a time, for Holdfast; 0 is 1
	lower    int    // of the voters at first, those whose etcd takes one learner at a time
	lowNew   bool   // the etcd of every new host takes one learner at a time
	bare     bool   // the control plane has yet to be adopted
	born     bool   // new Machines come with hook and latch
	broken   int    // new Machines on whose hosts etcd never starts, at once
	stays    bool   // the Node of a terminated Machine may stay, not ready
	deletes  int    // Machines that are deleting at once, at most; 0 for any number
	escape   bool   // people take hooks and latches off, also two at once
	strays   bool   // a fault may also be a voter that somebody lists by hand, and that never starts
	nodes    bool   // a fault may also be the loss of a Node object
	rehomes  bool   // a fault may also be a host that comes back at another address, and it may go back to the old one
	outage   bool   // Holdfast does not answer admission for a while, at any time
	lifted   bool   // a person lifts rules
	hostile  bool   // automation strips hooks, people put them back, cluster-etcd-operator takes them off
	moves    bool   // etcd's leader moves by itself
	left     bool   // a person lifts rule escape-hatch, and the override is left behind
	beyond   bool   // more fails than etcd tolerates, and people force what forbids it
	flees    bool   // a Machine may be gone before it was recorded what was just added to it
	windows  bool   // between second look and call, the very member that the call is about may die or come back, its host go, its Machine be let go
	guard    bool   // Holdfast keeps the quorum guard; a fault may also be a person who drains a Node
	set      bool   // Holdfast's set creates and deletes Machines; the spares are how many it creates
	edits    int    // how often a person edits its template
	onDelete bool   // it replaces a Machine only once somebody has deleted it
	domains  int    // failure domains of the set
	crowded  bool   // at first all its Machines are in one
	indexes  bool   // its Machines have indexes
	barren   int    // Machines that get no instance, at once
	blind    bool   // planted: reconcilers apply what they decided on at first sight, without a lock

	finds membership.Invariant // what the exploration is known to find

	ids   admission.Identities
	users [requests]admission.User
	hosts [slots]host
}

func (c *config) new() bool { return c.version == "3.7.3" }

func (c *config) start() state {
	var s state
	for i := range c.voters {
		o := &s.at[i]
		o.set(machine, live)
		o.set(instance, 1)
		o.set(node, ready)
		o.set(member, voter)
		o.set(own, 1)
		if i < c.lower {
			o.set(lower, 1)
		}
		if !c.bare {
			o.set(hook, 1)
			o.set(latch, 1)
			o.set(evidence, 1)
			o.set(record, recHere)
		}
		if c.guard && !c.bare {
			o.set(pod, podReady)
		}
		if c.indexes {
			o.set(index, uint32(i)+1)
		}
		if c.domains > 0 {
			o.set(domain, uint32(i%c.domains)+1)
		}
		if c.crowded {
			o.set(domain, 1)
		}
	}
	s.at[0].set(leads, 1)
	s.ctl = ctl(c.faults)<<faultShift | ctl(c.spares)<<spareShift | ctl(c.edits)<<editShift
	if c.guard && !c.bare {
		s.size(max(1, c.voters-1))
	}
	return s
}

// what happens between two states.
type what uint8

const (
	decides what = iota
	records
	crashes
	confirms
	applies
	marks // a Node that gives way, or takes the guard pod of a Machine that is let go away, and no more
	asks
	asksBoth // two deletions are decided on one Snapshot
	creates
	createsBroken
	createsBarren
	setDecides
	setForgets
	setDeletes
	edited
	arrives
	starts
	catchesUp
	passes // time
	dies
	returns
	drains  // the instance stops before the Machine is gone
	cordons // the machine controller is about to drain it
	goes
	goesLeavingNode
	probes // the readiness of a guard pod is what its member is
	evicts // a person drains a Node
	uncordons
	loses // a Machine its Node object
	rehomes
	goesHome
	listed // by hand
	wants
	expires
	elects
)

type event struct {
	what     what
	rec      int8
	slot, to int8
	request  request
	outage   bool // Holdfast did not answer
	doing    doing
	set      setDoing
}

// steps calls emit with every state that can come next, not in canonical form, and fail with every
// step that breaks an invariant.
func (e *explorer) steps(s *state, emit func(*state, event), fail func(membership.Invariant, string, event)) {
	v := e.view(s)
	for r := range e.c.recs {
		e.reconcile(s, v, r, emit, fail)
	}
	e.requests(s, v, emit, fail)
	if e.c.set {
		e.setSteps(s, v, emit, fail)
	}
	e.nature(s, emit)
}

func (e *explorer) reconcile(s *state, v *view, r int, emit func(*state, event), fail func(membership.Invariant, string, event)) {
	d := s.rec(r)
	a := act{doing: d}
	if d.stage() != idle {
		slot, _ := s.find(target(r)) // SizeGuard is about none
		a.slot = int8(slot)
		if d.kind() == membership.KindMoveLeader {
			follower, _ := s.find(to(r))
			a.to = int8(follower)
		}
		next := *s
		next.forget(r)
		emit(&next, event{what: crashes, rec: int8(r), slot: a.slot, doing: d})
	}
	ev := event{rec: int8(r), slot: a.slot, to: a.to, doing: d}
	switch d.stage() {
	case idle:
		if r == 1 && s.rec(0) == idle {
			return // the other one does the same
		}
		for way := range 2 {
			e.look(s, e.plan(v, s, way), r, emit, fail)
		}
	case looked:
		switch {
		case e.c.blind:
			e.apply(s, v, r, a, emit, fail)
		case d.kind() == membership.KindAddHook, d.kind() == membership.KindRecordRelease, d.kind() == membership.KindSizeGuard, d.kind() == membership.KindCreateGuardPod:
			e.apply(s, v, r, a, emit, fail)
		default:
			if other := s.rec(1 - r); d.locks() && other.stage() == confirmed && other.locks() {
				return // the other one has the lock
			}
			for way := range 2 {
				for _, again := range e.plan(v, s, way).acts {
					if a != again {
						continue
					}
					ev.what = confirms
					if d.kind() == membership.KindPromote {
						switch o := s.at[a.slot]; {
						case !o.is(machine) || !o.is(hook):
							fail(membership.InvariantHookedPromotion, "its Machine does not carry the hook", ev)
						case o.get(machine) == deleting:
							fail(membership.InvariantLivePromotion, "its Machine is deleting", ev)
						}
					}
					next, now := *s, d&^stageMask|confirmed
					if d.kind() == membership.KindRemoveVoter && s.at[a.slot].healthy() {
						now |= wasUp
						if n := s.replacements(int(a.slot)); n < s.least(e.c) {
							fail(membership.InvariantVoterCount, "too few would be left that vote, answer and have a host", ev)
						}
					}
					next.setRec(r, now)
					emit(&next, ev)
					return
				}
			}
		}
	case confirmed:
		e.apply(s, v, r, a, emit, fail)
	}
}

// look is a first look: one of the plan's actions is on its way.
func (e *explorer) look(s *state, p *plan, r int, emit func(*state, event), fail func(membership.Invariant, string, event)) {
	seen := *s
	if p.writes {
		for i := range seen.at {
			seen.at[i].set(record, uint32(p.records[i]))
		}
	}
	if p.cleans {
		for i := range seen.at {
			seen.recorded(i, uint32(p.ledger[i]))
		}
	}
	if seen != *s {
		emit(&seen, event{what: records, rec: int8(r)})
	}
	if p.violated != "" {
		fail(p.violated, "Decide had to withdraw its own plan", event{what: decides, rec: int8(r)})
	}
	if p.changes > 1 {
		fail(membership.InvariantOneChange, "two membership changes in one round", event{what: decides, rec: int8(r)})
	}
	for _, a := range p.acts {
		next := seen
		next.capture(r, a)
		emit(&next, event{what: decides, rec: int8(r), slot: a.slot, to: a.to, doing: a.doing})
	}
}

// putHook is AddHook: the Machine is read anew, and changed if it is the same and live.
func (s *state) putHook(a act) bool {
	o := &s.at[a.slot]
	if a.about() != recHere || o.get(machine) != live {
		return false
	}
	if a.has(putHook) {
		o.set(hook, 1)
	}
	if a.has(putLatch) {
		o.set(latch, 1)
	}
	if a.has(putEvidence) {
		o.set(evidence, 1)
	}
	if a.has(oldEvidence) {
		o.set(evidence, 0)
	}
	return true
}

// apply makes an action happen. That its answer may be lost needs no state of its own: a reconciler
// that got it remembers no more than one that did not.
func (e *explorer) apply(s *state, v *view, r int, a act, emit func(*state, event), fail func(membership.Invariant, string, event)) {
	ev := event{what: applies, rec: int8(r), slot: a.slot, to: a.to, doing: a.doing}
	next := *s
	next.forget(r)
	if a.kind() == membership.KindReleaseHook {
		o := &next.at[a.slot]
		answer := e.replies(v, s, 0)[a.slot][askRelease]
		if a.about() != recHere || o.get(machine) != deleting || answer.slot == 0 {
			return
		}
		if o.is(pod) {
			next.unpod(int(a.slot))
			stopped := next // it crashes before the Machine is changed
			emit(&stopped, event{what: marks, rec: int8(r), slot: a.slot, doing: a.doing})
		}
		hooked := o.is(hook)
		*o = answer.slot&^guardPod | *o&(hidden|guardPod)
		if hooked && !o.is(hook) && o.get(member) != noMember && o.is(own) {
			fail(membership.InvariantRelease, "its member is listed", ev)
		}
		e.judge(s, &next, ev, fail)
		emit(&next, ev)
		return
	}
	if a.kind() == membership.KindRecordRelease {
		next.recorded(int(a.slot), a.about())
		emit(&next, ev)
		return
	}
	if a.kind() == membership.KindAddHook {
		if next.putHook(a) {
			emit(&next, ev)
		}
		return
	}
	if a.guards() {
		if next.guard(a) {
			emit(&next, ev)
		}
		return
	}
	if a.kind() == membership.KindRemoveLearner && a.has(givesWay) {
		next.giveWay(int(a.slot))
		stopped := next // it crashes before it asks etcd
		emit(&stopped, event{what: marks, rec: int8(r), slot: a.slot, doing: a.doing})
	}
	wasUp := a.kind() == membership.KindRemoveVoter && s.at[a.slot].healthy() && (e.c.blind || a.has(wasUp))
	if !next.etcd(e.c, a) {
		return
	}
	switch voters, healthy := next.tally(); {
	case healthy <= voters/2:
		fail(membership.InvariantQuorum, "no quorum is left", ev)
	case a.kind() == membership.KindPromote && voters > s.wanted(e.c)+1:
		fail(membership.InvariantVoterCount, "too many voters", ev)
	case wasUp && voters < s.least(e.c):
		fail(membership.InvariantVoterCount, "too few voters", ev)
	}
	emit(&next, ev)
}

// requests are what people, automation and custodians ask for.
func (e *explorer) requests(s *state, v *view, emit func(*state, event), fail func(membership.Invariant, string, event)) {
	replies, going := e.replies(v, s, 0), 0
	for _, o := range s.at {
		if o.get(machine) == deleting {
			going++
		}
	}
	room := e.c.deletes == 0 || going < e.c.deletes
	for i, o := range s.at {
		if !o.is(machine) || i > 0 && o == s.at[i-1] {
			continue
		}
		for r := range askRelease {
			if !e.c.allows(r) || (r == askDelete || r == askLifted) && !room {
				continue
			}
			e.asked(s, i, replies[i][r], event{what: asks, slot: int8(i), request: r}, emit, fail)
			if e.c.outage {
				e.asked(s, i, e.replies(v, s, 1)[i][r], event{what: asks, slot: int8(i), request: r, outage: true}, emit, fail)
			}
		}
	}
	if e.c.deletes == 0 || going+2 <= e.c.deletes {
		e.pairs(s, replies, askDelete, emit, fail)
	}
	if e.c.escape {
		e.pairs(s, replies, askEscape, emit, fail)
	}
}

// asked stores what came of a request, and judges it.
func (e *explorer) asked(s *state, i int, answer reply, ev event, emit func(*state, event), fail func(membership.Invariant, string, event)) {
	o := s.at[i]
	if answer.slot == 0 || answer.slot == o&^hidden {
		return
	}
	next := *s
	next.at[i] = answer.slot | o&hidden
	if answer.lifted && !o.hooked() {
		if !e.c.beyond {
			return
		}
		next.ctl |= beyond
	}
	if ev.request == askForced {
		if e.c.left && s.ctl&beyond != 0 {
			return // one override: whether it was made use of is to be told
		}
		next.ctl |= beyond
	}
	e.judge(s, &next, ev, fail)
	emit(&next, ev)
}

// pairs are two such requests at once, for two Machines, both decided on what was so before either was stored.
func (e *explorer) pairs(s *state, replies *[slots][requests]reply, r request, emit func(*state, event), fail func(membership.Invariant, string, event)) {
	changes := func(i int) bool {
		answer := replies[i][r].slot
		return answer != 0 && answer != s.at[i]&^hidden
	}
	for i := range s.at {
		for k := i + 1; k < slots && changes(i); k++ {
			if i > 0 && s.at[i] == s.at[i-1] && k > i+1 || !changes(k) {
				continue
			}
			next := *s
			next.at[i] = replies[i][r].slot | s.at[i]&hidden
			next.at[k] = replies[k][r].slot | s.at[k]&hidden
			ev := event{what: asksBoth, slot: int8(i), to: int8(k), request: r}
			e.judge(s, &next, ev, fail)
			emit(&next, ev)
		}
	}
}

// judge judges what a request made of hooks and latches, by its own arithmetic: what is gone from a deleting Machine
// does not come back, and nothing that holds a healthy voter goes unless etcd stands its loss.
func (e *explorer) judge(before, after *state, ev event, fail func(membership.Invariant, string, event)) {
	for i, o := range after.at {
		was := before.at[i]
		if was.get(machine) == deleting && (!was.is(hook) && o.is(hook) || !was.is(latch) && o.is(latch)) {
			fail(membership.InvariantNoRegain, "a hook returns", ev)
		}
		if o.freed() && !was.freed() && o.healthy() && o.is(own) && after.ctl&beyond == 0 {
			if voters, left := after.survivors(); left <= voters/2 {
				fail(membership.InvariantRelease, "nothing holds it any more, and without it etcd has no quorum", ev)
			}
		}
	}
}

func (c *config) allows(r request) bool {
	switch r {
	case askDelete, askRelease:
		return true
	case askLifted:
		return c.lifted
	case askEscape, askUnhook, askUnlatch:
		return c.escape
	case askForced:
		return c.beyond || c.left
	case askSetDelete:
		return c.set
	case askStrip, askStripHook, askStripLatch, askReadd, askCustodian, requests:
	}
	return c.hostile
}

// nature is what hosts, etcd and the machine controller do by themselves.
func (e *explorer) nature(s *state, emit func(*state, event)) {
	quorate, machines, broke := s.quorate(), 0, 0
	for _, o := range s.at {
		if o.is(machine) {
			machines++
		}
		broke += int(o.get(broken))
	}
	empty := true // no Machine was put at an empty slot yet: they are all alike
	for i, o := range s.at {
		if i > 0 && o == s.at[i-1] {
			continue
		}
		then := func(w what, change func(*state)) {
			next := *s
			change(&next)
			emit(&next, event{what: w, slot: int8(i)})
		}
		vacant := o&^targets == 0
		first := !vacant || empty
		empty = empty && !vacant
		if !o.is(machine) && s.spares() > 0 && machines < e.c.voters+e.c.spares && first && !e.c.set {
			for k := range 2 {
				if k == 1 && broke >= e.c.broken {
					break
				}
				then(creates+what(k), func(n *state) {
					n.ctl -= 1 << spareShift
					n.create(i, e.c.born)
					n.at[i].set(broken, uint32(k))
				})
			}
		}
		if o.is(machine) && !o.is(instance) && o.get(machine) == live && !o.is(barren) {
			then(arrives, func(n *state) { n.arrive(i) })
		}
		if e.c.guard {
			e.kubelets(s, i, then)
			if e.c.released(o) && o.get(node) == ready && !o.is(cordon) {
				then(cordons, func(n *state) { n.at[i].set(cordon, 1) })
			}
		}
		if e.c.released(o) && e.c.drained(s, i) && (e.c.windows || !s.inHand(i)) {
			if o.get(member) != noMember && o.is(own) && o.get(answers) == up {
				then(drains, func(n *state) { n.unpod(i); n.stop(i) })
			}
			then(goes, func(n *state) { n.terminate(i, false) })
			if e.c.stays && o.is(node) {
				then(goesLeavingNode, func(n *state) { n.terminate(i, true) })
			}
		}
		if e.c.left && o.get(lifts) == liftedNow && o.is(latch) && !s.acting(i) {
			then(expires, func(n *state) {
				n.at[i].set(lifts, liftedOnce)
				n.ctl &^= beyond // nothing came of it, so from here on it excuses nothing
			})
		}
		if e.c.nodes && o.is(node) && o.is(machine) && s.faults() > 0 {
			then(loses, func(n *state) {
				n.ctl -= 1 << faultShift
				n.at[i].set(node, noNode)
				n.at[i].set(gave, 0)
				n.at[i].set(cordon, 0)
				n.unpod(i)
			})
		}
		if e.c.strays && o.get(member) == noMember && s.faults() > 0 && first && !s.changing() {
			if voters, left := s.survivors(); left > (voters+1)/2 {
				then(listed, func(n *state) {
					n.ctl -= 1 << faultShift
					n.at[i].set(member, stray)
					n.at[i].set(answers, down)
				})
			}
		}
		e.etcdLives(s, i, quorate, then)
	}
	if e.c.then > 0 && s.ctl&rewanted == 0 && !s.changing() {
		next := *s
		next.ctl |= rewanted
		if d := next.setDoing(); d.stage() != setIdle {
			next.setSet(d | setStale)
		}
		emit(&next, event{what: wants})
	}
}

// replacements counts the other voters that started, answer, and have a Machine or Node.
func (s *state) replacements(i int) int {
	n := 0
	for k, o := range s.at {
		if k != i && o.get(member) == voter && o.get(answers) == up && (o.is(machine) || o.is(node)) {
			n++
		}
	}
	return n
}

// released says whether the machine controller may terminate a Machine. It takes it minutes, so that
// Holdfast has looked since a learner was added there, unless the configuration says otherwise. A
// voter was looked at before it was promoted, or when its control plane was adopted.
func (c *config) released(o slot) bool {
	return o.get(machine) == deleting && !o.is(hook) && !o.is(latch) && (c.flees || o.get(member) == noMember || o.is(record) || o.votes() && !c.bare)
}

// drained says whether the machine controller gets on with a Machine that is let go: it has cordoned the Node, and the guard
// pod goes.
func (c *config) drained(s *state, i int) bool {
	o := s.at[i]
	return !c.guard || o.get(node) != ready || o.is(cordon) && s.probed() && s.evictable(i)
}

// inHand says whether a reconciler is between second look and call of a change of the member at a slot.
func (s *state) inHand(i int) bool {
	for r := range 2 {
		if d := s.rec(r); d.stage() == confirmed && d.kind().Membership() && s.at[i].is(target(r)) {
			return true
		}
	}
	return false
}

// acting says whether a reconciler is between second look and any act on a slot.
func (s *state) acting(i int) bool {
	for r := range 2 {
		if s.rec(r).stage() == confirmed && s.at[i].is(target(r)) {
			return true
		}
	}
	return false
}

// changing says whether a reconciler is between second look and call of any change of members.
func (s *state) changing() bool {
	for r := range 2 {
		if d := s.rec(r); d.stage() == confirmed && d.kind().Membership() {
			return true
		}
	}
	return false
}

// etcdLives is what the member at one slot does by itself.
func (e *explorer) etcdLives(s *state, i int, quorate bool, then func(what, func(*state))) {
	o := s.at[i]
	m, runs := o.get(member), o.is(own) && o.is(machine) && o.is(instance) && !o.is(broken)
	if m == noMember {
		return
	}
	free := e.c.windows || !s.inHand(i)
	switch {
	case o.is(moved): // nobody reaches it
		if free {
			then(goesHome, func(n *state) { n.at[i].set(moved, 0) })
		}
	case m == unstarted && runs && quorate && s.starts(i):
		then(starts, func(n *state) { n.run(i, behind); n.heard(i) })
	case m == behind && o.get(answers) == up && quorate:
		then(catchesUp, func(n *state) { n.run(i, caughtUp) })
	case o.get(answers) != up && runs && m != unstarted && m != stray && free:
		then(returns, func(n *state) { n.at[i].set(answers, up) })
	}
	if o.get(answers) == down || m == behind && !o.is(stalled) {
		then(passes, func(n *state) { n.age(i) })
	}
	if o.get(answers) == up && s.faults() > 0 && free {
		over := o.votes() && !s.survives(i)
		if !over || e.c.beyond {
			then(dies, func(n *state) {
				n.ctl -= 1 << faultShift
				if over {
					n.ctl |= beyond
				}
				n.stop(i)
			})
		}
	}
	if e.c.rehomes && runs && !o.is(moved) && s.faults() > 0 && free && (!o.healthy() || s.survives(i)) {
		then(rehomes, func(n *state) {
			n.ctl -= 1 << faultShift
			n.stop(i)
			n.at[i].set(moved, 1)
		})
	}
	leader, led := s.find(leads)
	if o.healthy() && quorate && (!led || e.c.moves && leader != i) {
		then(elects, func(n *state) {
			if led {
				n.at[leader].set(leads, 0)
			}
			n.at[i].set(leads, 1)
		})
	}
}

// create puts a new Machine at an address.
func (s *state) create(i int, hooked bool) {
	s.at[i].set(machine, live)
	if hooked {
		s.at[i].set(hook, 1)
		s.at[i].set(latch, 1)
	}
}

// run lets a learner get on.
func (s *state) run(i int, as uint32) {
	s.at[i].set(member, as)
	s.at[i].set(answers, up)
	s.at[i].set(stalled, 0)
}

// age lets a member that does not answer be dead, and a learner that does not get on be stalled.
func (s *state) age(i int) {
	o := &s.at[i]
	if o.get(answers) == down {
		o.set(answers, dead)
		if o.is(pod) {
			o.set(pod, podWaits) // it was probed meanwhile
		}
	}
	if o.learner() {
		o.set(stalled, 1)
	}
}

// survives says whether etcd stands the loss of a voter beside all that is lost, let go, or let go within milliseconds.
func (s *state) survives(i int) bool {
	voters, left := s.survivors()
	for k, o := range s.at {
		if o.healthy() && !s.conceded(o) && (k == i || s.releasing(k)) {
			left--
		}
	}
	return left > voters/2
}

// releasing says whether a reconciler is between its second look at a slot and the release of what stands there.
func (s *state) releasing(i int) bool {
	for r := range 2 {
		if d := s.rec(r); d.stage() == confirmed && d.kind() == membership.KindReleaseHook && s.at[i].is(target(r)) {
			return true
		}
	}
	return false
}
