package decisions_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// TestCheckSetPlan: what no plan of a set may do is refused, whoever planned it.
func TestCheckSetPlan(t *testing.T) {
	three := func(t *testing.T, lines ...string) *world {
		w := newWorld()
		all := []string{}
		for i := range 4 {
			all = append(all, fmt.Sprintf("machine m-%d 10.0.0.1%d", i, i), fmt.Sprintf("member a%d 10.0.0.1%d", i, i))
		}
		all = append(all, "cpms replicas=3")
		for i := range 4 {
			all = append(all, fmt.Sprintf("place m-%d controller=x/cpms", i))
		}
		for _, line := range append(all, lines...) {
			if err := w.set(line); err != nil {
				t.Fatal(err)
			}
		}
		w.witness()
		return w
	}
	remove := machineset.Action{Machine: "m-0", UID: "uid-m-0", Change: machineset.Delete{}}
	create := machineset.Action{Change: machineset.Create{}}
	for _, c := range []struct {
		want    machineset.Invariant // "" for none
		actions []machineset.Action
		lines   []string
	}{
		{"", []machineset.Action{remove}, nil},
		{machineset.InvariantOneAtATime, []machineset.Action{remove, {Machine: "m-1", UID: "uid-m-1", Change: machineset.Delete{}}}, nil},
		{machineset.InvariantSurge, []machineset.Action{create}, nil},
		{machineset.InvariantReplicas, []machineset.Action{remove}, []string{"machine m-3 deleting"}},
		{machineset.InvariantGate, []machineset.Action{remove}, []string{"member a1 dead=1m"}},
		{machineset.InvariantGate, []machineset.Action{remove}, []string{"member a3 learner"}},
		{machineset.InvariantGate, []machineset.Action{remove}, []string{"etcd unknown: no answer"}},
		{machineset.InvariantGate, []machineset.Action{remove}, []string{"machine m-1 not-ready"}},
		{machineset.InvariantGate, []machineset.Action{remove}, []string{"machine m-1 no-node"}},
		{"", []machineset.Action{remove}, []string{"machine m-0 not-ready"}},
		{"", []machineset.Action{remove}, []string{"machine m-1 not-ready", "place m-1 controller=x/cpms outdated=small"}},
		{machineset.InvariantVotesFirst, []machineset.Action{remove}, []string{"gone member a3"}},
		{machineset.InvariantOwnMachines, []machineset.Action{remove}, []string{"place m-0 controller=x/other"}},
		{machineset.InvariantOwnMachines, []machineset.Action{{Machine: "m-0", UID: "uid-of-another", Change: machineset.Delete{}}}, nil},
		{machineset.InvariantNoTakeOver, []machineset.Action{{Machine: "m-0", UID: "uid-m-0", Change: machineset.Adopt{}}}, []string{"place m-0 controller=x/other"}},
		{machineset.InvariantDissolving, []machineset.Action{{Machine: "m-0", UID: "uid-m-0", Change: machineset.Disown{}}}, nil},
		{machineset.InvariantDissolving, []machineset.Action{{Change: machineset.LeaveSet{}}}, nil},
		{"", []machineset.Action{{Change: machineset.LeaveSet{}}}, []string{"cpms operator=x"}},
		{machineset.InvariantNoTakeOver, []machineset.Action{{Change: machineset.TakeSet{}}}, []string{"cpms operator=x"}},
		{machineset.InvariantNoTakeOver, []machineset.Action{{Change: machineset.TakeSet{}}}, []string{"cpms operator-unknown=x"}},
		{machineset.InvariantNoTakeOver, []machineset.Action{{Change: machineset.TakeSet{}}}, []string{"cpms deleting"}},
		{machineset.InvariantDissolving, []machineset.Action{remove}, []string{"cpms deleting"}},
		{machineset.InvariantDissolving, []machineset.Action{create}, []string{"cpms deleting"}},
	} {
		w := three(t, c.lines...)
		var got machineset.Invariant
		if broken := (*machineset.Violation)(nil); errors.As(machineset.CheckPlan(&w.s, w.cpms, c.actions), &broken) {
			got = broken.Invariant
		}
		if got != c.want {
			t.Errorf("%s with %q: %q, not %q", c.actions[len(c.actions)-1].Describe(), c.lines, got, c.want)
		}
	}
}
