package main

import (
	"slices"

	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// rounds is how many fair rounds a control plane may need to come to rest.
const rounds = 80

// rests says whether a state that is left alone comes to rest (I8): faults and requests stop, etcd
// and the hosts do their part, and somebody deletes dead voters' Machines and those too many, and sees
// to it that as many Machines work as are wanted. It returns the state where it hangs.
func (e *explorer) rests(from *state) (hung *state) {
	s := *from
	s.ctl &= rewanted | budgetMask // no faults, no spares, nobody in the middle of anything
	for i := range s.at {
		s.at[i] &^= targets
	}
	if e.known(&s) {
		return nil
	}
	path := []state{s}
	for {
		before := s
		e.fair(&s)
		if s == before {
			if !s.done(e.c) {
				return &s
			}
			break
		}
		if e.known(&s) {
			break
		}
		if path = append(path, s); len(path) == rounds {
			return &s
		}
	}
	for i := range path {
		path[i].canon(nil)
		e.restful.add(&path[i], 0)
	}
	return nil
}

// known says whether a state was seen to come to rest. The hosts of a fair run keep their order, by
// which ties are decided: only what is remembered is in canonical form.
func (e *explorer) known(s *state) bool {
	canon := *s
	canon.canon(nil)
	return e.restful.has(&canon)
}

// done says whether all is as it is wanted.
func (s *state) done(c *config) bool {
	voters, healthy := s.tally()
	for _, o := range s.at {
		if o.get(machine) == deleting || c.guard && o.votes() && o.get(pod) != podReady {
			return false
		}
	}
	if c.guard {
		minAvailable, ok := s.budget()
		if !ok || minAvailable != s.wanted(c)-min(1, q.Tolerance(s.wanted(c))) && s.wanted(c) > 1 {
			return false
		}
	}
	return voters == s.wanted(c) && healthy == voters && (!c.set || s.setDone(c))
}

// fair is one round of a fair environment.
func (e *explorer) fair(s *state) {
	p := e.plan(e.view(s), s, 0)
	s.remember(p)
	for _, a := range p.acts {
		if a.kind() == membership.KindReleaseHook {
			s.at[a.slot].set(latch, 0)
			if a.has(putHook) {
				s.at[a.slot].set(hook, 0)
			}
			continue
		}
		s.perform(e.c, a)
	}
	if e.c.operated {
		e.operatorFair(s)
	}
	for i := range s.at {
		o := &s.at[i]
		if o.get(machine) == live && o.get(node) != ready && !o.is(barren) {
			s.arrive(i)
		}
		s.settle(i)
		if o.is(pod) && o.is(node) {
			s.probe(i)
		}
		if !o.leaves() {
			o.set(cordon, 0) // people uncordon what they drained
		}
	}
	for i := range s.at {
		if o := &s.at[i]; e.c.guard && o.leaves() && o.get(node) == ready && !s.cordoned() {
			o.set(cordon, 1)
		}
	}
	for i := range s.at {
		if e.c.released(s.at[i]) && e.c.drained(s, i) {
			s.terminate(i, false)
		}
	}
	if _, led := s.find(leads); !led {
		if i := slices.IndexFunc(s.at[:], slot.healthy); i >= 0 {
			s.at[i].set(leads, 1)
		}
	}
	e.administer(s)
	if e.c.set {
		e.setFair(s)
	}
}

// settle is what becomes of a member once nothing else happens.
func (s *state) settle(i int) {
	o := &s.at[i]
	if o.is(mute) {
		o.set(mute, 0)
		o.set(answers, up)
	}
	runs := o.is(own) && o.is(machine) && !o.is(broken) && o.is(instance) && !o.is(moved)
	switch {
	case o.learner() && runs && (o.get(member) != unstarted || s.starts(i)):
		begins := o.get(member) == unstarted
		s.run(i, caughtUp)
		if begins {
			s.joined(i)
		}
	case o.learner() || o.votes():
		s.age(i)
	}
}

// administer is what a person does about what is dead, too many or missing.
func (e *explorer) administer(s *state) {
	voters, healthy := s.tally()
	settled, working := voters == healthy && s.count(slot.going) == 0, 0
	for i := range s.at {
		o := s.at[i]
		if o.get(member) == stray && healthy > (voters-1)/2 {
			s.unlist(i) // etcdctl member remove, as a Note says
			voters--
		}
		if o.learner() && o.is(moved) && !o.is(evidence) {
			s.unlist(i) // likewise: nothing says whose it is
			continue
		}
		if e.c.operated && s.leftByOperator(e.c, o) && healthy > (voters-1)/2 {
			s.unlist(i) // etcdctl member remove, as a Note says
			voters, healthy = s.tally()
			continue
		}
		if o.get(machine) != live {
			continue
		}
		if o.votes() && o.is(moved) && o.is(own) && healthy > (voters-1)/2 && !o.is(broken) {
			s.at[i].set(moved, 0) // etcdctl member update, as the host and a Note say
			s.at[i].set(answers, up)
			settled = false
			continue
		}
		gone := o.votes() && o.is(own) && o.get(answers) != up
		if e.c.set && o.is(barren) && !o.is(outdated) && !e.c.onDelete {
			s.edit() // the template asked for what the platform does not have
		}
		useless := e.c.operated && o.is(broken) || e.c.set && (o.is(broken) || o.is(barren) && e.c.onDelete)
		if gone || useless || o.votes() && settled && voters > s.wanted(e.c) && !e.c.set {
			if answer := e.replies(e.view(s), s, 0)[i][askDelete]; answer.slot != 0 {
				s.at[i] = answer.slot | o&hidden
				settled = false
			}
		} else if !o.is(broken) {
			working++
		}
	}
	for i := range s.at {
		if working < s.wanted(e.c) && s.at[i] == 0 && !e.c.set {
			s.create(i, e.c.born)
			working++
		}
	}
}
