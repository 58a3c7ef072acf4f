package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/membership"
)

// A trace is what a real control plane was seen to do: one moment on each line, when it differs from the one before. Where a test of
// test/scenario keeps one it says what each Machine and member was at the same time:
//
//	master-0: live hook latch voter; master-1: deleting hook latch voter; spare-0: learner
//
// Every step of it has to be one that the model allows. What a moment does not show (Nodes, processes, what the reconcilers are in the
// middle of) may be anything that leads there.

// shown is what a moment shows of one address, as the bits of words; zero is nothing.
type shown uint8

func words() []string { return []string{"live", "deleting", "hook", "latch", "learner", "voter"} }

// moment is what stands at all addresses. Their names say nothing to the model.
type moment [slots]shown

func (m moment) String() string {
	var all []string
	for _, at := range m {
		var is []string
		for bit, word := range words() {
			if at&(1<<bit) != 0 {
				is = append(is, word)
			}
		}
		if at != 0 {
			all = append(all, strings.Join(is, " "))
		}
	}
	return strings.Join(all, "; ")
}

func (m *moment) sort() { slices.SortFunc(m[:], func(a, b shown) int { return cmp.Compare(b, a) }) }

// away is at how many addresses two moments differ: a change is at one.
func (m moment) away(other moment) int {
	same := 0
	for i, j := 0, 0; i < slots && j < slots; {
		switch order := cmp.Compare(other[j], m[i]); { // both are sorted
		case order == 0:
			i, j, same = i+1, j+1, same+1
		case order < 0:
			i++
		default:
			j++
		}
	}
	return slots - same
}

func (s *state) moment() (m moment) {
	for i, o := range s.at {
		for bit, is := range []bool{o.lives(), o.going(), o.is(hook), o.is(latch), o.learner(), o.votes()} {
			if is {
				m[i] |= 1 << bit
			}
		}
	}
	m.sort()
	return m
}

// readTrace reads a trace. Its error names the line.
func readTrace(from io.Reader) (trace []moment, err error) {
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		var m moment
		for i, at := range strings.Split(lines.Text(), ";") {
			name, is, ok := strings.Cut(at, ": ")
			if !ok || i == slots {
				return nil, fmt.Errorf("line %d: %q is not the name of a Machine or member, a colon and what it is, or it is one too many", n, at)
			}
			for word := range strings.FieldsSeq(is) {
				bit := slices.Index(words(), word)
				if bit < 0 {
					return nil, fmt.Errorf("line %d: %s is %q; known are %s", n, name, word, strings.Join(words(), ", "))
				}
				m[i] |= 1 << bit
			}
		}
		m.sort()
		trace = append(trace, m)
	}
	return trace, lines.Err()
}

// traced is the control plane of a trace: what may happen in it is all that the scenarios do.
func traced(guard bool) *config {
	return &config{name: "trace", voters: 3, desired: 3, version: "3.7.3", spares: 1, faults: 3, recs: 1, hostile: true, escape: true, operated: guard}
}

// atOnce is how many changes there may be between two moments: where the API server does not answer for a while, a replacement gets on unseen.
const atOnce = 4

// follow says what the model does not allow of a trace, and how many states it was in at most.
func (c *config) follow(trace []moment) (most int, err error) {
	e := newExplorer(c)
	e.fail = func(membership.Invariant, string, event) {} // states that it leads to are judged where they are explored
	at, s := newSet(), c.start()
	s.canon(nil)
	at.add(&s, 0)
	for n, m := range trace {
		if at = e.until(&at, m); len(at.states) == 0 {
			return most, fmt.Errorf("line %d: the model does not get to %s", n+1, m)
		}
		most = max(most, len(at.states))
	}
	return most, nil
}

// until is the states that show the moment, by as few changes of what is shown as possible.
func (e *explorer) until(from *set, m moment) (there set) {
	for changes := 0; changes <= atOnce && len(there.states) == 0; changes++ {
		there = e.after(from, m, changes)
	}
	return there
}

// after is the states that show the moment after so many changes. from gets all that show what it does.
func (e *explorer) after(from *set, m moment, changes int) set {
	there, next := newSet(), newSet()
	for n := 0; n < len(from.states); n++ {
		now := from.states[n]
		is := now.moment()
		if is == m {
			there.add(&now, 0)
		}
		e.emit = func(s *state, _ event) {
			s.canon(nil)
			if shows := s.moment(); shows == is {
				from.add(s, 0)
			} else if shows.away(m) < changes {
				next.add(s, 0)
			}
		}
		e.steps(&now)
	}
	if changes == 0 || len(there.states) > 0 {
		return there
	}
	return e.after(&next, m, changes-1)
}

// allowed says whether the model allows the trace in a file, and prints where it does not.
func allowed(file string, guard bool) (bool, error) {
	f, err := os.Open(file) //nolint:gosec // the one that the user names
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	trace, err := readTrace(f)
	if err != nil {
		return false, fmt.Errorf("%s: %w", file, err)
	}
	if len(trace) < 5 { // a replacement has more
		return false, fmt.Errorf("%s: %d moments are no replacement", file, len(trace))
	}
	most, err := traced(guard).follow(trace)
	if err != nil {
		fmt.Println(err)
		return false, nil
	}
	fmt.Printf("The model allows all %d moments; at most %d states show the same one.\n", len(trace), most)
	return true, nil
}
