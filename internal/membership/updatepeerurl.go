package membership

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// updatePeerURL is the other half of step 5: a dead voter whose host has another address is listed there, and its data are of use again.
// Its member, its data and its vote stay as they are: a wrong address would only leave it as dead as it is.
func (p *planner) updatePeerURL() []Action {
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		if !p.s.Dead(member) {
			continue
		}
		if peer, ok := p.newPeerURL(member); ok {
			m := p.join.Host(member).Machine()
			return []Action{{
				Step: 5, Machine: m.Name, UID: m.UID, Change: UpdatePeerURL{Member{member.ID, member.Name}, peer},
				Why: fmt.Sprintf("it is dead, etcd lists it at %s, and its Machine and its Node have another address", member.PeerURLs[0]),
			}}
		}
	}
	return nil
}

// newPeerURL is where Holdfast would list an unhealthy voter whose host has another address: at the one address of the listed one's family
// that its Machine and its ready Node both have, and nobody else. That the member is the Machine's says its evidence, without which the
// address would be unknown. A learner is left out: it gives way, and its host gets another.
func (p *planner) newPeerURL(member *quorum.Member) (peer string, ok bool) {
	listed, _ := p.moved(member)
	m := p.join.Host(member).Machine()
	if listed == "" || p.s.Mode != quorum.ModeFull || member.Learner || member.Healthy || len(member.PeerURLs) != 1 {
		return "", false
	}
	n := p.join.Node(m)
	if m.Deleting() || m.Mirrored || n == nil || !n.Ready {
		return "", false
	}
	u, err := url.Parse(member.PeerURLs[0])
	if err != nil {
		return "", false
	}
	was, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return "", false // a host name is the DNS's to change
	}
	var found []netip.Addr
	for _, a := range n.Addresses {
		if a = a.Unmap(); a.Is4() == was.Unmap().Is4() && slices.Contains(m.Addresses, a) && !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	if len(found) != 1 || p.othersHave(found[0], m, member) {
		return "", false
	}
	return at(u, found[0])
}

// othersHave says whether an address is also that of another Machine, Node or member.
func (p *planner) othersHave(addr netip.Addr, m *quorum.Machine, member *quorum.Member) bool {
	has := func(all []netip.Addr) bool {
		return slices.ContainsFunc(all, func(a netip.Addr) bool { return a.Unmap() == addr })
	}
	for i := range p.s.Machines {
		if other := &p.s.Machines[i]; other != m && has(other.Addresses) {
			return true
		}
	}
	for i := range p.s.Nodes {
		if other := &p.s.Nodes[i]; other != p.join.Node(m) && has(other.Addresses) {
			return true
		}
	}
	for k := range p.s.Ring.Members {
		if other := &p.s.Ring.Members[k]; other != member && has(other.PeerAddresses()) {
			return true
		}
	}
	return false
}
