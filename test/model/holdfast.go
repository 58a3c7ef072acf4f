package main

import (
	"github.com/holdfast-dev/holdfast/internal/membership"
)

func (e *explorer) reconcile(s *state, v *view, r int) {
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
		e.emit(&next, event{what: crashes, rec: int8(r), slot: a.slot, doing: d})
	}
	ev := event{rec: int8(r), slot: a.slot, to: a.to, doing: d}
	switch d.stage() {
	case idle:
		if r == 1 && s.rec(0) == idle {
			return // the other one does the same
		}
		for way := range 2 {
			e.look(s, e.plan(v, s, way), r)
		}
	case looked:
		switch {
		case e.c.blind:
			e.apply(s, v, r, a)
		case d.kind() == membership.KindAddHook, d.kind() == membership.KindRecordRelease, d.kind() == membership.KindSizeGuard && !d.locks(), d.kind() == membership.KindCreateGuardPod:
			e.apply(s, v, r, a)
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
							e.fail(membership.InvariantHookedPromotion, "its Machine does not carry the hook", ev)
						case o.get(machine) == deleting:
							e.fail(membership.InvariantLivePromotion, "its Machine is deleting", ev)
						case !s.followed(e.c):
							e.fail(membership.InvariantTolerance, "no voter can be removed after it", ev)
						}
					}
					next, now := *s, d&^stageMask|confirmed
					if d.kind() == membership.KindRemoveVoter && s.at[a.slot].healthy() {
						now |= wasUp
					}
					if d.kind() == membership.KindRemoveVoter && s.at[a.slot].heard() { // what does not answer makes room for what does
						if n := s.replacements(int(a.slot)); n < s.least(e.c) {
							e.fail(membership.InvariantVoterCount, "too few would be left that vote, answer and have a host", ev)
						}
					}
					next.setRec(r, now)
					e.emit(&next, ev)
					return
				}
			}
		}
	case confirmed:
		e.apply(s, v, r, a)
	}
}

// look is a first look: one of the plan's actions is on its way.
func (e *explorer) look(s *state, p *plan, r int) {
	seen := *s
	seen.remember(p)
	if seen != *s {
		e.emit(&seen, event{what: records, rec: int8(r)})
	}
	if p.violated != "" {
		e.fail(p.violated, "Decide had to withdraw its own plan", event{what: decides, rec: int8(r)})
	}
	if p.changes > 1 {
		e.fail(membership.InvariantOneChange, "two membership changes in one round", event{what: decides, rec: int8(r)})
	}
	for _, a := range p.acts {
		next := seen
		next.capture(r, a)
		e.emit(&next, event{what: decides, rec: int8(r), slot: a.slot, to: a.to, doing: a.doing})
	}
}

// remember writes what a plan writes down: the records of members, and the release ledger.
func (s *state) remember(p *plan) {
	for i := range s.at {
		if p.writes {
			s.at[i].set(record, uint32(p.records[i]))
		}
		if p.cleans {
			s.recorded(i, uint32(p.ledger[i]))
		}
	}
}

// followed says whether a voter can be removed once one more votes, so that etcd does not stay at an even number: one that is leaving and
// does not answer, or any that is leaving, or that the set deletes, where all that stay serve.
func (s *state) followed(c *config) bool {
	voters, _ := s.tally()
	leave, staysIll := 0, false
	for i, o := range s.at {
		if !o.votes() {
			continue
		}
		leaves := o.get(machine) != live || o.get(record) == recGone
		ill := !o.heard() || s.conceded(o) || o.get(member) == stray
		if leaves && ill || c.set && !s.at[i].healthy() && o.get(answers) == dead {
			return true
		}
		if leaves || c.set {
			leave++
		}
		staysIll = staysIll || ill
	}
	return voters < s.wanted(c) || leave > 0 && !staysIll
}

// replacements counts the other voters that started, take part, and have a Machine or Node.
func (s *state) replacements(i int) int {
	others := *s
	others.at[i] = 0
	return others.count(func(o slot) bool { return o.get(member) == voter && o.healthy() && (o.is(machine) || o.is(node)) })
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

// perform does an action but for a release, and says whether it could.
func (s *state) perform(c *config, a act) bool {
	switch {
	case a.kind() == membership.KindAddHook:
		return s.putHook(a)
	case a.kind() == membership.KindRecordRelease:
		s.recorded(int(a.slot), a.about())
		return true
	case a.guards():
		return s.guard(a)
	case a.kind() == membership.KindRemoveLearner && a.has(givesWay):
		s.giveWay(int(a.slot))
	}
	return s.etcd(c, a)
}

// apply makes an action happen. That its answer may be lost needs no state of its own: a reconciler
// that got it remembers no more than one that did not.
func (e *explorer) apply(s *state, v *view, r int, a act) {
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
			e.emit(&stopped, event{what: marks, rec: int8(r), slot: a.slot, doing: a.doing})
		}
		if e.c.operated && a.has(putHook) {
			e.fail(membership.InvariantRelease, "in guard mode the hook is cluster-etcd-operator's to take off", ev)
		}
		hooked := o.is(hook)
		*o = answer.slot&^guardPod | *o&(hidden|guardPod)
		if hooked && !o.is(hook) && o.get(member) != noMember && o.is(own) {
			e.fail(membership.InvariantRelease, "its member is listed", ev)
		}
		e.judge(s, &next, ev)
		e.emit(&next, ev)
		return
	}
	if a.kind() == membership.KindRemoveLearner && a.has(givesWay) {
		next.giveWay(int(a.slot))
		stopped := next // it crashes before it asks etcd
		e.emit(&stopped, event{what: marks, rec: int8(r), slot: a.slot, doing: a.doing})
	}
	wasUp := a.kind() == membership.KindRemoveVoter && s.at[a.slot].healthy() && (e.c.blind || a.has(wasUp))
	if !next.perform(e.c, a) {
		return
	}
	switch voters, healthy := next.tally(); {
	case !a.kind().Membership():
	case healthy <= voters/2:
		e.fail(membership.InvariantQuorum, "no quorum is left", ev)
	case a.kind() == membership.KindPromote && voters > s.wanted(e.c)+1:
		e.fail(membership.InvariantVoterCount, "too many voters", ev)
	case wasUp && voters < s.least(e.c):
		e.fail(membership.InvariantVoterCount, "too few voters", ev)
	}
	e.emit(&next, ev)
}
