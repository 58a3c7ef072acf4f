package membership

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// moveLeader is leadership moved from a voter that is to go.
func (p *planner) moveLeader(step int, from, to *quorum.Member, why string) Action {
	machine, uid, _ := p.leavingFrom(from)
	return Action{Step: step, Machine: machine, UID: uid, Change: MoveLeader{From: Member{from.ID, from.Name}, To: Member{to.ID, to.Name}}, Why: why}
}

// successor is the healthy voter that leadership moves to, nil if there is none: Preferred, in this order: a voter that is not leaving; one
// that has been healthy for SettledAfter, because a new leader refuses removals until the others have been connected to it for some seconds;
// the one on the newest Machine, because when all are replaced the oldest come next.
func (p *planner) successor(leader *quorum.Member) *quorum.Member {
	var found *quorum.Member
	for k := range p.s.Ring.Members {
		m := &p.s.Ring.Members[k]
		if m != leader && !m.Learner && m.Healthy && (found == nil || p.leaderLess(m, found)) {
			found = m
		}
	}
	return found
}

// leaderLess reports whether a healthy voter is to lead rather than another.
func (p *planner) leaderLess(a, b *quorum.Member) bool {
	switch settled := p.connectedLongEnough(a.Since); {
	case p.isLeaving(a) != p.isLeaving(b):
		return p.isLeaving(b)
	case settled != p.connectedLongEnough(b.Since):
		return settled
	case settled:
		return p.machineOf(a).CreatedAt.After(p.machineOf(b).CreatedAt)
	}
	return a.Since.Before(b.Since)
}

// connectedLongEnough reports whether a member that has been healthy since then is connected for long enough that etcd counts it.
func (p *planner) connectedLongEnough(since time.Time) bool {
	return !since.IsZero() && p.s.Now.Sub(since) >= p.s.Limits.SettledAfter
}
