package machineset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// grow plans a Machine where there are fewer than wanted: for one that is being deleted in its failure domain and with its index, else
// where there are the fewest.
func (p *planner) grow() []Action {
	coming := 0 // or there: one that will not come up does not count
	for _, m := range p.live {
		if !p.wrecked(m) {
			coming++
		}
	}
	gone := p.unreplaced()
	if gone == nil {
		coming += p.strangers
	}
	if coming >= p.set.Replicas {
		return nil
	}
	create := Create{Index: p.freeIndex(nil), Domain: p.emptiest(nil)}
	why := fmt.Sprintf("%d of %d Machines are there or coming", coming, p.set.Replicas)
	if gone != nil {
		place := p.set.place(gone)
		create.Index = *place.Index
		if slices.Contains(p.set.Domains, place.Domain) {
			create.Domain = place.Domain
		}
		why += fmt.Sprintf(", and Machine %s is being deleted", gone.Name)
	}
	if shut := cmp.Or(p.shut(nil), p.pause()); shut != "" {
		return p.wait(create.describe(""), shut)
	}
	return []Action{{Change: create, Why: why}}
}

// unreplaced is the Machine, of those that are being deleted, whose index no live Machine has: the longest deleting first, nil for none.
func (p *planner) unreplaced() *quorum.Machine {
	for _, m := range p.deleting {
		if i := p.set.place(m).Index; i != nil && !p.indexTaken(*i, nil) {
			return m
		}
	}
	return nil
}

// pause is why no Machine is created yet, though nothing else is in the way: the last ones came to nothing, and another would do so, too.
func (p *planner) pause() string {
	if !p.s.Now.Before(p.set.NotBefore) {
		return ""
	}
	return "the next try is at " + p.set.NotBefore.UTC().Format(time.RFC3339) + ", or as soon as the set's spec is changed"
}
