package membership

import (
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// removeDead is step 5. It removes a dead voter, although voters then drop below desired for a moment, if
// etcd refuses to add a replacement while that voter is listed; or if the host that waits has the dead voter's address, because etcd lists
// a peer URL only once, and no other Machine can get a learner. A Machine whose learner gave way does not count as one that can.
// While there is a learner, nothing is removed: the learner needs no other place, and a voter that seems dead may only be slow. The other
// voters have quorum without it, or decide would have stopped.
func (p *planner) removeDead() []Action {
	if p.hasLearner() {
		return nil
	}
	refused := p.addRefused() != nil
	otherWay := p.waitingMachine(func(m *quorum.Machine) bool {
		return p.canAddOn(m) && p.join.Node(m).GaveWayAt.IsZero()
	}) != nil
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		machine, uid, ok := p.leavingFrom(member)
		if !ok || member.Learner || !p.s.Dead(member) {
			continue
		}
		w := p.waitingMachine(func(m *quorum.Machine) bool {
			return refused || !otherWay && (slices.Contains(p.join.Joined(m), member) ||
				slices.Contains(p.listedAt(p.join.Node(m)), member) && quorum.PeerHostsOf(member.PeerURLs).Meets(m.Addresses, m.HostNames)) // a Node's own address may be forged
		})
		if w == nil {
			continue
		}
		return []Action{{
			Step: 5, Machine: machine, UID: uid, Change: RemoveVoter{Member{member.ID, member.Name}},
			Why: fmt.Sprintf("it is dead, %s, and etcd takes no member for Machine %s while it is listed", p.whyLeaving(member), w.Name),
		}}
	}
	return nil
}
