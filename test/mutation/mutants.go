package main

// part is a chapter of the list.
type part struct {
	heading string
	mutants []mutant
}

// parts are all mutants: they switch off each rule, each step, each invariant, what holdfast verify and the set decide by, and the
// conditions that matter, by the name under which DESIGN and the scenarios know them.
func parts() []part {
	return []part{
		{"Admission", admission()},
		{"The plan", plan()},
		{"The join", join()},
		{"What is told", told()},
		{"The invariants", invariants()},
		{"Whether etcd may start", starts()},
		{"The control plane's Machines as one set", set()},
	}
}

func mutants() (all []mutant) {
	for _, p := range parts() {
		all = append(all, p.mutants...)
	}
	return all
}
