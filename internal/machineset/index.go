package machineset

import "github.com/holdfast-dev/holdfast/internal/quorum"

// indexTaken reports whether a live Machine has an index, but for those that will not come up and, if one is about to be replaced, for all
// that are outdated.
func (p *planner) indexTaken(index int, replaced *quorum.Machine) bool {
	for _, m := range p.live {
		i := p.set.place(m).Index
		if i != nil && *i == index && m != replaced && !p.wrecked(m) && (replaced == nil || p.outdated(m) == "") {
			return true
		}
	}
	return false
}

// freeIndex is the index of a new Machine: that of the one that it is for, if no other has it, else the lowest that no live Machine has.
func (p *planner) freeIndex(replaces *quorum.Machine) int {
	if replaces != nil {
		if i := p.set.place(replaces).Index; i != nil && !p.indexTaken(*i, replaces) {
			return *i
		}
	}
	for i := 0; ; i++ {
		if !p.indexTaken(i, nil) {
			return i
		}
	}
}

// noteIndexes notes two updated Machines with the same index. It does so only while there are no more Machines than wanted: with more,
// one of the two may be there to replace the other.
func (p *planner) noteIndexes() {
	if len(p.live) > p.set.Replicas {
		return
	}
	for k, m := range p.live {
		for _, other := range p.live[:k] {
			a, b := p.set.place(m), p.set.place(other)
			if a.Index != nil && b.Index != nil && *a.Index == *b.Index && p.outdated(m) == "" && p.outdated(other) == "" {
				p.note(ReasonIndexTwice, m.Name, "Machines %s and %s have one index, %d: the platform's operator would delete one of them", other.Name, m.Name, *a.Index)
			}
		}
	}
}
