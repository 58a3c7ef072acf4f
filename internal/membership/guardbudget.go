package membership

import (
	"net/netip"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// keepQuorumGuard is step 8: the budget is sized for etcd's voters, each Node that hosts a member or waits for one has a pod, and no
// other has.
func (p *planner) keepQuorumGuard() []Action {
	g := &p.s.QuorumGuard
	if !g.Manageable() {
		return nil
	}
	var out []Action
	if voters, _ := p.s.Ring.Voters(); g.MinAvailable == nil || *g.MinAvailable != p.minAvailable() || !g.Intact {
		out = append(out, Action{Step: 8, Change: SizeGuard{p.minAvailable(), g.Version}, Why: "etcd has " + quorum.NVoters(voters)})
	}
	renewed := false
	for i := range g.Pods {
		pod := &g.Pods[i]
		why := p.whyUnwanted(pod)
		if why == "" && !renewed && p.outdated(pod) {
			renewed, why = true, "it is outdated, so Holdfast creates it again"
		}
		if why != "" {
			out = append(out, Action{Step: 8, Change: DeleteGuardPod{Node: pod.Node, Pod: pod.Name, PodUID: pod.UID}, Why: why})
		}
	}
	for n := range p.s.Nodes {
		node := &p.s.Nodes[n]
		if g.MinAvailable == nil || node.Cordoned || !p.nodeNeedsPod(node) || slices.ContainsFunc(g.Pods, func(pod quorum.GuardPod) bool { return pod.Node == node.Name && pod.Owner != quorum.PodOwnerOther }) {
			continue
		}
		if addr, ok := p.probeAddress(node); ok {
			out = append(out, Action{Step: 8, Change: CreateGuardPod{node.Name, addr}, Why: "it hosts an etcd member, or is about to"})
		}
	}
	return out
}

// probeAddress is the address at which the guard pod of a Node asks its member: by the member's client URLs, or its peer URLs; before it is
// added, where it will listen.
func (p *planner) probeAddress(node *quorum.Node) (addr netip.Addr, ok bool) {
	for _, m := range p.join.MembersOn(node) {
		for _, urls := range [...][]string{m.ClientURLs, m.PeerURLs} {
			at := quorum.PeerHostsOf(urls)
			if n := slices.IndexFunc(node.Addresses, func(a netip.Addr) bool { return at.Meets([]netip.Addr{a}, nil) }); n >= 0 {
				return node.Addresses[n].Unmap(), true
			}
		}
	}
	return p.address(node)
}

// leastReady is what leaves etcd its quorum after one drain more, if etcd tolerates one at all: as many ready pods as there
// are voters, less one. A voter that is dead or runs on no Node counts: no ready pod stands for it. The only voter may be
// drained, where one is wanted: nothing else could ever reboot its Node.
func leastReady(voters, desired int) int {
	if voters == 1 && desired == 1 {
		return 0
	}
	return voters - min(1, quorum.Tolerance(voters))
}

// minAvailable is the budget's minAvailable. It is computed from the present voters. If a seat is free, it is computed for one voter more
// while there is a learner; without one, while a Machine is about to host a member, it is at least the number of voters, so that none can be
// drained. Each pod that no Node needs adds one (somebody else's pod, an old guard's, or one of a Node that no longer needs it), unless the
// pod is being deleted: the budget would count it as a ready voter.
func (p *planner) minAvailable() int {
	voters, _ := p.s.Ring.Voters()
	n := leastReady(voters, p.s.Desired)
	switch {
	case !p.seatFree():
	case p.hasLearner():
		n = max(n, leastReady(voters+1, p.s.Desired))
	case p.onTheWay():
		n = max(n, voters)
	}
	for i := range p.s.QuorumGuard.Pods {
		if pod := &p.s.QuorumGuard.Pods[i]; !pod.Deleting && (pod.Owner == quorum.PodOwnerOther || !p.podWanted(pod)) {
			n++
		}
	}
	return n
}

// onTheWay reports whether a Machine without a member is to host one: its Node is ready, or it is too new for anybody to ask where its Node is.
func (p *planner) onTheWay() bool {
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if m.ControlPlane() && !m.Deleting() && !m.Mirrored && m.Phase != "Failed" && len(p.join.Members(m)) == 0 {
			if n := p.join.Node(m); n != nil && n.Ready || p.s.Now.Sub(m.CreatedAt) < nodeStartupTimeout {
				return true
			}
		}
	}
	return false
}

// nodeNeedsPod reports whether a Node should have a guard pod.
func (p *planner) nodeNeedsPod(n *quorum.Node) bool {
	return p.join.NeedsGuardPod(n) && !p.machineReleasing(n)
}

// GuardNodes are the Nodes that get a guard pod: each that needs one, without cordoned Nodes whose pod a drain has taken. In
// guard mode a Node without a member may wait for its pod.
func GuardNodes(j *quorum.Join) (names []string) {
	p := newPlanner(j)
	for i := range p.s.Nodes {
		node := &p.s.Nodes[i]
		if p.nodeNeedsPod(node) && (p.nodeLacksPod(node) || p.s.QuorumGuard.Pod(node.Name) != nil) {
			names = append(names, node.Name)
		}
	}
	return names
}

// nodeLacksPod reports whether a Node is without a guard pod that it should have by now.
func (p *planner) nodeLacksPod(n *quorum.Node) bool {
	return p.nodeNeedsPod(n) && !n.Cordoned && p.s.QuorumGuard.Pod(n.Name) == nil && (p.s.Mode == quorum.ModeFull || len(p.join.MembersOn(n)) > 0)
}

// podWanted reports whether a pod of the guard belongs there: its Node needs one.
func (p *planner) podWanted(pod *quorum.GuardPod) bool {
	node := p.s.Node(pod.Node)
	return pod.Owner == quorum.PodOwnerGuard && node != nil && p.nodeNeedsPod(node)
}

// holdsPromotion reports whether the budget would let one voter too many be drained once a learner is promoted.
func (p *planner) holdsPromotion() bool {
	return p.s.QuorumGuard.Manageable() && !p.s.QuorumGuard.AtLeast(p.minAvailable())
}

// whyUnwanted says why a pod of the guard is to go for good, "" if it is not.
func (p *planner) whyUnwanted(pod *quorum.GuardPod) string {
	switch {
	case pod.Deleting || pod.Owner == quorum.PodOwnerOther:
		return ""
	case pod.Owner == quorum.PodOwnerOldGuard:
		return "the budget that it was made for is gone"
	case p.podWanted(pod):
		return ""
	case p.machineReleasing(p.s.Node(pod.Node)):
		if !p.machineReleased(p.s.Node(pod.Node)) {
			return "" // it goes with the release
		}
		return "its Machine is let go, so its voter counts as lost, and the budget is for the others"
	default:
		return "no etcd member is on its Node, nor is one to come"
	}
}

// machineReleased reports whether nothing holds the Machine of a Node any more.
func (p *planner) machineReleased(n *quorum.Node) bool {
	return p.hasMachineWhere(n, (*quorum.Machine).DeletingUnheld)
}

// machineReleasing reports whether the Machine of a Node is released, or is being deleted, is in the ledger, and may be released.
func (p *planner) machineReleasing(n *quorum.Node) bool {
	return p.machineReleased(n) || p.hasMachineWhere(n, func(m *quorum.Machine) bool {
		return m.Deleting() && p.s.Ledger.Has(m.UID) && p.join.MayRelease(m)
	})
}

// hasMachineWhere reports whether the Node belongs to a Machine for which kind returns true.
func (p *planner) hasMachineWhere(n *quorum.Node, kind func(*quorum.Machine) bool) bool {
	for i := range p.s.Machines {
		if m := &p.s.Machines[i]; n != nil && p.join.Node(m) == n && kind(m) {
			return true
		}
	}
	return false
}

// releasePod is the guard pod that goes with a Machine that is let go, nil for none: left there it would stand for a voter that
// counts as lost, and the budget would let another be drained in its place. ok reports whether it may go now: once the budget is sized so that
// nothing can be drained any more, and enough of the other guard pods are ready. A person who lifted the rule escape-hatch waives both.
func (p *planner) releasePod(m *quorum.Machine) (pod *quorum.GuardPod, ok bool) {
	n := p.join.Node(m)
	if n == nil || !p.s.QuorumGuard.Manageable() {
		return nil, true
	}
	if pod = p.s.QuorumGuard.Pod(n.Name); pod == nil || m.Lifts(quorum.RuleEscapeHatch, p.s.Now) {
		return pod, true
	}
	voters, _ := p.s.Ring.Voters()
	ready := 0
	for i := range p.s.QuorumGuard.Pods {
		if other := &p.s.QuorumGuard.Pods[i]; other.Ready && !other.Deleting && p.podWanted(other) {
			ready++
		}
	}
	return pod, ready >= quorum.Size(voters) && p.s.QuorumGuard.AtLeast(p.minAvailable())
}

// outdated reports whether a guard pod should be recreated now. A ready pod is recreated only while no Node lacks its ready guard pod,
// so that a drain waits for at most one pod.
func (p *planner) outdated(pod *quorum.GuardPod) bool {
	node := p.s.Node(pod.Node)
	if pod.Deleting || node == nil || !p.podWanted(pod) {
		return false
	}
	addr, ok := p.probeAddress(node)
	if !pod.Outdated && (!ok || addr == pod.Address) {
		return false
	}
	return !pod.Ready || !p.podMissing()
}

// podMissing reports whether a Node that is to have a ready guard pod has none.
func (p *planner) podMissing() bool {
	for i := range p.s.Nodes {
		n := &p.s.Nodes[i]
		if pod := p.s.QuorumGuard.Pod(n.Name); p.nodeNeedsPod(n) && (pod == nil || !pod.Ready) {
			return true
		}
	}
	return false
}
