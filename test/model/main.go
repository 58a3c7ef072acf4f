package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	only := flag.String("run", "", "only the configurations whose name holds this")
	states := flag.Int("states", 4_000_000, "explore so many states of each configuration at most, 0 for all")
	trace := flag.String("trace", "", "a file: what a control plane of three was seen to do; each step of it has to be one that the model allows")
	mode := flag.String("mode", "full", "Holdfast's in that trace, full or guard")
	flag.Parse()
	var ok bool
	var err error
	switch {
	case *trace != "" && *mode != "full" && *mode != "guard":
		err = fmt.Errorf("-mode is %q; it is full or guard", *mode)
	case *trace != "":
		ok, err = allowed(*trace, *mode == "guard")
	default:
		ok = explore(*only, *states)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// explore runs configurations, and says whether all that was found is known.
func explore(only string, states int) bool {
	ok := true
	for _, c := range configs() {
		if !strings.Contains(c.name, only) {
			continue
		}
		e := newExplorer(&c)
		r := e.run(states)
		fmt.Printf("%-28s %s\n", c.name, &r)
		if r.found != nil {
			fmt.Print(e.transcript(r.found))
		}
		ok = ok && c.expected(&r)
	}
	return ok
}

// expected says whether an exploration found what is known of its configuration, and no more.
func (c *config) expected(r *result) bool {
	if r.found == nil {
		return c.finds == "" || !r.all
	}
	return c.finds == r.found.invariant
}

// configs are the control planes that are explored.
func configs() []config {
	const current, old = "3.7.3", "3.6.12"
	return []config{
		{name: "one", voters: 1, desired: 1, version: current, spares: 2, recs: 2, hostile: true, born: true, broken: 1},
		{name: "three", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, moves: true, escape: true},
		{name: "three, 3.6", voters: 3, desired: 3, version: old, spares: 1, faults: 1, recs: 1, escape: true},
		{name: "three, adopted", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, bare: true, hostile: true, escape: true},
		{name: "three, one never starts", voters: 3, desired: 3, version: current, spares: 2, recs: 1, broken: 1},
		{name: "three, hostile", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, hostile: true, escape: true, lifted: true},
		{name: "three, two reconcilers", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 2},
		{name: "three, two spares", voters: 3, desired: 3, version: current, spares: 2, faults: 2, recs: 1, broken: 1},
		{name: "three, Nodes stay", voters: 3, desired: 3, version: current, spares: 2, faults: 1, recs: 1, stays: true, escape: true},
		{name: "three, beyond", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 2, escape: true, lifted: true, beyond: true},
		{name: "three, wide", voters: 3, desired: 3, version: current, spares: 2, faults: 2, recs: 2, broken: 1, stays: true, born: true, escape: true},
		{name: "one to three", voters: 1, desired: 3, version: current, spares: 2, recs: 2, broken: 1},
		{name: "three to one", voters: 3, desired: 1, version: current, spares: 1, faults: 1, recs: 1},
		{name: "three to five", voters: 3, desired: 5, version: current, spares: 2, faults: 1, recs: 1},
		{name: "five to three", voters: 5, desired: 3, version: current, spares: 1, faults: 2, recs: 1},
		{name: "five", voters: 5, desired: 5, version: current, spares: 1, faults: 2, recs: 1},
		{name: "five, 3.6", voters: 5, desired: 5, version: old, spares: 1, faults: 2, recs: 1},
		{name: "five, wide", voters: 5, desired: 5, version: current, spares: 2, faults: 2, recs: 2, broken: 1, escape: true},

		{name: "three, two escapes", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 2, escape: true},
		{name: "three, Holdfast down", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, escape: true, hostile: true, outage: true},
		{name: "three, a voter by hand", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, strays: true},
		{name: "three, overrides left behind", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 2, escape: true, left: true},
		{name: "three, Nodes lost", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, nodes: true, escape: true},
		{name: "three, silent voters", voters: 3, desired: 3, version: current, spares: 1, faults: 3, recs: 1, mutes: true},
		{name: "three, 3.6, silent voters", voters: 3, desired: 3, version: old, spares: 1, faults: 2, recs: 1, mutes: true},
		{name: "three, a silent voter, escape", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 1, mutes: true, escape: true},
		{name: "five, silent voters", voters: 5, desired: 5, version: current, spares: 1, faults: 2, recs: 1, mutes: true},
		{name: "three, a host moves", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 2, rehomes: true},
		{name: "three, a host moves, escape", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, rehomes: true, escape: true},
		{name: "three, two hosts move", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 1, rehomes: true},
		{name: "five, two hosts move", voters: 5, desired: 5, version: current, spares: 1, faults: 2, recs: 1, rehomes: true},
		{name: "three to one, two escapes", voters: 3, desired: 1, version: current, spares: 1, faults: 1, recs: 2, escape: true},
		{name: "three to five, then three", voters: 3, desired: 5, then: 3, version: current, spares: 2, faults: 1, recs: 1},
		{name: "three to one, then three", voters: 3, desired: 1, then: 3, version: current, spares: 1, faults: 1, recs: 1},

		{name: "one to three, two learners", voters: 1, desired: 3, version: current, spares: 2, recs: 2, learners: 2},
		{name: "three, two learners", voters: 3, desired: 3, version: current, spares: 2, faults: 1, recs: 1, learners: 2},
		{name: "three, two learners, etcd one", voters: 3, desired: 3, version: current, spares: 2, recs: 1, broken: 1, learners: 2, lower: 2},
		{name: "three, two learners, new ones one", voters: 3, desired: 3, version: current, spares: 2, faults: 1, recs: 1, learners: 2, lowNew: true},
		{name: "one to three, two learners, new ones one", voters: 1, desired: 3, version: current, spares: 2, recs: 1, learners: 2, lowNew: true},
		{name: "three to five, two learners", voters: 3, desired: 5, version: current, spares: 2, faults: 1, recs: 1, learners: 2},
		{name: "five, two learners", voters: 5, desired: 5, version: current, spares: 2, faults: 1, recs: 1, learners: 2},

		{name: "three, drains", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 1, guard: true},
		{name: "three, drains, three faults", voters: 3, desired: 3, version: current, spares: 1, faults: 3, recs: 1, guard: true},
		{name: "three, drains, two reconcilers", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 2, guard: true},
		{name: "three, drains, escape", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 1, guard: true, escape: true},
		{name: "three, drains, silent voters", voters: 3, desired: 3, version: current, spares: 1, faults: 3, recs: 1, guard: true, mutes: true},
		{name: "one to three, drains", voters: 1, desired: 3, version: current, spares: 2, faults: 1, recs: 1, guard: true},
		{name: "three to five, drains", voters: 3, desired: 5, version: current, spares: 2, faults: 1, recs: 1, guard: true},

		{name: "set, three", voters: 3, desired: 3, version: current, spares: 2, faults: 1, recs: 1, set: true, edits: 1, born: true, deletes: 2},
		{name: "set, three, two learners", voters: 3, desired: 3, version: current, spares: 2, faults: 1, recs: 1, learners: 2, set: true, edits: 1, born: true, deletes: 2},
		{name: "set, three, indexes and domains", voters: 3, desired: 3, version: current, spares: 2, recs: 1, set: true, edits: 1, born: true, deletes: 1, domains: 2, indexes: true},
		{name: "set, three in one domain", voters: 3, desired: 3, version: current, spares: 2, recs: 1, set: true, born: true, deletes: 1, domains: 3, crowded: true},
		{name: "set, three, bad hosts", voters: 3, desired: 3, version: current, spares: 3, recs: 1, set: true, edits: 2, born: true, deletes: 1, broken: 1, barren: 1},
		{name: "set, three, two reconcilers", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 2, set: true, edits: 1, born: true, deletes: 2},
		{name: "set, three, escape", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, set: true, edits: 1, born: true, escape: true, deletes: 2},
		{name: "set, OnDelete", voters: 3, desired: 3, version: current, spares: 2, faults: 1, recs: 1, set: true, onDelete: true, edits: 1, born: true, deletes: 2, barren: 1},
		{name: "set, one to three", voters: 1, desired: 3, version: current, spares: 3, recs: 1, set: true, edits: 1, born: true, deletes: 1, broken: 1},
		{name: "set, three to one", voters: 3, desired: 1, version: current, spares: 1, faults: 1, recs: 1, set: true, edits: 1, born: true, deletes: 1},
		{name: "set, three to five, then three", voters: 3, desired: 5, then: 3, version: current, spares: 3, recs: 1, set: true, born: true, deletes: 1},
		{name: "set, five to one", voters: 5, desired: 1, version: current, spares: 1, faults: 1, recs: 1, set: true, born: true, deletes: 1},

		{name: "guard mode, three", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, operated: true, escape: true},
		{name: "guard mode, three, 3.5, leaders move", voters: 3, desired: 3, version: "3.5.21", spares: 1, faults: 1, recs: 1, operated: true, moves: true},
		{name: "guard mode, two spares", voters: 3, desired: 3, version: current, spares: 2, faults: 2, recs: 1, operated: true, broken: 1},
		{name: "guard mode, adopted", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, operated: true, bare: true, hostile: true, escape: true},
		{name: "guard mode, installed during two deletions", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, operated: true, bare: true, begun: 2, escape: true},
		{name: "guard mode, hostile", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, operated: true, hostile: true, escape: true, lifted: true},
		{name: "guard mode, Holdfast down", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, operated: true, escape: true, outage: true},
		{name: "guard mode, Nodes stay", voters: 3, desired: 3, version: current, spares: 2, faults: 1, recs: 1, operated: true, stays: true, escape: true},
		{name: "guard mode, Nodes lost", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, operated: true, nodes: true, escape: true},
		{name: "guard mode, silent voters", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 1, operated: true, mutes: true, deletes: 1},
		{name: "guard mode, beyond", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 1, operated: true, escape: true, lifted: true, beyond: true},
		{name: "guard mode, five", voters: 5, desired: 5, version: current, spares: 1, faults: 1, recs: 1, operated: true, deletes: 2},

		// What is open, and why: docs/proof/invariants.md.
		{name: "a Machine flees", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, flees: true},
		{name: "open: windows", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, escape: true, windows: true, finds: "I1"},
		{name: "open: guard mode, windows", voters: 3, desired: 3, version: current, spares: 1, faults: 1, recs: 1, operated: true, windows: true, finds: "quorum"},
		{name: "open: guard mode, any deletions", voters: 3, desired: 3, version: current, spares: 1, faults: 2, recs: 1, operated: true, mutes: true, finds: "quorum"},
		{name: "open: guard mode, five", voters: 5, desired: 5, version: current, spares: 1, faults: 2, recs: 1, operated: true, deletes: 2, finds: "quorum"},
		// Planted: without lock and second look, two reconcilers remove two different voters.
		{name: "planted: blind", voters: 3, desired: 3, version: current, spares: 1, recs: 2, blind: true, finds: "I4"},
	}
}
