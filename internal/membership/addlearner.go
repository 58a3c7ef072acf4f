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

// addLearner is step 7: a ready Node whose live Machine hosts nothing gets a member, while there is room for a learner. Whether etcd takes one
// now is not decided here: which voters its leader is connected to, that leader alone knows, and etcd refuses the action (see addRefused).
func (p *planner) addLearner() []Action {
	// A Machine without hook and latch gets no member.
	m := p.waitingMachine(func(m *quorum.Machine) bool {
		return p.roomFor(m) && p.canAddOn(m) && m.Hook == quorum.EntryOurs && m.Latch == quorum.EntryOurs
	})
	if m == nil || p.listedTwice() != "" {
		return nil
	}
	node := p.join.Node(m)
	peer, ok := p.peerURL(node)
	if !ok {
		return nil
	}
	// Now, while nothing waits for it: later each step of the replacement would, and a leader that sends a snapshot must not change.
	if leader := p.s.Ring.Member(p.s.Ring.Leader); leader != nil {
		_, _, goes := p.leavingFrom(leader)
		if to := p.successor(leader); goes && to != nil && !p.isLeaving(to) {
			return []Action{p.moveLeader(7, leader, to, fmt.Sprintf("the leader will be replaced, and a member is about to be added for Machine %s", m.Name))}
		}
	}
	return []Action{{
		Step: 7, Machine: m.Name, UID: m.UID, Change: AddLearner{Node: node.Name, PeerURL: peer},
		Why: fmt.Sprintf("Node %s is ready and has no member", node.Name),
	}}
}

// addRefused is etcd's refusal to add the next member, nil if it has not refused.
func (p *planner) addRefused() *quorum.Failure {
	for _, a := range p.addLearner() {
		if f := Failing(p.s, a); f != nil && f.Refused {
			return f
		}
	}
	return nil
}

// listedTwice says which members are listed at one peer URL, "" for none. A new member does not start then: etcd compares what it starts
// with with the members that are listed.
func (p *planner) listedTwice() string {
	for k := range p.s.Ring.Members {
		if why := p.join.ListedTwice(&p.s.Ring.Members[k]); why != "" {
			return why
		}
	}
	return ""
}

// waitingMachine is the Machine whose ready Node waits for a member and that suits; Nodes that gave way come
// last, the oldest first; nil if there is none. A stale voter at its address is not its member.
func (p *planner) waitingMachine(suits func(*quorum.Machine) bool) *quorum.Machine {
	var best *quorum.Machine
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		n := p.join.Node(m)
		if m.Deleting() || m.Mirrored || !m.ControlPlane() || n == nil || !n.Ready || len(n.Addresses) == 0 || !suits(m) {
			continue
		}
		if slices.ContainsFunc(p.join.Joined(m), func(member *quorum.Member) bool { return !p.join.Stale(member) }) ||
			slices.ContainsFunc(p.listedAt(n), func(member *quorum.Member) bool { return !p.s.Dead(member) }) || // a dead one may be removed for the Node
			!p.s.QuorumGuard.PodSatisfied(n.Name) || p.hostGoesWithAnother(m) {
			continue
		}
		if best == nil || p.nodeLess(n, p.join.Node(best)) {
			best = m
		}
	}
	return best
}

// listedAt are the members that are listed at the peer URL that one on the Node would get: etcd takes a URL once.
func (p *planner) listedAt(n *quorum.Node) (out []*quorum.Member) {
	peer, ok := p.peerURL(n)
	for k := range p.s.Ring.Members {
		if member := &p.s.Ring.Members[k]; ok && slices.Contains(member.PeerURLs, peer) {
			out = append(out, member)
		}
	}
	return out
}

func anyMachine(*quorum.Machine) bool { return true }

// hostGoesWithAnother reports whether a Machine that is being deleted claims the host of this one, and takes it along when it goes.
func (p *planner) hostGoesWithAnother(m *quorum.Machine) bool {
	return slices.ContainsFunc(slices.Concat(p.s.Claimants, p.s.Machines), func(c quorum.Machine) bool {
		return c.Deleting() && p.s.HostKeyShared(&c, m) != ""
	})
}

// canAddOn reports whether the listed members allow a new one on a Machine's Node: none is joined to the Machine or listed at the new peer URL,
// and the host of every member is known.
func (p *planner) canAddOn(m *quorum.Machine) bool {
	return m.Unread == "" && len(p.join.Joined(m)) == 0 && len(p.listedAt(p.join.Node(m))) == 0 && p.join.Known()
}

func (p *planner) hasLearner() bool { return p.learners() > 0 }

// roomFor reports whether a Machine may get a learner now: the first always; another one only below Limits.MaxLearners, and if every voter and
// every learner that answers accepts that many (--max-learners). A learner that does not answer cannot be asked: if its limit is lower, its
// etcd crashes or does not start, and the learner gives way later (blockedByOtherLearner). A Machine whose Node gave way gets a learner only
// if there is no other learner.
func (p *planner) roomFor(m *quorum.Machine) bool {
	return !p.hasLearner() || p.learners() < p.s.Limits.MaxLearners && p.takesNoMore() == nil && p.join.Node(m).GaveWayAt.IsZero()
}

// takesNoMore is a member whose etcd may crash with one learner more; nil for none.
func (p *planner) takesNoMore() *quorum.Member {
	n := p.learners()
	for k := range p.s.Ring.Members {
		if m := &p.s.Ring.Members[k]; (!m.Learner || m.Healthy) && m.MaxLearners <= n {
			return m
		}
	}
	return nil
}

func (p *planner) learners() int {
	voters, _ := p.s.Ring.Voters()
	return len(p.s.Ring.Members) - voters
}

func (p *planner) nodeLess(a, b *quorum.Node) bool {
	return cmp.Or(
		a.GaveWayAt.Compare(b.GaveWayAt),
		a.CreatedAt.Compare(b.CreatedAt),
		cmp.Compare(a.Name, b.Name),
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
