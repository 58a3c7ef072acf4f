package hostenv

import (
	"cmp"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Endpoint is where a client finds a voter.
type Endpoint struct {
	ID      quorum.MemberID
	Host    string     // address, without brackets, or host name
	Address netip.Addr // the zero value if Host is a name
	Port    int
	Ready   bool // the member is healthy
	Node    string
	Zone    string
}

// defaultClientPort is where a voter serves clients whose URL etcd does not know yet.
const defaultClientPort = 2379

// Endpoints are the voters of a Snapshot, in the order of their IDs, healthy or not. A learner is
// none: it rejects most calls. Nor is one that does not run, at the peer URL of another. It fails for a ring that is not known or has no voter that can be
// reached, so that a failed read empties nothing.
func Endpoints(join *quorum.Join) ([]Endpoint, error) {
	s := join.Snapshot()
	if err := known(&s.Ring); err != nil {
		return nil, err
	}
	var out []Endpoint
	for k := range s.Ring.Members {
		m := &s.Ring.Members[k]
		if m.Learner || !join.Runs(m) {
			continue
		}
		e := Endpoint{ID: m.ID, Ready: m.Healthy}
		e.Host, e.Port = dial(m)
		if e.Host == "" {
			continue
		}
		if address, err := netip.ParseAddr(e.Host); err == nil {
			e.Address = address.Unmap()
			e.Host = e.Address.String()
		}
		if n := nodeOf(join, m); n != nil {
			e.Node, e.Zone = n.Name, n.Zone
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, errors.New("etcd lists no voter with an address")
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// dial is where a member serves clients: at its first client URL that is no loopback address, where another host would reach its own
// etcd; and before it has published one, at the address of its first peer URL. Where its peers reach it by loopback, so do its clients.
func dial(m *quorum.Member) (host string, port int) {
	peers := m.PeerAddresses()
	for _, raw := range m.ClientURLs {
		u, err := url.Parse(raw)
		if err != nil || u.Hostname() == "" {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); (u.Hostname() == "localhost" || err == nil && a.IsLoopback()) && !slices.ContainsFunc(peers, netip.Addr.IsLoopback) {
			continue
		}
		if port, err = strconv.Atoi(u.Port()); err != nil {
			port = defaultClientPort
		}
		return u.Hostname(), port
	}
	for _, raw := range m.PeerURLs {
		if u, err := url.Parse(raw); err == nil && u.Hostname() != "" {
			return u.Hostname(), defaultClientPort
		}
	}
	return "", 0
}
