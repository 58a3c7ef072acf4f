package main

import (
	"flag"
	"testing"
)

var states = flag.Int("states", 10_000, "explore so many states of each configuration at most, 0 for all: by default as many as take a minute")

// TestModel explores part of every configuration. Together they get to
// everything that can happen: what never does shows nothing.
func TestModel(t *testing.T) {
	var reached [elects + 1]bool
	ran := 0
	for _, c := range configs() {
		t.Run(c.name, func(t *testing.T) {
			ran++
			e := newExplorer(&c)
			r := e.run(*states)
			t.Log(&r)
			for w := range reached {
				reached[w] = reached[w] || e.reached[w]
			}
			if c.expected(&r) {
				return
			}
			if r.found == nil {
				t.Fatalf("does not find that %s is broken", c.finds)
			}
			t.Fatal(e.transcript(r.found))
		})
	}
	for w, ever := range reached {
		if !ever && ran == len(configs()) {
			t.Errorf("never: %s", event{what: what(w)}.text(&[slots]int{}))
		}
	}
}

// TestCanon: states that differ by the names of hosts and reconcilers alone are one.
func TestCanon(t *testing.T) {
	c := configs()[1]
	s := c.start()
	s.setRec(0, 5)
	s.at[1].set(targetA, 1)
	o := c.start()
	o.at[0], o.at[2] = o.at[2], o.at[0]
	o.setRec(1, 5)
	o.at[1].set(targetB, 1)
	s.canon(nil)
	o.canon(nil)
	if s != o {
		t.Errorf("%v is not %v", s, o)
	}
}
