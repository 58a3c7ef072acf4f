package decisions_test

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// FuzzPeerURL: a member joins a Machine by address only if that very address, or that name, is the host
// of its URL; what cannot be read joins nothing, and the order of Machines does not matter.
func FuzzPeerURL(f *testing.F) {
	for _, seed := range [][2]string{
		{"https://10.0.0.1:2380", "10.0.0.1"}, {"https://[::ffff:10.0.0.1]:2380", "10.0.0.1"}, {"https://[fe80::1%25eth0]:2380", "fe80::1"},
		{"https://A.Example.:2380", "a.example"}, {"10.0.0.1:2380", "10.0.0.1"}, {"https://user@10.0.0.1", "user"}, {"https://", ""}, {"%zz", "zz"}, {"https://.:2380", "."},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, raw, host string) {
		m := q.Machine{Name: "m", UID: "m", Phase: "Running"}
		if addr, err := netip.ParseAddr(host); err == nil {
			m.Addresses = []netip.Addr{addr}
		} else {
			m.HostNames = []string{host}
		}
		other := q.Machine{Name: "other", UID: "other", Phase: "Running", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}
		member := q.Member{ID: 1, Name: "e", PeerURLs: []string{raw}}
		joins := func(machines ...q.Machine) bool {
			s := &q.Snapshot{Ring: q.Ring{Known: true, Members: []q.Member{member}}, Machines: machines}
			return slices.ContainsFunc(q.NewJoin(s).Host(&s.Ring.Members[0]).Machines, func(m *q.Machine) bool { return m.Name == "m" })
		}
		got := joins(m, other)
		if got != joins(other, m) {
			t.Error("the order of Machines matters")
		}
		want := false
		if u, err := url.Parse(raw); err == nil && u.Hostname() != "" {
			a, errA := netip.ParseAddr(u.Hostname())
			b, errB := netip.ParseAddr(host)
			name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
			want = errA == nil && errB == nil && a.Unmap() == b.Unmap() || errA != nil && errB != nil && name == strings.ToLower(host)
		}
		if got != want {
			t.Errorf("joined %t, expected %t", got, want)
		}
		if got && host == "" {
			t.Error("joined by no name at all")
		}
	})
}
