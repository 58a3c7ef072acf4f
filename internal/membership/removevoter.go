package membership

import (
	"cmp"
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// removeVoter is step 4: a voter of a deleting Machine, or the bootstrap member, goes once the others are as many as wanted,
// healthy enough, and tolerate what they should.
func (p *planner) removeVoter() []Action {
	s := p.s
	voters, _ := s.Ring.Voters()
	healthy := p.join.Staying()
	var best *quorum.Member
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		if _, _, ok := p.leavingFrom(member); !ok || member.Learner || p.neededFor(member) != "" {
			continue
		}
		left, remain := healthy, voters-1
		if p.join.StaysHealthy(member) {
			left--
			remain = p.join.Serving(member, s.Limits.StableFor)
			p.plan.InProgress = p.plan.InProgress || p.join.Serving(member, 0) >= s.Desired
		}
		spare, now := left-quorum.Size(voters-1), healthy-quorum.Size(voters)
		if remain < s.Desired || spare < min(now, quorum.Tolerance(s.Desired)) || !p.quorumAfterRemoving(member) {
			continue
		}
		if best == nil || p.removalOrder(member, best) < 0 {
			best = member
		}
	}
	if best == nil {
		return nil
	}
	machine, uid, _ := p.leavingFrom(best)
	if to := p.successor(best); s.Ring.Leader == best.ID && to != nil {
		return []Action{p.moveLeader(4, best, to, "the leader is about to be removed")}
	}
	return []Action{{
		Step: 4, Machine: machine, UID: uid, Change: RemoveVoter{Member{best.ID, best.Name}},
		Why: fmt.Sprintf("%s, and %s remain for %d wanted", p.whyLeaving(best), quorum.NVoters(voters-1), s.Desired),
	}}
}

// quorumAfterRemoving reports whether etcd keeps a quorum of healthy voters when this member is removed. Voters on released Machines
// count: they vote until they stop.
func (p *planner) quorumAfterRemoving(without *quorum.Member) bool {
	voters, alive := p.s.Ring.Voters()
	if without.Healthy {
		alive--
	}
	return alive >= quorum.Size(voters-1)
}

// removalOrder orders leaving voters: unhealthy first, then the bootstrap member, then the most crowded failure
// domain, then the longest deleting.
func (p *planner) removalOrder(a, b *quorum.Member) int {
	return cmp.Or(p.removalRank(a).Compare(p.removalRank(b)), cmp.Compare(a.ID, b.ID))
}

func (p *planner) removalRank(m *quorum.Member) quorum.RemovalRank {
	l := quorum.RemovalRank{Lost: !p.join.StaysHealthy(m), Tier: 1, Crowd: p.votersInDomain(m), Since: p.machineOf(m).DeletedAt}
	if p.join.Host(m).Bootstrap {
		l.Tier = 0
	}
	return l
}
