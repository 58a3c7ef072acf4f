package main

import (
	"slices"

	"github.com/holdfast-dev/holdfast/internal/membership"
)

// size writes the quorum guard's budget. A reconciler that read it before cannot write it any more.
func (s *state) size(minAvailable int) {
	if now, ok := s.budget(); ok && now == minAvailable {
		return
	}
	for r := range 2 {
		if s.rec(r).kind() == membership.KindSizeGuard {
			s.forget(r)
		}
	}
	s.ctl = s.ctl&^budgetMask | ctl(minAvailable+1)<<budgetShift
}

// unpod takes a Node's guard pod away. What comes in its place is another one.
func (s *state) unpod(i int) {
	s.at[i].set(pod, noPod)
	for r := range 2 {
		if s.rec(r).kind() == membership.KindDeleteGuardPod && s.at[i].is(target(r)) {
			s.forget(r)
		}
	}
}

// guard does an action about the quorum guard, and says whether it could.
func (s *state) guard(a act) bool {
	o := &s.at[a.slot]
	switch a.kind() {
	case membership.KindSizeGuard:
		s.size(a.number())
	case membership.KindCreateGuardPod:
		if _, sized := s.budget(); !sized || o.is(pod) || !o.is(node) {
			return false
		}
		o.set(pod, podWaits)
	case membership.KindDeleteGuardPod:
		if !o.is(pod) {
			return false
		}
		s.unpod(int(a.slot))
	default:
		return false
	}
	return true
}

// evictable says whether a drain of the Node gets by its guard pod. The budget lets a ready pod go if it has one to spare, and a pod
// that is not ready if it has as many as it keeps. A Node that is not ready has nothing to wait for.
func (s *state) evictable(i int) bool {
	o := s.at[i]
	if o.get(node) != ready || !o.is(pod) {
		return true
	}
	minAvailable, ok := s.budget()
	if !ok {
		return true
	}
	spare := s.count(func(o slot) bool { return o.get(pod) == podReady }) - minAvailable
	return spare > 0 || spare == 0 && o.get(pod) != podReady
}

// late says whether a guard pod is still ready although its voter does not answer any more. Its probes find that out within seconds, and
// nothing that Kubernetes has could keep a drain off until then. A pod that is not ready although its voter is healthy stays so for any time.
func (s *state) late() bool {
	return slices.ContainsFunc(s.at[:], func(o slot) bool { return o.votes() && !o.heard() && o.get(pod) == podReady })
}

// probe has a pod say whether the Node's voter is healthy.
func (s *state) probe(i int) {
	s.at[i].set(pod, podWaits)
	if s.at[i].heard() {
		s.at[i].set(pod, podReady)
	}
}

// drainedByPerson says whether a Node is drained and about to be restarted.
func (o slot) drainedByPerson() bool {
	return o.is(cordon) && !o.leaves() && !o.is(pod) && o.healthy() && o.get(node) == ready
}

// drains is what becomes of guard pods by themselves, and of Nodes that people drain: a while later the member stops, and may come back.
func (e *explorer) drains(s *state, i int, then, fault func(what, func(*state))) {
	o := s.at[i]
	if o.is(pod) && o.is(node) && o.heard() != (o.get(pod) == podReady) {
		then(probes, func(n *state) { n.probe(i) })
	}
	if o.is(cordon) && !o.leaves() {
		then(uncordons, func(n *state) { n.at[i].set(cordon, 0) })
	}
	free := e.c.windows || !s.inHand(i)
	if o.get(node) == ready && o.is(pod) && o.healthy() && !o.is(cordon) && !o.leaves() && s.faults() > 0 && !s.late() && s.evictable(i) && free {
		fault(evicts, func(n *state) {
			n.at[i].set(cordon, 1)
			n.unpod(i)
		})
	}
	if o.drainedByPerson() && free {
		then(reboots, func(n *state) { n.stop(i) })
	}
}
