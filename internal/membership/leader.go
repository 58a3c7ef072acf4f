package membership

import "time"

// moveLeader is leadership moved from a voter that is to go.
func (p *planner) moveLeader(step, from, to int, why string) Action {
	one, two := &p.s.Ring.Members[from], &p.s.Ring.Members[to]
	machine, uid, _ := p.leavingFrom(from)
	return Action{Kind: MoveLeader, Step: step, Machine: machine, UID: uid, Member: one.ID, MemberName: one.Name, To: two.ID, ToName: two.Name, Why: why}
}

// successor is the healthy voter that leadership moves to, -1 if there is none: one that stays if there is one, and of those the
// one on the newest Machine, as the oldest are the next to be replaced where all are. A leader that joined just now refuses
// the removal that is to come until the others have been connected to it for some seconds, so such a one comes last.
func (p *planner) successor(leader int) int {
	found := -1
	for k := range p.s.Ring.Members {
		m := &p.s.Ring.Members[k]
		if k != leader && !m.Learner && m.Healthy && (found < 0 || p.leaderLess(k, found)) {
			found = k
		}
	}
	return found
}

// leaderLess says whether a healthy voter is to lead rather than another.
func (p *planner) leaderLess(a, b int) bool {
	one, two := p.s.Ring.Members[a].Since, p.s.Ring.Members[b].Since
	switch settled := p.connectedLongEnough(one); {
	case p.isLeaving(a) != p.isLeaving(b):
		return p.isLeaving(b)
	case settled != p.connectedLongEnough(two):
		return settled
	case settled:
		return p.createdAt(a).After(p.createdAt(b))
	}
	return one.Before(two)
}

// connectedLongEnough says whether a member that has been healthy since then is connected for long enough that etcd counts it.
func (p *planner) connectedLongEnough(since time.Time) bool {
	return !since.IsZero() && p.s.Now.Sub(since) >= p.s.Limits.SettledAfter
}

func (p *planner) createdAt(k int) time.Time {
	if i := p.join.Hosts[k].Machine(); i >= 0 {
		return p.s.Machines[i].CreatedAt
	}
	return time.Time{}
}
