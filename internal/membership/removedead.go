package membership

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// removeDead is step 5, with updatePeerURL: a dead voter goes although voters drop below desired for that moment, where
// etcd would take no replacement while it is listed. That is also so if the host that waits has come
// back at its address, for etcd lists a peer URL once, and no other replacement can be made: one whose
// learner gave way before is none. Nothing goes while a learner is on its way, which needs no place: what is taken
// for dead may only be slow. The rest has quorum without it, or decide had stopped.
func (p *planner) removeDead() []Action {
	s := p.s
	w := p.waitingMachine(anyMachine)
	if w == nil || p.hasLearner() {
		return nil
	}
	accepts, _ := s.Ring.Accepts()
	otherWay := p.waitingMachine(func(m *quorum.Machine) bool {
		return p.hostsNothing(m) && p.join.Node(m).GaveWayAt.IsZero()
	}) != nil
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		machine, uid, ok := p.leavingFrom(member)
		if !ok || member.Learner || !s.Dead(member) || s.Now.Sub(member.Since) < s.Limits.SettledAfter {
			continue
		}
		if accepts && (otherWay || !slices.Contains(p.join.Members(w), member)) {
			continue
		}
		return []Action{{
			Step: 5, Machine: machine, UID: uid, Change: RemoveVoter{Member{member.ID, member.Name}},
			Why: fmt.Sprintf("it is dead, %s, and etcd takes no member for Machine %s while it is listed", p.whyLeaving(member), w.Name),
		}}
	}
	return nil
}
