package main

import (
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// requests are what people, automation and custodians ask for.
func (e *explorer) requests(s *state, v *view) {
	replies, going := e.replies(v, s, 0), s.count(slot.going)
	room := e.c.deletes == 0 || going < e.c.deletes
	for i, o := range s.at {
		if !o.is(machine) || i > 0 && o == s.at[i-1] {
			continue
		}
		for r := range askRelease {
			if r == askCustodian && !e.c.hostile && !o.going() {
				continue // it does so if something is wrong with it
			}
			if !e.c.allows(r) || (r == askDelete || r == askLifted) && !room {
				continue
			}
			e.asked(s, i, replies[i][r], event{what: asks, slot: int8(i), request: r})
			if e.c.outage {
				e.asked(s, i, e.replies(v, s, 1)[i][r], event{what: asks, slot: int8(i), request: r, outage: true})
			}
		}
	}
	if e.c.deletes == 0 || going+2 <= e.c.deletes {
		e.pairs(s, replies, askDelete)
	}
	if e.c.escape {
		e.pairs(s, replies, askEscape)
	}
}

// asked stores what came of a request, and judges it.
func (e *explorer) asked(s *state, i int, answer reply, ev event) {
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
			return // one override: the model reports whether it was used
		}
		next.ctl |= beyond
	}
	e.judge(s, &next, ev)
	e.emit(&next, ev)
}

// pairs are two such requests at once, for two Machines, both decided on what was so before either was stored.
func (e *explorer) pairs(s *state, replies *[slots][requests]reply, r request) {
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
			e.judge(s, &next, ev)
			e.emit(&next, ev)
		}
	}
}

// judge judges what a request made of hooks and latches, by its own arithmetic: what is gone from a deleting Machine
// does not come back, and nothing that holds a healthy voter goes unless etcd stands its loss.
func (e *explorer) judge(before, after *state, ev event) {
	for i, o := range after.at {
		was := before.at[i]
		if was.get(machine) == deleting && (!was.is(hook) && o.is(hook) || !was.is(latch) && o.is(latch)) {
			e.fail(membership.InvariantNoRegain, "a hook returns", ev)
		}
		if o.freed() && !was.freed() && o.healthy() && o.is(own) && after.ctl&beyond == 0 {
			if voters, left := after.survivors(); left <= voters/2 {
				e.fail(membership.InvariantRelease, "nothing holds it any more, and without it etcd has no quorum", ev)
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
	case askCustodian:
		return c.hostile || c.operated
	case askHook:
		return c.operated
	case askStrip, askStripHook, askStripLatch, askReadd, requests:
	}
	return c.hostile
}
