package scenario_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// leaders counts etcd's leaders by term: two of one term are a split brain. It goes by what each member says of itself, in its metrics
// and in its status. Metrics say who leads (etcd_server_is_leader) and have no term: etcd has no metric for it. So the term
// comes from the status, and metrics count for a term if the status says that term before the scrape and after it.
//
// A member tells the term of the last entry that it has applied, which is behind raft's own for a moment after an election. So a member
// counts as the leader of a term only if it was not seen as a follower with that term, and says the same twice in a row.
type leaders struct {
	of       map[term]quorum.MemberID
	followed map[term]map[quorum.MemberID]bool
	said     map[quorum.MemberID]term // the last time, by the member that says it leads

	scrapes int                                // that counted for a term
	changes map[quorum.MemberID]*leaderChanges // by the member that counts them
}

// term is a term of raft in an etcd cluster.
type term struct{ cluster, number uint64 }

// leaderChanges are those that a member's metrics count. They begin at 0 when its process does.
type leaderChanges struct{ last, seen int }

// memberMetrics is what a member's metrics say of its leader.
type memberMetrics struct {
	member    quorum.MemberID
	leads     bool // etcd_server_is_leader
	hasLeader bool // etcd_server_has_leader
	changes   int  // etcd_server_leader_changes_seen_total
}

func newLeaders() *leaders {
	return &leaders{
		of: map[term]quorum.MemberID{}, followed: map[term]map[quorum.MemberID]bool{}, said: map[quorum.MemberID]term{},
		changes: map[quorum.MemberID]*leaderChanges{},
	}
}

// hear takes what a member's status says. An error names two leaders of one term.
func (l *leaders) hear(s *etcd.Status) error {
	at := term{s.Cluster, s.Term}
	if s.Leader != s.Member {
		l.follows(s.Member, at)
		return nil
	}
	twice := l.said[s.Member] == at
	l.said[s.Member] = at
	if !twice {
		return nil
	}
	return l.leads(s.Member, at, "status")
}

// read takes a member's metrics, and its status from before and after. An error names two leaders of one term.
func (l *leaders) read(before *etcd.Status, m memberMetrics, after *etcd.Status) error {
	count := l.changes[m.member]
	if count == nil {
		count = &leaderChanges{last: m.changes}
		l.changes[m.member] = count
	}
	if m.changes < count.last { // another process
		count.last = 0
	}
	count.seen, count.last = count.seen+m.changes-count.last, m.changes

	at := term{before.Cluster, before.Term}
	if m.member != before.Member || m.member != after.Member || at != (term{after.Cluster, after.Term}) {
		return nil
	}
	l.scrapes++
	switch {
	case !m.leads:
		l.follows(m.member, at)
	case m.hasLeader: // else the scrape met an election: etcd sets one after the other
		return l.leads(m.member, at, "metrics")
	}
	return nil
}

func (l *leaders) follows(member quorum.MemberID, at term) {
	if l.followed[at] == nil {
		l.followed[at] = map[quorum.MemberID]bool{}
	}
	l.followed[at][member] = true
	delete(l.said, member)
}

func (l *leaders) leads(member quorum.MemberID, at term, by string) error {
	if l.followed[at][member] {
		return nil
	}
	if other, known := l.of[at]; known && other != member {
		return fmt.Errorf("split brain: by its %s member %s of cluster %x leads in term %d, and member %s leads in that term",
			by, member.Hex(), at.cluster, at.number, other.Hex())
	}
	l.of[at] = member
	return nil
}

// elections is how many changes of leader that member saw which saw most.
func (l *leaders) elections() (most int) {
	for _, c := range l.changes {
		most = max(most, c.seen)
	}
	return most
}

// count asks every host's member again and again who it is, until the context ends. Its metrics are read less often: a page costs
// etcd 6 ms, most of it for what is not looked at.
func (h *history) count(ctx context.Context, c *cluster) {
	members, err := etcd.New(etcd.Config{Endpoints: c.Endpoints(), CACert: c.EtcdFiles.CA, Cert: c.EtcdFiles.Cert, Key: c.EtcdFiles.Key})
	if err != nil {
		h.mu.Lock()
		h.fail("count leaders: %v", err)
		h.mu.Unlock()
		return
	}
	defer members.Close()
	const scrapeEvery = 4
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, host := range c.Hosts() {
			if host.Etcd != nil {
				h.ask(ctx, members, &host, (n+i)%scrapeEvery == 0)
			}
		}
	}
}

// ask has a host's member say who it is, and reads its metrics if it is to. No answer is no observation.
func (h *history) ask(ctx context.Context, members *etcd.Client, host *sandbox.Host, scrape bool) {
	status := func() (*etcd.Status, error) {
		within, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		s, err := members.Status(within, host.ClientURL)
		if err != nil {
			return nil, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if err := h.leaders.hear(&s); err != nil {
			h.fail("%v", err)
		}
		return &s, nil
	}
	before, err := status()
	if err != nil || !scrape {
		return
	}
	m, err := readMemberMetrics(ctx, host.MetricsURL)
	if err != nil {
		return
	}
	after, err := status()
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.leaders.read(before, m, after); err != nil {
		h.fail("%v", err)
	}
}

// readMemberMetrics reads a page of etcd's metrics.
func readMemberMetrics(ctx context.Context, url string) (memberMetrics, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return memberMetrics{}, err
	}
	request.Header.Set("Accept-Encoding", "identity") // packing the page costs more than sending it
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return memberMetrics{}, err
	}
	defer response.Body.Close()
	return parseMemberMetrics(response.Body)
}

func parseMemberMetrics(page io.Reader) (m memberMetrics, err error) {
	found := 0
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "etcd_server_")
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(rest, " ")
		if id, ok := strings.CutPrefix(name, `id{server_id="`); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(id, `"}`), 16, 64)
			if err != nil {
				return m, fmt.Errorf("the member's ID in its metrics: %w", err)
			}
			m.member = quorum.MemberID(n)
			found++
			continue
		}
		switch name {
		case "is_leader":
			m.leads = value == "1"
		case "has_leader":
			m.hasLeader = value == "1"
		case "leader_changes_seen_total":
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return m, fmt.Errorf("the changes of leader in the metrics: %w", err)
			}
			m.changes = int(n)
		default:
			continue
		}
		found++
	}
	if err := lines.Err(); err != nil {
		return m, err
	}
	if found != 4 {
		return m, errors.New("the metrics do not say who the member is and whether it leads")
	}
	return m, nil
}

// TestLeaders: the count finds two leaders of one term, and takes no election for that.
func TestLeaders(t *testing.T) {
	t.Parallel()
	const one, two = quorum.MemberID(1), quorum.MemberID(2)
	says := func(member, leader quorum.MemberID, number uint64) *etcd.Status {
		return &etcd.Status{Member: member, Leader: leader, Cluster: 7, Term: number}
	}
	type heard func(*leaders) error
	status := func(s *etcd.Status) heard { return func(l *leaders) error { return l.hear(s) } }
	metrics := func(member quorum.MemberID, leads, hasLeader bool, before, after uint64) heard {
		return func(l *leaders) error {
			return l.read(says(member, 0, before), memberMetrics{member: member, leads: leads, hasLeader: hasLeader}, says(member, 0, after))
		}
	}
	for name, c := range map[string]struct {
		said []heard
		want string
	}{
		"an election": {said: []heard{
			status(says(one, one, 5)), status(says(two, one, 5)), status(says(one, one, 5)), // it leads in 5
			status(says(two, two, 5)), status(says(two, two, 5)), // elected for 6, of which it has yet to apply an entry
			status(says(two, two, 6)), status(says(one, two, 6)), status(says(two, two, 6)),
		}},
		"two leaders": {said: []heard{
			status(says(one, one, 5)), status(says(one, one, 5)), status(says(two, two, 5)), status(says(two, two, 5)),
		}, want: "by its status member 2 of cluster 7 leads in term 5, and member 1 leads"},
		"a leader that is told twice as the last of its term": {said: []heard{
			status(says(one, one, 5)), status(says(one, one, 5)), status(says(two, two, 6)), status(says(two, two, 6)),
			status(says(one, one, 6)), status(says(one, two, 6)),
		}},
		"two leaders, by their metrics": {said: []heard{
			metrics(one, true, true, 5, 5), metrics(two, true, true, 5, 5),
		}, want: "by its metrics member 2 of cluster 7 leads in term 5, and member 1 leads"},
		"one leads by its status, and another by its metrics": {said: []heard{
			status(says(one, one, 5)), status(says(one, one, 5)), metrics(two, true, true, 5, 5),
		}, want: "by its metrics member 2 of cluster 7 leads in term 5, and member 1 leads"},
		"an election, by the metrics": {said: []heard{
			metrics(one, true, true, 5, 5), metrics(two, false, true, 5, 5),
			metrics(two, true, true, 5, 5), // elected for 6, of which it has yet to apply an entry
			metrics(two, true, true, 6, 6),
		}},
		"an election during a scrape": {said: []heard{
			metrics(one, true, true, 5, 5), metrics(two, true, true, 5, 6), metrics(two, true, false, 5, 5),
		}},
	} {
		l, got := newLeaders(), ""
		for _, hear := range c.said {
			if err := hear(l); err != nil {
				got += err.Error()
			}
		}
		if !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}

	l := newLeaders()
	for _, changes := range []int{3, 5, 1} { // it is started again before the last
		if err := l.read(says(one, 0, 5), memberMetrics{member: one, changes: changes}, says(one, 0, 5)); err != nil {
			t.Error(err)
		}
	}
	if n := l.elections(); n != 3 {
		t.Errorf("%d elections are counted, want 3: two, and one since the member was started again", n)
	}
}
