package main

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"syscall"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// explorer explores one configuration.
type explorer struct {
	c       *config
	views   map[look]*view
	seen    set // all states, in the order in which they were reached
	reached [elects + 1]bool
	restful set // idle states from which a fair run comes to rest

	emit func(*state, event)                       // gets each state that can come next, not in canonical form
	fail func(membership.Invariant, string, event) // gets each step that breaks an invariant
}

// result is what an exploration found.
type result struct {
	states, steps, views, restful int
	all                           bool // no state was left out
	took, cpu                     time.Duration
	bytes                         uint64 // of the heap in use at the end
	found                         *violation
}

// violation is a step, or a state, that should not be.
type violation struct {
	invariant membership.Invariant
	what      string
	at        uint32 // the state before
	event     *event // the step, nil if it is the state
	hung      *state // I8: where the fair run ends
}

func newExplorer(c *config) *explorer {
	c.ids, c.users, c.hosts = admission.DefaultIdentities(holdfast), users(), hosts()
	return &explorer{c: c, views: map[look]*view{}, seen: newSet(), restful: newSet()}
}

// run explores until something is found, all is seen, or the bound of states is reached.
func (e *explorer) run(bound int) (out result) {
	began, cpu := time.Now(), used()
	first := e.c.start()
	first.canon(nil)
	e.seen.add(&first, 0)
	if bound == 0 {
		bound = 1 << 31
	}
	var at uint32
	var s state
	e.emit = func(next *state, ev event) {
		out.steps++
		e.reached[ev.what] = true
		next.canon(nil)
		e.seen.add(next, at)
	}
	e.fail = func(i membership.Invariant, what string, ev event) {
		if out.found == nil {
			out.found = &violation{invariant: i, what: what, at: at, event: &ev}
		}
	}
	n := 0
	for ; n < len(e.seen.states) && n < bound && out.found == nil; n++ {
		at = uint32(n)
		s = e.seen.states[n]
		if s.ctl&beyond == 0 {
			if !s.quorate() {
				out.found = &violation{invariant: "quorum", what: "etcd has lost quorum though no more failed than it tolerates", at: at}
				break
			}
			if e.c.blind {
				e.steps(&s)
				continue
			}
			if hung := e.rests(&s); hung != nil {
				out.found = &violation{invariant: "I8", what: "left alone, it does not come to rest", at: at, hung: hung}
				break
			}
		}
		e.steps(&s)
	}
	out.states, out.views, out.restful, out.all = len(e.seen.states), len(e.views), len(e.restful.states), n == len(e.seen.states)
	out.took, out.cpu = time.Since(began), used()-cpu
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	out.bytes = m.HeapInuse
	return out
}

// then emits what a change makes of a state.
func (e *explorer) then(s *state, ev event, change func(*state)) {
	next := *s
	change(&next)
	e.emit(&next, ev)
}

func (r *result) String() string {
	all := "all"
	if !r.all {
		all = "bounded"
	}
	return fmt.Sprintf("%9d states (%s), %10d steps, %7d decided, %6.1f s (%.1f s of CPU), %4.0f thousand states per second of CPU, %4d MiB",
		r.states, all, r.steps, r.views, r.took.Seconds(), r.cpu.Seconds(), float64(r.states)/r.cpu.Seconds()/1000, r.bytes>>20)
}

// used is the CPU time of this process so far.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// look is all of a state that a Snapshot shows.
type look struct {
	at   [slots]slot
	said ctl
}

// view is what is decided in all states that look like this one, by memory.
func (e *explorer) view(s *state) *view {
	key := look{said: s.ctl & (rewanted | budgetMask)}
	for i := range s.at {
		key.at[i] = s.at[i] &^ hidden
	}
	v := e.views[key]
	if v == nil {
		v = &view{}
		e.views[key] = v
	}
	return v
}

func (e *explorer) plan(v *view, s *state, way int) *plan {
	if v.plan[way] == nil {
		v.plan[way] = e.c.decide(s, way)
	}
	return v.plan[way]
}

// replies is what comes of each request. outage is 1 where Holdfast does not answer.
func (e *explorer) replies(v *view, s *state, outage int) *[slots][requests]reply {
	if v.asked[outage] == nil {
		answers := e.c.ask(s, outage)
		v.asked[outage] = &answers
	}
	return v.asked[outage]
}

// set is states, each once, in the order in which they came, with what each came from.
type set struct {
	states []state
	from   []uint32
	index  map[uint64]uint32 // of a state, by its hash or, where that is another's, by the next number: it has half the size of a map of states
	seed   maphash.Seed
}

func newSet() set { return set{index: map[uint64]uint32{}, seed: maphash.MakeSeed()} }

// key is that of a state in the index, or the one that it would have.
func (s *set) key(x *state) (key uint64, there bool) {
	for key = maphash.Comparable(s.seed, *x); ; key++ {
		if at, taken := s.index[key]; !taken || s.states[at] == *x {
			return key, taken
		}
	}
}

func (s *set) has(x *state) bool {
	_, there := s.key(x)
	return there
}

func (s *set) add(x *state, from uint32) {
	key, there := s.key(x)
	if there {
		return
	}
	s.index[key] = uint32(len(s.states))
	s.states, s.from = append(s.states, *x), append(s.from, from)
}
