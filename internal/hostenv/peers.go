package hostenv

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Peers are members' peer URLs, by their names in ETCD_INITIAL_CLUSTER, by their hex IDs in ETCD_MEMBER_IDS.
type Peers map[string][]string

// String is the list as etcd reads it: <key>=<URL>, by commas, one entry for each URL.
func (p Peers) String() string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(p)) {
		for _, u := range p[key] {
			out = append(out, key+"="+u)
		}
	}
	return strings.Join(out, ",")
}

// ParsePeers reads what String wrote, and what a person may have written. The error quotes the entry that is wrong.
func ParsePeers(text string) (Peers, error) {
	peers := Peers{}
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		key, raw, ok := strings.Cut(entry, "=")
		if u, err := url.Parse(raw); !ok || key == "" || err != nil || u.Scheme == "" || u.Hostname() == "" {
			return nil, fmt.Errorf("%q is not <key>=<URL>, such as master-0=https://10.0.0.1:2380", entry)
		}
		peers.add(key, raw)
	}
	return peers, nil
}

func (p Peers) add(key string, urls ...string) {
	for _, u := range urls {
		if !HasURL(p[key], u) {
			p[key] = append(p[key], u)
		}
	}
}

// At is the key of the peer at a URL, the first by name; "" without one.
func (p Peers) At(raw string) string {
	for _, key := range slices.Sorted(maps.Keys(p)) {
		if HasURL(p[key], raw) {
			return key
		}
	}
	return ""
}

// HasURL reports whether a list holds a URL, however either is written.
func HasURL(urls []string, raw string) bool {
	return slices.ContainsFunc(urls, func(u string) bool { return normal(u) == normal(raw) })
}

// SameURLs reports whether two lists hold the same URLs, in any order.
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
