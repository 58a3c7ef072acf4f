package membership

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// addLearner is step 7: a ready Node whose live Machine hosts nothing gets a member, one learner at a time.
func (p *planner) addLearner() []Action {
	if p.hasLearner() {
		return nil
	}
	// A Machine that cannot be hooked gets no member: see stuck.
	i := p.waitingMachine(func(i int) bool {
		return p.hostsNothing(i) && p.s.Machines[i].Hook == quorum.EntryOurs && p.s.Machines[i].Latch == quorum.EntryOurs
	})
	if i < 0 {
		return nil
	}
	if accepts, _ := p.s.Ring.Accepts(); !accepts {
		return nil
	}
	m, node := &p.s.Machines[i], &p.s.Nodes[p.join.Node(i)]
	peer, ok := p.peerURL(node)
	if !ok {
		return nil
	}
	// Now, while nothing waits for it: later each step of the replacement would, and a leader that sends a snapshot must not change.
	if leader := p.s.Ring.MemberIndex(p.s.Ring.Leader); leader >= 0 {
		_, _, goes := p.leavingFrom(leader)
		if to := p.successor(leader); goes && to >= 0 && !p.isLeaving(to) {
			return []Action{p.moveLeader(7, leader, to, fmt.Sprintf("the leader is to be replaced, and a member is about to be added for Machine %s", m.Name))}
		}
	}
	return []Action{{
		Kind: AddLearner, Step: 7, Machine: m.Name, UID: m.UID, Node: node.Name, PeerURL: peer,
		Why: fmt.Sprintf("Node %s is ready and has no member", node.Name),
	}}
}

// waitingMachine is the Machine whose ready Node waits for a member and that suits; Nodes that gave way come
// last, the oldest first. -1 if there is none. A stale voter at its address is not its member.
func (p *planner) waitingMachine(suits func(machine int) bool) int {
	best := -1
	for i := range p.s.Machines {
		m, n := &p.s.Machines[i], p.join.Node(i)
		if m.Deleting() || m.Mirrored || !m.ControlPlane() || n < 0 || !p.s.Nodes[n].Ready || len(p.s.Nodes[n].Addresses) == 0 || !suits(i) {
			continue
		}
		if slices.ContainsFunc(p.join.Members(i), func(k int) bool { return !p.join.Stale(k) }) || !p.s.QuorumGuard.HasPod(p.s.Nodes[n].Name) || p.hostGoesWithAnother(i) {
			continue
		}
		if best < 0 || p.nodeLess(i, best) {
			best = i
		}
	}
	return best
}

func anyMachine(int) bool { return true }

// hostGoesWithAnother says whether a Machine that is being deleted claims the host of this one, and takes it along when it goes.
func (p *planner) hostGoesWithAnother(machine int) bool {
	return slices.ContainsFunc(p.s.Claimants, func(c quorum.Machine) bool {
		if !c.Deleting() {
			return false
		}
		goes, _ := p.s.LostWith(&c)
		return goes != nil && goes.Name == p.s.Machines[machine].Name
	})
}

func (p *planner) hostsNothing(machine int) bool {
	is, _ := p.join.Hosting(machine)
	return is == quorum.HostingNothing
}

func (p *planner) hasLearner() bool {
	return slices.ContainsFunc(p.s.Ring.Members, func(m quorum.Member) bool { return m.Learner })
}

func (p *planner) nodeLess(a, b int) bool {
	one, two := &p.s.Nodes[p.join.Node(a)], &p.s.Nodes[p.join.Node(b)]
	return cmp.Or(
		one.GaveWayAt.Compare(two.GaveWayAt),
		one.CreatedAt.Compare(two.CreatedAt),
		cmp.Compare(one.Name, two.Name),
	) < 0
}

// peerURL is the peer URL of a new member: scheme, port and address family are those of the leader's.
func (p *planner) peerURL(node *quorum.Node) (string, bool) {
	u, ok := p.leaderURL()
	addr, has := p.address(node)
	if !ok || !has {
		return "", false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		return "", false
	}
	return (&url.URL{Scheme: u.Scheme, Host: netip.AddrPortFrom(addr, uint16(port)).String()}).String(), true
}

// address is where a Node's member listens: at the address of the leader's family, if the Node has one.
func (p *planner) address(node *quorum.Node) (addr netip.Addr, ok bool) {
	if len(node.Addresses) == 0 {
		return addr, false
	}
	addr = node.Addresses[0]
	if u, ok := p.leaderURL(); ok {
		if known, err := netip.ParseAddr(u.Hostname()); err == nil {
			if n := slices.IndexFunc(node.Addresses, func(a netip.Addr) bool { return a.Unmap().Is4() == known.Unmap().Is4() }); n >= 0 {
				addr = node.Addresses[n]
			}
		}
	}
	return addr.Unmap(), true
}

// leaderURL is the leader's peer URL.
func (p *planner) leaderURL() (*url.URL, bool) {
	leader := p.s.Ring.Member(p.s.Ring.Leader)
	if leader == nil || len(leader.PeerURLs) == 0 {
		return nil, false
	}
	u, err := url.Parse(leader.PeerURLs[0])
	return u, err == nil
}
