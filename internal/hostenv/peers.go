package hostenv

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Peer is one member in a list: its name in ETCD_INITIAL_CLUSTER, its hex ID in ETCD_MEMBER_IDS.
type Peer struct {
	Key  string
	URLs []string
}

// FormatPeers writes a list as etcd reads it: <key>=<URL>, by commas, one entry for each URL.
func FormatPeers(peers []Peer) string {
	var out []string
	for _, p := range peers {
		for _, u := range p.URLs {
			out = append(out, p.Key+"="+u)
		}
	}
	return strings.Join(out, ",")
}

// ParsePeers reads what FormatPeers wrote, and what a person may have written. The peers come in the
// order of their first entry. The error quotes the entry that is wrong.
func ParsePeers(text string) ([]Peer, error) {
	var peers []Peer
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		key, raw, ok := strings.Cut(entry, "=")
		if u, err := url.Parse(raw); !ok || key == "" || err != nil || u.Scheme == "" || u.Hostname() == "" {
			return nil, fmt.Errorf("%q is not <key>=<URL>, such as master-0=https://10.0.0.1:2380", entry)
		}
		i := slices.IndexFunc(peers, func(p Peer) bool { return p.Key == key })
		if i < 0 {
			i, peers = len(peers), append(peers, Peer{Key: key})
		}
		if !HasURL(peers[i].URLs, raw) {
			peers[i].URLs = append(peers[i].URLs, raw)
		}
	}
	return peers, nil
}

// ByURL finds the peer at a URL, nil without it.
func ByURL(peers []Peer, raw string) *Peer {
	for i := range peers {
		if HasURL(peers[i].URLs, raw) {
			return &peers[i]
		}
	}
	return nil
}

// HasURL says whether a list holds a URL, however either is written.
func HasURL(urls []string, raw string) bool {
	return slices.ContainsFunc(urls, func(u string) bool { return normal(u) == normal(raw) })
}

// SameURLs says whether two lists hold the same URLs, in any order.
func SameURLs(a, b []string) bool {
	return within(a, b) && within(b, a)
}

func within(a, b []string) bool {
	return !slices.ContainsFunc(a, func(u string) bool { return !HasURL(b, u) })
}

// normal is one way to write a URL: IPv6 addresses and host names have several.
func normal(raw string) string {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Host == "" {
		return raw
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.Unmap().String()
	}
	return strings.ToLower(u.Scheme) + "://" + host + " " + u.Port()
}
