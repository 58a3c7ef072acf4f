package membership

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// promote is step 6: a learner that caught up becomes a voter if its Machine is live and hooked, a seat is free, the quorum
// guard is sized for one voter more, and the learner's own etcd takes as many learners as there are.
func (p *planner) promote() []Action {
	if !p.seatFree() || p.holdsPromotion() {
		return nil
	}
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		m := p.join.Host(member).Machine()
		if !member.Learner || m == nil || !p.s.Steady(member) {
			continue
		}
		if p.takesAll(member) && !m.Deleting() && !m.Mirrored && m.Hook == quorum.EntryOurs && m.Latch == quorum.EntryOurs && !p.hostGoesWithAnother(m) {
			return []Action{{
				Step: 6, Machine: m.Name, UID: m.UID, Change: Promote{Member{member.ID, member.Name}},
				Why: fmt.Sprintf("it is %d entries behind the leader, its Machine is hooked, and a seat is free", p.s.Lag(member)),
			}}
		}
	}
	return nil
}

// takesAll reports whether the learner's own limit (etcd's --max-learners) is at least the number of learners there are. If it is lower, its etcd
// crashes when another learner starts. A voter must not crash so. With one learner, or where Holdfast adds one at a time, the limit does not matter.
func (p *planner) takesAll(learner *quorum.Member) bool {
	n := p.learners()
	return n == 1 || p.s.Limits.MaxLearners == 1 || learner.MaxLearners >= n
}

// seatFree reports whether a voter may be added: there are fewer voters than desired; or a voter is leaving, or the set deletes a voter's
// Machine after this promotion (Surge), and once the learner votes that voter can be removed. So there is one voter too many for a short
// time only.
func (p *planner) seatFree() bool {
	voters, _ := p.s.Ring.Voters()
	if voters != p.s.Desired {
		return voters < p.s.Desired
	}
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		_, _, leaves := p.leavingFrom(member)
		leaves = leaves || p.s.Surge && (member.Healthy || p.s.Dead(member))
		if leaves && !member.Learner && (!p.join.StaysHealthy(member) || p.join.Serving(member, 0)+1 >= p.s.Desired) {
			return true
		}
	}
	return false
}
