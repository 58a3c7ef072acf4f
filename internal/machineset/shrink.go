package machineset

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// shrink deletes a Machine where there are more than wanted.
func (p *planner) shrink() []Action {
	if p.stopped || len(p.live) <= p.set.Replicas {
		return nil
	}
	m := slices.MinFunc(p.live, p.deletionOrder)
	shut := p.unsettled(m)
	if p.wrecked(m) { // what is being deleted may be waiting for this one's successor
		shut = p.shut(m)
	}
	if shut != "" {
		return p.wait("delete Machine "+m.Name, shut)
	}
	if v := p.join.Voter(m); v != nil {
		if n := p.votersWithout(m); n < p.set.Replicas {
			why := fmt.Sprintf("%d of the set's other Machines vote, and %d are wanted", n, p.set.Replicas)
			if stuck := p.joinsNone(m); stuck != "" {
				why += "; " + stuck
			}
			return p.wait("delete Machine "+m.Name, why)
		}
	} else if is, why := p.join.Hosting(m); is == quorum.HostingUnknown {
		return p.wait("delete Machine "+m.Name, why)
	}
	why := fmt.Sprintf("%d Machines are live, and %d are wanted", len(p.live), p.set.Replicas)
	if o := p.outdated(m); o != "" {
		why += ": " + o
	}
	return []Action{about(m, Delete{}, why)}
}

// votersWithout counts the live Machines of the set, other than one, that host a healthy voter.
func (p *planner) votersWithout(without *quorum.Machine) int {
	n := 0
	for _, m := range p.live {
		if m != without && p.votes(m) {
			n++
		}
	}
	return n
}

// deletionOrder says which Machine goes before another, in the order in which etcd's voters go: first one whose voter is lost, then
// one that is outdated, then the oldest in the most crowded failure domain. A Machine without a voter goes before those that are like
// it but for that: it got no instance, say.
func (p *planner) deletionOrder(a, b *quorum.Machine) int {
	return cmp.Or(p.leaving(a).Compare(p.leaving(b)), cmp.Compare(a.Name, b.Name))
}

// The tiers of quorum.RemovalRank.
const (
	tierLearner   = iota // hosts a learner that no seat waits for: while it is there, the gate is shut for others
	tierIdle             // hosts no voter, and is outdated or not the one that is to replace another
	tierSucceeded        // outdated, and an updated Machine has its index
	tierOutdated
	tierUpdated
)

func (p *planner) leaving(m *quorum.Machine) quorum.RemovalRank {
	voter := p.join.Voter(m)
	l := quorum.RemovalRank{Lost: voter != nil && p.s.Dead(voter), Tier: tierUpdated, Crowd: p.inDomain(p.set.place(m).Domain, nil)}
	if voter != nil {
		l.Since = m.CreatedAt
	}
	surge := 0 // Machines more than wanted that are there to replace others
	if p.set.Strategy == StrategyRollingUpdate {
		surge = 1
	}
	switch surplus := len(p.live) > p.set.Replicas+surge; {
	case surplus && voter == nil && len(p.join.Members(m)) > 0:
		l.Tier = tierLearner
	case voter == nil && (p.outdated(m) != "" || surplus):
		l.Tier = tierIdle
	case p.outdated(m) == "":
	case p.succeeded(m):
		l.Tier = tierSucceeded
	default:
		l.Tier = tierOutdated
	}
	return l
}

// succeeded reports whether an outdated Machine's index is that of an updated one.
func (p *planner) succeeded(m *quorum.Machine) bool {
	i := p.set.place(m).Index
	return i != nil && p.outdated(m) != "" && p.indexTaken(*i, m)
}
