package verify

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// byURL is an etcd of which other members answer at other client URLs.
type byURL struct {
	canned
	at map[string]quorum.MemberID
}

func (b byURL) Status(_ context.Context, url string) (etcd.Status, error) {
	if b.at[url] == 0 {
		return etcd.Status{}, errors.New("connection refused")
	}
	return etcd.Status{Member: b.at[url]}, nil
}

// TestLeader asks the leader at each of its client URLs: at a loopback address this host's own member answers.
func TestLeader(t *testing.T) {
	const loopback, other, good = "https://127.0.0.1:2379", "https://10.0.0.1:2379", "https://10.0.0.2:2379"
	for name, c := range map[string]struct {
		urls []string
		at   map[string]quorum.MemberID
		want string // where it is found, "" for nowhere
	}{
		"at the last":                 {[]string{loopback, other, good}, map[string]quorum.MemberID{loopback: 1, good: 2}, good},
		"at the first":                {[]string{good, loopback}, map[string]quorum.MemberID{loopback: 1, good: 2}, good},
		"another's answer for all":    {[]string{loopback, other}, map[string]quorum.MemberID{loopback: 1, other: 3}, ""},
		"nobody answers":              {[]string{loopback, good}, nil, ""},
		"it has published no address": {nil, map[string]quorum.MemberID{good: 2}, ""},
	} {
		m := &run{Membership: Membership{Etcd: byURL{at: c.at}}}
		leader, err := m.leader(t.Context(), &quorum.Ring{Known: true, Leader: 2, Members: []quorum.Member{{ID: 1}, {ID: 2, ClientURLs: c.urls}}})
		if (err == nil) != (c.want != "") || err == nil && (leader.At != c.want || leader.Member != 2) {
			t.Errorf("%s: member %x at %q, %v", name, leader.Member, leader.At, err)
		}
	}
}
