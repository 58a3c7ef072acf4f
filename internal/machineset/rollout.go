package machineset

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// rollout creates one Machine more than wanted, for one that is outdated or in a failure domain that is too crowded. shrink deletes that
// one once the new one votes.
func (p *planner) rollout() []Action {
	if p.set.Strategy != StrategyRollingUpdate {
		p.noteNeedsDelete()
		return nil
	}
	if p.stopped || len(p.live) != p.set.Replicas {
		return nil // another is on its way in or out
	}
	m, why := p.nextOutdated()
	if m == nil {
		m, why = p.nextToMove()
	}
	if m == nil {
		return nil
	}
	create := Create{Index: p.freeIndex(m), Domain: p.emptiest(m)}
	if shut := cmp.Or(p.unsettled(m), p.joinsNone(m), p.pause()); shut != "" {
		return p.wait(create.describe(""), shut)
	}
	return []Action{{Change: create, Why: why}}
}

// nextOutdated is the outdated Machine that is replaced next, and why; nil for none.
func (p *planner) nextOutdated() (*quorum.Machine, string) {
	var next *quorum.Machine
	for _, m := range p.live {
		if p.outdated(m) != "" && (next == nil || p.deletionOrder(m, next) < 0) {
			next = m
		}
	}
	if next == nil {
		return nil, ""
	}
	return next, fmt.Sprintf("Machine %s must be replaced: %s", next.Name, p.outdated(next))
}

// nextToMove is the Machine that leaves the most crowded failure domain for the emptiest, and why; nil if the spread is even.
func (p *planner) nextToMove() (*quorum.Machine, string) {
	if len(p.set.Domains) == 0 || len(p.live) == 0 {
		return nil, ""
	}
	m := slices.MinFunc(p.live, func(a, b *quorum.Machine) int {
		return cmp.Or(cmp.Compare(p.leaving(b).Crowd, p.leaving(a).Crowd), p.deletionOrder(a, b))
	})
	from, to := p.set.place(m).Domain, p.emptiest(nil)
	here, there := p.inDomain(from, nil), p.inDomain(to, nil)
	if here-there < 2 {
		return nil, ""
	}
	return m, fmt.Sprintf("Machine %s is to move to failure domain %s: %d Machines are in %s, and %d there", m.Name, to, here, from, there)
}

// noteNeedsDelete says which Machines are replaced once they are deleted.
func (p *planner) noteNeedsDelete() {
	for _, m := range p.live {
		if o := p.outdated(m); o != "" {
			p.note(ReasonNeedsDelete, m.Name, "Machine %s is replaced once it is deleted: %s", m.Name, o)
		}
	}
}
