package main

import (
	"slices"

	"github.com/holdfast-dev/holdfast/internal/membership"
)

// nature is what hosts, etcd and the machine controller do by themselves, and who creates Machines.
func (e *explorer) nature(s *state) {
	quorate := s.quorate()
	room := s.spares() > 0 && s.countOf(machine) < e.c.voters+e.c.spares && !e.c.set
	empty := true // no Machine was put at an empty slot yet: they are all alike
	for i, o := range s.at {
		if i > 0 && o == s.at[i-1] {
			continue
		}
		then := func(w what, change func(*state)) { e.then(s, event{what: w, slot: int8(i)}, change) }
		fault := func(w what, change func(*state)) {
			then(w, func(n *state) { n.ctl -= 1 << faultShift; change(n) })
		}
		vacant := o&^targets == 0
		first := !vacant || empty
		empty = empty && !vacant
		if room && first && !o.is(machine) {
			e.creation(s, i, then)
		}
		e.machineController(s, i, then, fault)
		e.mishaps(s, i, first, then, fault)
		e.etcdLives(s, i, quorate, then, fault)
	}
	if e.c.then > 0 && s.ctl&rewanted == 0 && !s.changing() {
		e.then(s, event{what: wants}, func(n *state) {
			n.ctl |= rewanted
			if d := n.setDoing(); d.stage() != setIdle {
				n.setSet(d | setStale)
			}
		})
	}
}

// creation is a new Machine at one slot, without a set. On the host of a broken one etcd never starts.
func (e *explorer) creation(s *state, i int, then func(what, func(*state))) {
	for k := range 2 {
		if k == 1 && s.countOf(broken) >= e.c.broken {
			break
		}
		then(creates+what(k), func(n *state) {
			n.ctl -= 1 << spareShift
			n.create(i, e.c.born)
			n.at[i].set(broken, uint32(k))
		})
	}
}

// machineController is what the machine controller and the kubelet do to the Machine at one slot: it gets its instance, and goes
// once nothing holds it.
func (e *explorer) machineController(s *state, i int, then, fault func(what, func(*state))) {
	o := s.at[i]
	if o.is(machine) && !o.is(instance) && o.get(machine) == live && !o.is(barren) {
		then(arrives, func(n *state) { n.arrive(i) })
	}
	if e.c.guard {
		e.drains(s, i, then, fault)
		if o.leaves() && o.get(node) == ready && !s.cordoned() {
			then(cordons, func(n *state) { n.at[i].set(cordon, 1) })
		}
		if o.leaves() && o.is(cordon) && o.is(pod) && o.is(latch) && !s.late() && s.evictable(i) {
			then(unguards, func(n *state) { n.unpod(i) })
		}
	}
	if !e.c.released(o) || !e.c.drained(s, i) || !e.c.windows && s.inHand(i) {
		return
	}
	if o.get(member) != noMember && o.is(own) && (o.get(answers) == up || o.is(mute)) {
		then(drains, func(n *state) { n.unpod(i); n.stop(i) })
	}
	then(goes, func(n *state) { n.terminate(i, false) })
	if e.c.stays && o.is(node) {
		then(goesLeavingNode, func(n *state) { n.terminate(i, true) })
	}
}

// mishaps are the faults at one slot that are not its member's: an override that expires unused, a Node object that is lost, a voter
// that somebody lists by hand.
func (e *explorer) mishaps(s *state, i int, first bool, then, fault func(what, func(*state))) {
	o := s.at[i]
	if e.c.left && o.get(lifts) == liftedNow && o.is(latch) && !s.acting(i, func(membership.Kind) bool { return true }) {
		then(expires, func(n *state) {
			n.at[i].set(lifts, liftedOnce)
			n.ctl &^= beyond // nothing came of it, so from here on it excuses nothing
		})
	}
	if e.c.nodes && o.is(node) && o.is(machine) && s.faults() > 0 {
		fault(loses, func(n *state) {
			n.at[i].put(0, node, gave, cordon)
			n.unpod(i)
		})
	}
	if e.c.strays && o.get(member) == noMember && s.faults() > 0 && first && !s.changing() {
		if voters, left := s.survivors(); left > (voters+1)/2 {
			fault(listed, func(n *state) {
				n.at[i].set(member, stray)
				n.at[i].set(answers, down)
			})
		}
	}
}

// released says whether the machine controller may terminate a Machine. It takes it minutes, so that
// Holdfast has looked since a learner was added there, unless the configuration says otherwise. A
// voter was looked at before it was promoted, or when its control plane was adopted.
func (c *config) released(o slot) bool {
	return o.get(machine) == deleting && !o.is(hook) && !o.is(latch) && (c.flees || o.get(member) == noMember || o.is(record) || o.votes() && !c.bare)
}

// leaves says whether the machine controller drains a Machine: it does so while the latch is on, too.
func (o slot) leaves() bool { return o.get(machine) == deleting && !o.is(hook) }

// cordoned says whether a Node is. The machine controller drains no other one then.
func (s *state) cordoned() bool {
	return slices.ContainsFunc(s.at[:], func(o slot) bool { return o.is(cordon) })
}

// drained says whether the machine controller gets on with a Machine that is let go: it has cordoned the Node, and the guard
// pod goes.
func (c *config) drained(s *state, i int) bool {
	o := s.at[i]
	return !c.guard || o.get(node) != ready || o.is(cordon) && !s.late() && s.evictable(i)
}

// acting says whether a reconciler is between second look and call of such an act, about a slot or, with -1, about any.
func (s *state) acting(i int, such func(membership.Kind) bool) bool {
	for r := range 2 {
		if d := s.rec(r); d.stage() == confirmed && such(d.kind()) && (i < 0 || s.at[i].is(target(r))) {
			return true
		}
	}
	return false
}

// inHand says whether that is a change of the member at a slot, or cluster-etcd-operator is about to promote it; and changing whether it is any
// change of members.
func (s *state) inHand(i int) bool {
	d := s.rec(operatorRec)
	promotes := d.stage() == operating && d.kind() == membership.KindPromote && s.at[i].is(target(operatorRec))
	return promotes || s.acting(i, membership.Kind.Membership)
}
func (s *state) changing() bool { return s.acting(-1, membership.Kind.Membership) }

// releasing says whether it is the release of what stands at a slot.
func (s *state) releasing(i int) bool {
	return s.acting(i, func(k membership.Kind) bool { return k == membership.KindReleaseHook })
}

// etcdLives is what the member at one slot does by itself.
func (e *explorer) etcdLives(s *state, i int, quorate bool, then, fault func(what, func(*state))) {
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
		then(starts, func(n *state) { n.run(i, behind); n.joined(i) })
	case m == behind && o.get(answers) == up && quorate:
		then(catchesUp, func(n *state) { n.run(i, caughtUp) })
	case o.get(answers) != up && runs && m != unstarted && m != stray && free:
		then(returns, func(n *state) {
			n.at[i].set(answers, up)
			n.at[i].set(mute, 0)
		})
	}
	if o.get(answers) == down || m == behind && !o.is(stalled) {
		then(passes, func(n *state) { n.age(i) })
	}
	if e.c.mutes && o.heard() && s.faults() > 0 && free {
		fault(hushes, func(n *state) {
			n.at[i].set(mute, 1)
			n.at[i].set(answers, down)
		})
	}
	if (o.get(answers) == up || o.is(mute)) && s.faults() > 0 && free {
		over := o.votes() && !s.survives(i)
		if !over || e.c.beyond {
			fault(dies, func(n *state) {
				if over {
					n.ctl |= beyond
				}
				n.stop(i)
			})
		}
	}
	if e.c.rehomes && runs && !o.is(moved) && s.faults() > 0 && free && (!o.healthy() || s.survives(i)) {
		fault(rehomes, func(n *state) {
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
		s.at[i].put(1, hook, latch)
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
		if o.healthy() && !s.conceded(o) && (k == i || s.releasing(k) || o.drainedByPerson()) {
			left--
		}
	}
	return left > voters/2
}
