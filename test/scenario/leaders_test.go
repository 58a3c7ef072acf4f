package scenario_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// leaders counts etcd's leaders by term, from what each member says of itself: two of one term are a split brain.
//
// A member tells the term of the last entry that it has applied, which is behind raft's own for a moment after an election. So a member
// counts as the leader of a term only if it was not seen as a follower with that term, and says the same twice in a row.
type leaders struct {
	of       map[term]quorum.MemberID
	followed map[term]map[quorum.MemberID]bool
	said     map[quorum.MemberID]term // the last time, by who says that it leads
}

// term is a term of raft in an etcd cluster.
type term struct{ cluster, number uint64 }

func newLeaders() *leaders {
	return &leaders{of: map[term]quorum.MemberID{}, followed: map[term]map[quorum.MemberID]bool{}, said: map[quorum.MemberID]term{}}
}

// hear takes what a member says of itself. An error names two leaders of one term.
func (l *leaders) hear(s *etcd.Status) error {
	at := term{s.Cluster, s.Term}
	if s.Leader != s.Member {
		if l.followed[at] == nil {
			l.followed[at] = map[quorum.MemberID]bool{}
		}
		l.followed[at][s.Member] = true
		delete(l.said, s.Member)
		return nil
	}
	twice := l.said[s.Member] == at
	l.said[s.Member] = at
	if !twice || l.followed[at][s.Member] {
		return nil
	}
	if other, known := l.of[at]; known && other != s.Member {
		return fmt.Errorf("split brain: members %s and %s of cluster %x both lead in term %d", other.Hex(), s.Member.Hex(), s.Cluster, s.Term)
	}
	l.of[at] = s.Member
	return nil
}

// count asks every host's member again and again who it is, until the context ends.
func (h *history) count(ctx context.Context, c *cluster) {
	members, err := etcd.New(etcd.Config{Endpoints: c.Endpoints(), CACert: c.EtcdFiles.CA, Cert: c.EtcdFiles.Cert, Key: c.EtcdFiles.Key})
	if err != nil {
		h.mu.Lock()
		h.fail("count leaders: %v", err)
		h.mu.Unlock()
		return
	}
	defer members.Close()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, host := range c.Hosts() {
			if host.Etcd == nil {
				continue
			}
			within, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			s, err := members.Status(within, host.ClientURL)
			cancel()
			if err != nil {
				continue // no answer, no observation
			}
			h.mu.Lock()
			if err := h.leaders.hear(&s); err != nil {
				h.fail("%v", err)
			}
			h.mu.Unlock()
		}
	}
}

// TestLeaders: the count finds two leaders of one term, and takes no election for that.
func TestLeaders(t *testing.T) {
	t.Parallel()
	const one, two = quorum.MemberID(1), quorum.MemberID(2)
	says := func(member, leader quorum.MemberID, number uint64) *etcd.Status {
		return &etcd.Status{Member: member, Leader: leader, Cluster: 7, Term: number}
	}
	for name, c := range map[string]struct {
		said []*etcd.Status
		want string
	}{
		"an election": {said: []*etcd.Status{
			says(one, one, 5), says(two, one, 5), says(one, one, 5), // it leads in 5
			says(two, two, 5), says(two, two, 5), // elected for 6, of which it has yet to apply an entry
			says(two, two, 6), says(one, two, 6), says(two, two, 6),
		}},
		"two leaders": {said: []*etcd.Status{
			says(one, one, 5), says(one, one, 5), says(two, two, 5), says(two, two, 5),
		}, want: "members 1 and 2 of cluster 7 both lead in term 5"},
		"a leader that is told twice as the last of its term": {said: []*etcd.Status{
			says(one, one, 5), says(one, one, 5), says(two, two, 6), says(two, two, 6), says(one, one, 6), says(one, two, 6),
		}},
	} {
		l, got := newLeaders(), ""
		for _, s := range c.said {
			if err := l.hear(s); err != nil {
				got += err.Error()
			}
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
