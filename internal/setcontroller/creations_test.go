package setcontroller

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestCreations: Machines that come to nothing are made at longer and longer intervals, until one gets a Node or somebody changes the set.
func TestCreations(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var c creations
	now := t0.Add(2 * time.Hour)
	look := func(generation int64, said string, machines ...quorum.Machine) *machineset.Set {
		set := &machineset.Set{Places: map[string]machineset.Place{"uid": {Error: said}}}
		for i := range machines {
			machines[i].UID = "uid"
		}
		c.recall(&quorum.Snapshot{Now: now, Machines: machines}, set, generation)
		return set
	}
	free := func(what string, set *machineset.Set) {
		t.Helper()
		if !set.NotBefore.IsZero() || set.CreationFailure != "" {
			t.Errorf("%s: not before %s: %s", what, set.NotBefore, set.CreationFailure)
		}
	}
	paused := func(what string, set *machineset.Set, until time.Time, words ...string) {
		t.Helper()
		if !set.NotBefore.Equal(until) {
			t.Errorf("%s: not before %s, want %s", what, set.NotBefore, until)
		}
		for _, word := range words {
			if !strings.Contains(set.CreationFailure, word) {
				t.Errorf("%s: %q does not say %q", what, set.CreationFailure, word)
			}
		}
	}
	free("nothing is known", look(1, ""))
	c.created("m-1", t0)
	free("it comes", look(1, "", quorum.Machine{Name: "m-1", Phase: "Provisioning"}))
	free("it is refused for now", look(1, "no capacity for it", quorum.Machine{Name: "m-1", Phase: "Provisioning"}))
	paused("it is gone", look(1, ""), t0.Add(10*time.Second), "Machine m-1 ", "no capacity for it")
	paused("it is counted once", look(1, ""), t0.Add(10*time.Second), "m-1")

	c.created("m-2", t0.Add(time.Minute))
	paused("it has failed", look(1, "refused", quorum.Machine{Name: "m-2", Phase: "Failed"}), t0.Add(80*time.Second), "Machine m-2 ", "refused", "2 in a row")
	c.created("m-3", t0.Add(2*time.Minute))
	paused("another comes", look(1, "", quorum.Machine{Name: "m-3"}), t0.Add(140*time.Second))
	paused("it is being deleted", look(1, "", quorum.Machine{Name: "m-3", DeletedAt: t0, Phase: "Deleting"}), t0.Add(160*time.Second), "3 in a row")
	c.created("m-4", t0.Add(time.Hour))
	free("it has a Node", look(1, "", quorum.Machine{Name: "m-4", NodeName: "m-4"}))
	free("one that had a Node is deleted", look(1, ""))

	for range 20 {
		c.created("m-5", t0)
		look(1, "")
	}
	paused("the longest pause", look(1, ""), t0.Add(5*time.Minute))
	now = t0.Add(-time.Hour)
	paused("the clock was put back by an hour", look(1, ""), now.Add(5*time.Minute))
	free("the set is changed", look(2, ""))
}
