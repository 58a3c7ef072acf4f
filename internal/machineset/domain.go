package machineset

import (
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// inDomain counts the set's live Machines in a failure domain, but for one; nil for all.
func (p *planner) inDomain(domain string, but *quorum.Machine) int {
	n := 0
	for _, m := range p.live {
		if m != but && p.set.place(m).Domain == domain {
			n++
		}
	}
	return n
}

// emptiest is the failure domain with the fewest live Machines, without counting one Machine (nil to count all). Of several such domains it
// is that Machine's own, else the first in the alphabet. "" without domains.
func (p *planner) emptiest(without *quorum.Machine) string {
	best, own := "", ""
	if without != nil {
		own = p.set.place(without).Domain
	}
	domains := slices.Sorted(slices.Values(p.set.Domains))
	for i, d := range domains {
		n, least := p.inDomain(d, without), p.inDomain(best, without)
		if i == 0 || n < least || n == least && d == own {
			best = d
		}
	}
	return best
}

// uneven is by how many live Machines the most crowded of the set's failure domains exceeds the emptiest; 0 without domains.
func (p *planner) uneven() int {
	if len(p.set.Domains) == 0 {
		return 0
	}
	most, least := 0, len(p.live)
	for _, d := range p.set.Domains {
		n := p.inDomain(d, nil)
		most, least = max(most, n), min(least, n)
	}
	return most - least
}
