package quorum

import (
	"net/netip"
	"slices"
)

// DrainGuard is the quorum guard as it stands: a PodDisruptionBudget over pods that are ready while the etcd voter of their
// Node is healthy, so that nothing drains more Nodes than etcd can spare. Each pod is made for its Node. The zero value is a
// guard that Holdfast does not manage.
type DrainGuard struct {
	Managed      bool
	Absent       string // why it cannot be managed now, for people: its namespace is missing; "" if it can
	Version      string // of the budget, "" without one: it is sized only as it was read
	MinAvailable int    // of the budget, -1 without one
	Intact       bool   // the budget is otherwise as Holdfast writes it
	Pods         []GuardPod
}

// GuardPod is a pod that the budget counts.
type GuardPod struct {
	Name, UID string
	Node      string // "" while it is not scheduled
	Owner     PodOwner
	Address   netip.Addr // at which it looks for the Node's etcd member
	Outdated  bool       // it is not as Holdfast writes it, or has ended for good
	Ready     bool
	Deleting  bool
}

// PodOwner says whose a guard pod is, by its controller: anybody can give a pod the guard's label.
type PodOwner uint8

const (
	OfGuard  PodOwner = 1 + iota // of the budget that stands
	OfOld                        // of a budget of that name that is gone
	OfOthers                     // no pod of Holdfast's
)

// kept says whether the guard can be kept now.
func (g *DrainGuard) kept() bool { return g.Managed && g.Absent == "" }

// pod is the guard's pod on a Node, nil without one.
func (g *DrainGuard) pod(node string) *GuardPod {
	for i := range g.Pods {
		if p := &g.Pods[i]; p.Node == node && p.Owner == OfGuard && !p.Deleting {
			return p
		}
	}
	return nil
}

// has says whether a Node has its guard pod, or needs none.
func (g *DrainGuard) has(node string) bool { return !g.kept() || g.pod(node) != nil }

// guarded says whether a Node is to have a guard pod: it hosts a member, surely or perhaps, or is about to.
func (j *Join) guarded(node int) bool {
	for k := range j.Hosts {
		host := &j.Hosts[k]
		if slices.Contains(host.Nodes, node) || slices.ContainsFunc(host.Machines, func(i int) bool { return j.node[i] == node }) {
			return true
		}
	}
	for i := range j.s.Machines {
		if m := &j.s.Machines[i]; j.node[i] == node && j.s.Nodes[node].Ready && m.ControlPlane() && !m.Deleting() && !m.Mirrored {
			return true
		}
	}
	return false
}

// leastReady is what leaves etcd its quorum after one drain more, if etcd tolerates one at all: as many ready pods as there
// are voters, less one. A voter that is dead or runs on no Node counts: no ready pod stands for it. The only voter may be
// drained, where one is wanted: nothing else could ever reboot its Node.
func leastReady(voters, desired int) int {
	if voters == 1 && desired == 1 {
		return 0
	}
	return voters - min(1, Tolerance(voters))
}

// minAvailable is what the budget is to say, for etcd as it is and as it is about to be: a promotion comes after it. Each pod
// that the budget counts and that stands for no voter comes on top, for it may be ready: one of somebody else's, and one of
// a Node whose member is gone, until it is gone, too.
func (p *planner) minAvailable() int {
	voters, _ := p.s.Ring.Voters()
	n := leastReady(voters, p.s.Desired)
	if p.hasLearner() && p.seat() {
		n = max(n, leastReady(voters+1, p.s.Desired))
	}
	for i := range p.s.Guard.Pods {
		if pod := &p.s.Guard.Pods[i]; !pod.Deleting && (pod.Owner == OfOthers || !p.wanted(pod)) {
			n++
		}
	}
	return n
}

// standsOn says whether a Node is to have a guard pod.
func (p *planner) standsOn(node int) bool {
	return p.join.guarded(node) && !p.lost(p.s.Nodes[node].Name)
}

// wanted says whether a pod of the guard is to be there: it is one for a Node that needs one.
func (p *planner) wanted(pod *GuardPod) bool {
	node := slices.IndexFunc(p.s.Nodes, func(n Node) bool { return n.Name == pod.Node })
	return pod.Owner == OfGuard && node >= 0 && p.standsOn(node)
}

// holdsPromotion says whether the budget would let one voter too many be drained once a learner is promoted.
func (p *planner) holdsPromotion() bool {
	return p.s.Guard.kept() && p.s.Guard.MinAvailable < p.minAvailable()
}

// guard is step 8: the budget is sized for etcd's voters, each Node that hosts a member or waits for one has a pod, and no
// other has.
func (p *planner) guard() []Action {
	g := &p.s.Guard
	if !g.kept() {
		return nil
	}
	var out []Action
	if voters, _ := p.s.Ring.Voters(); g.MinAvailable != p.minAvailable() || !g.Intact {
		out = append(out, Action{Kind: SizeGuard, Step: 8, MinAvailable: p.minAvailable(), Version: g.Version, Why: "etcd has " + nVoters(voters)})
	}
	renewed := false
	for i := range g.Pods {
		pod := &g.Pods[i]
		why := p.unwanted(pod)
		if why == "" && !renewed && p.outdated(pod) {
			renewed, why = true, "it is made anew as Holdfast writes it now"
		}
		if why != "" {
			out = append(out, Action{Kind: DeleteGuardPod, Step: 8, Node: pod.Node, Pod: pod.Name, PodUID: pod.UID, Why: why})
		}
	}
	for n := range p.s.Nodes {
		node := &p.s.Nodes[n]
		if g.MinAvailable < 0 || node.Cordoned || !p.standsOn(n) || slices.ContainsFunc(g.Pods, func(pod GuardPod) bool { return pod.Node == node.Name && pod.Owner != OfOthers }) {
			continue
		}
		if addr, ok := p.address(node); ok {
			out = append(out, Action{Kind: CreateGuardPod, Step: 8, Node: node.Name, Address: addr, Why: "it hosts an etcd member, or is about to"})
		}
	}
	return out
}

// unwanted says why a pod of the guard is to go for good, "" if it is not.
func (p *planner) unwanted(pod *GuardPod) string {
	switch {
	case pod.Deleting || pod.Owner == OfOthers:
		return ""
	case pod.Owner == OfOld:
		return "the budget that it was made for is gone"
	case p.wanted(pod):
		return ""
	case p.lost(pod.Node):
		if !p.gone(pod.Node) {
			return "" // it goes with the release
		}
		return "its Machine is let go, so its voter counts as lost, and the budget is for the others"
	default:
		return "no etcd member is on its Node, nor is one to come"
	}
}

// gone says whether nothing holds the Machine of a Node any more.
func (p *planner) gone(node string) bool {
	return p.hosts(node, func(i int) bool { return p.s.Machines[i].LetGo() })
}

// lost says whether the voter of a Node counts as lost, although it may still answer: its Machine is let go, or is about to be.
func (p *planner) lost(node string) bool {
	return p.gone(node) || p.hosts(node, func(i int) bool {
		return p.s.Machines[i].Deleting() && p.s.Ledger.has(p.s.Machines[i].UID) && p.join.MayGo(i)
	})
}

// hosts says whether a Node is that of a Machine of that kind.
func (p *planner) hosts(node string, kind func(machine int) bool) bool {
	for i := range p.s.Machines {
		if n := p.join.Node(i); n >= 0 && p.s.Nodes[n].Name == node && kind(i) {
			return true
		}
	}
	return false
}

// releasePod is the guard pod that goes with a Machine that is let go, nil for none: left there it would stand for a voter that
// counts as lost, and the budget would let another be drained in its place. ok says whether it may go now: not before the
// budget lets nothing be drained any more, and while enough others are not, unless a person lifted the rule.
func (p *planner) releasePod(machine int) (pod *GuardPod, ok bool) {
	n := p.join.Node(machine)
	if n < 0 || !p.s.Guard.kept() {
		return nil, true
	}
	if pod = p.s.Guard.pod(p.s.Nodes[n].Name); pod == nil || p.s.Machines[machine].Lifts(EscapeHatch, p.s.Now) {
		return pod, true
	}
	voters, _ := p.s.Ring.Voters()
	ready := 0
	for i := range p.s.Guard.Pods {
		if other := &p.s.Guard.Pods[i]; other.Ready && !other.Deleting && p.wanted(other) {
			ready++
		}
	}
	return pod, ready >= Size(voters) && p.s.Guard.MinAvailable >= p.minAvailable()
}

// outdated says whether a pod of the guard is to be made anew now: if it is ready, only while all others are, so that a drain
// waits for one pod at most.
func (p *planner) outdated(pod *GuardPod) bool {
	node := slices.IndexFunc(p.s.Nodes, func(n Node) bool { return n.Name == pod.Node })
	if pod.Deleting || node < 0 || !p.wanted(pod) {
		return false
	}
	addr, ok := p.address(&p.s.Nodes[node])
	if !pod.Outdated && (!ok || addr == pod.Address) {
		return false
	}
	return !pod.Ready || !p.guardFails()
}

// guardFails says whether a Node that is to have a ready guard pod has none.
func (p *planner) guardFails() bool {
	for n := range p.s.Nodes {
		if pod := p.s.Guard.pod(p.s.Nodes[n].Name); p.standsOn(n) && (pod == nil || !pod.Ready) {
			return true
		}
	}
	return false
}
