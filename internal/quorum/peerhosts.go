package quorum

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// PeerHosts are the addresses and host names of URLs.
type PeerHosts struct {
	addrs []netip.Addr
	names []string
}

// PeerHostsOf are the hosts of peer URLs.
func PeerHostsOf(urls []string) PeerHosts {
	var e PeerHosts
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil || u.Hostname() == "" {
			continue // joins nothing, so the member's host stays unknown and holds
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			e.addrs = append(e.addrs, addr.Unmap())
		} else {
			e.names = append(e.names, strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")))
		}
	}
	return e
}

// Meets reports whether one of the addresses or host names is among them.
func (e PeerHosts) Meets(addrs []netip.Addr, names []string) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(e.addrs, a.Unmap()) }) ||
		slices.ContainsFunc(names, func(n string) bool { return slices.Contains(e.names, strings.ToLower(n)) })
}

// PeerAddresses are the addresses in a member's peer URLs; what is no address is left out.
func (m *Member) PeerAddresses() []netip.Addr { return PeerHostsOf(m.PeerURLs).addrs }
