package main

import "slices"

// mutants switch off each rule, each step, each invariant, what holdfast verify and the set decide by, and the conditions that matter,
// by the name under which DESIGN and the scenarios know them.
func mutants() []mutant {
	return slices.Concat(admission(), plan(), join(), told(), invariants(), starts(), set(), model())
}
