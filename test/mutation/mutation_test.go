package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestAll: there is a mutant of every rule, step and invariant.
func TestAll(t *testing.T) {
	var want []string
	for _, rule := range quorum.Rules {
		want = append(want, string(rule))
	}
	for step := 1; step <= 8; step++ {
		want = append(want, fmt.Sprintf("step %d", step))
	}
	for invariant := membership.InvariantQuorum; invariant <= membership.InvariantOneChange; invariant = next(invariant) {
		want = append(want, string(invariant))
	}
	for _, name := range want {
		found := false
		for _, m := range mutants() {
			found = found || m.name == name || strings.HasPrefix(m.name, name+":")
		}
		if !found {
			t.Errorf("no mutant switches off %s", name)
		}
	}
}

func next(i membership.Invariant) membership.Invariant {
	return membership.Invariant("I" + string(i[1]+1))
}
