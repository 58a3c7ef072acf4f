package main

import (
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// In guard mode etcd's members are cluster-etcd-operator's. Its controllers decide by caches, and look for some of what they decide on
// only once a minute: what it decided on is done at any later time, whatever has happened since, and etcd alone may refuse it. What it
// waits for besides (a stable revision, the published endpoints) only makes it later. Its hook is in requests.go.

// operatorRec is where a state has what the operator is in the middle of: there is one reconciler in guard mode.
const operatorRec = 1

// operator is what the operator decides on, and what becomes of that.
func (e *explorer) operator(s *state) {
	d := s.rec(operatorRec)
	if d.stage() == idle {
		for _, a := range s.operates(e.c) {
			next := *s
			next.capture(operatorRec, a)
			e.emit(&next, event{what: operatorDecides, slot: a.slot, doing: a.doing})
		}
		return
	}
	slot, _ := s.find(target(operatorRec))
	a := act{doing: d, slot: int8(slot)}
	next := *s
	next.forget(operatorRec)
	e.emit(&next, event{what: operatorStops, slot: a.slot, doing: d})
	if a.kind() == membership.KindPromote && (s.at[slot].freed() || s.releasing(slot)) && !e.c.windows {
		return // it asks etcd before Holdfast has let that Machine go
	}
	if next.etcd(e.c, a) {
		e.emit(&next, event{what: operatorActs, slot: a.slot, doing: d})
	}
}

// operates are the changes of membership that the operator may decide on, those first that take a member away.
func (s *state) operates(c *config) (out []act) {
	decide := func(kind membership.Kind, i int) {
		out = append(out, act{doing: operating | doing(kind)<<2 | recHere<<6, slot: int8(i)})
	}
	ill := func(o slot) bool { return o.get(member) != noMember && o.get(answers) != up }
	leaves := func(o slot) bool { return o.going() && o.is(hook) }
	sick, sickLeaves := s.count(ill) > 0, s.count(func(o slot) bool { return ill(o) && o.votes() && leaves(o) }) > 0
	voters, heard := s.count(slot.votes), s.count(slot.heard)
	enough := voters >= s.wanted(c) && heard >= s.wanted(c)/2+1
	for i, o := range s.at {
		switch {
		case o.votes() && !o.is(machine) && !o.is(node) && !o.heard():
			decide(membership.KindRemoveVoter, i)
		case leaves(o) && o.learner():
			decide(membership.KindRemoveLearner, i)
		case leaves(o) && o.votes() && enough && (sickLeaves || !sick && voters > s.wanted(c)):
			decide(membership.KindRemoveVoter, i) // of an ill one and a healthy one the healthy goes, too, if etcd refuses the other
			if last := len(out) - 1; ill(o) {
				out[0], out[last] = out[last], out[0]
			}
		}
	}
	for i, o := range s.at {
		switch {
		case sick || !o.lives() || !o.is(hook):
		case o.get(member) == noMember && o.get(node) == ready && o.is(instance):
			decide(membership.KindAddLearner, i)
		case o.get(member) == caughtUp:
			decide(membership.KindPromote, i)
		}
	}
	return out
}

// operatorFair is a round of an operator that gets on: hooks on and off, and one change of membership.
func (e *explorer) operatorFair(s *state) {
	for i, o := range s.at {
		r := askHook
		if o.going() {
			r = askCustodian
		}
		if o.going() && o.votes() || !o.is(machine) {
			continue
		}
		if answer := e.replies(e.view(s), s, 0)[i][r]; answer.slot != 0 {
			s.at[i] = answer.slot | o&hidden
		}
	}
	for _, a := range s.operates(e.c) {
		if s.etcd(e.c, a) {
			return
		}
	}
}

// leftByOperator says whether the operator never removes a member that is to go: it wants its hook on the Machine, and as many voters as are
// wanted, or neither Machine nor Node.
func (s *state) leftByOperator(c *config, o slot) bool {
	if o.learner() {
		return !o.is(machine) || o.leaves() || o.get(record) == recGone
	}
	return o.get(answers) == dead && (o.leaves() || o.get(record) == recGone || o.going() && s.count(slot.votes) < s.wanted(c))
}
