package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Read reads the membership and each member's health, now, within Config.ReadTimeout or ctx's
// deadline if that is sooner. Half of the time is for the member list, half for the members, so that
// one that hangs cannot make the others look ill.
//
// Since, ProgressAt and LostSince of the members are left zero: they are about more than one read. Index is the
// highest committed index that any member reports, Leader is 0 while an election is under way.
func (c *Client) Read(ctx context.Context) quorum.Ring {
	budget := c.cfg.ReadTimeout
	if by, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(by))
	}
	c.refresh()

	ring := quorum.Ring{ReadAt: time.Now()}
	list, from, err := c.list(ctx, budget/2)
	if err != nil {
		ring.Why = fmt.Sprintf("etcd gave no linearizable answer: %v", err)
		return ring
	}
	readAt := ring.ReadAt
	ring.Known = true
	ring.Members = members(list)
	c.follow(from, list.Header.GetClusterId(), ring.Members)

	ctx, cancel := context.WithTimeout(ctx, budget/2)
	defer cancel()
	answers := make([]answer, len(ring.Members))
	var asked sync.WaitGroup
	if c.cfg.Limits && slices.ContainsFunc(ring.Members, func(m quorum.Member) bool { return m.Learner }) {
		for i := range ring.Members {
			asked.Go(func() { ring.Members[i].MaxLearners = c.limit(ctx, ring.Members[i].ClientURLs) })
		}
	}
	for i := range ring.Members {
		asked.Go(func() { answers[i] = c.visit(ctx, &ring.Members[i], list.Header.GetClusterId()) })
	}
	asked.Wait()
	c.unwell.Store(slices.ContainsFunc(ring.Members, func(m quorum.Member) bool { return !m.Healthy }))
	for i, a := range answers {
		if a.status == nil { // who else answers at its URL says nothing of this member
			ring.Members[i].MaxLearners = 0
		}
	}
	if why := alarms(&ring, answers); why != "" {
		return quorum.Ring{ReadAt: readAt, Why: why, Alarms: ring.Alarms}
	}
	sum(&ring, answers)
	if why := tooOld(ring.Version); why != "" {
		return quorum.Ring{ReadAt: readAt, Why: why}
	}
	return ring
}

// tooOld says why the member list of an etcd of this version does not count, "" if it does, or there is no version.
func tooOld(version string) (why string) {
	if v, err := semver.NewVersion(version); err == nil && v.LessThan(semver.Version{Major: 3, Minor: 5}) {
		return fmt.Sprintf("a member is etcd %s, which answers with the member list of its own data, whatever the others have: upgrade it to 3.5 or later", v)
	}
	return ""
}

// alarms writes those that stand into the ring. A member whose data are corrupt answers, and is no healthy one. An alarm that could
// not be read, or that names no member although one is corrupt, makes the ring unknown, and says why: any member may be that one.
func alarms(ring *quorum.Ring, answers []answer) (why string) {
	listed := false // each has them all
	for _, a := range answers {
		if a.alarmsErr != nil {
			why = fmt.Sprintf("etcd has raised an alarm that cannot be read: %v", a.alarmsErr)
		}
		if a.alarms == nil {
			continue
		}
		listed = true
		for _, raised := range a.alarms.Alarms {
			one := quorum.Alarm{Kind: raised.GetAlarm().String(), Member: quorum.MemberID(raised.GetMemberID())}
			if !slices.Contains(ring.Alarms, one) {
				ring.Alarms = append(ring.Alarms, one)
			}
		}
	}
	if listed {
		why = ""
	}
	for _, a := range ring.Alarms {
		if a.Kind != quorum.AlarmCorrupt {
			continue
		}
		if m := ring.Member(a.Member); m != nil {
			m.Healthy, m.Why = false, "etcd has raised alarm CORRUPT: its data differ from the others'"
		} else if a.Member == 0 {
			why = "etcd has raised alarm CORRUPT and cannot tell which member's data are"
		}
	}
	return why
}

// list is the member list by a linearizable read, which is what MemberList asks for by default: the
// endpoint confirms with a quorum through the leader that what it knows is current. An endpoint that
// knows of no leader says so at once instead of waiting for one.
//
// A host that was installed anew may run an etcd of its own at an address of the ring, with a
// certificate of the same CA and a quorum of one. So an answer counts if it is of the cluster that
// this client met first.
func (c *Client) list(ctx context.Context, within time.Duration) (*clientv3.MemberListResponse, string, error) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), within)
	defer cancel()
	c.mu.Lock()
	cluster := c.cluster
	c.mu.Unlock()
	call := func(ctx context.Context, conn *clientv3.Client) (*clientv3.MemberListResponse, error) {
		list, err := conn.MemberList(ctx)
		if err != nil {
			return nil, err
		}
		if len(list.Members) == 0 {
			return nil, errors.New("it lists no members")
		}
		if id := list.Header.GetClusterId(); cluster != 0 && id != cluster {
			return nil, fmt.Errorf("it is of another etcd cluster, %x instead of %x; if etcd was restored as that one, Holdfast follows it once no member of the other answers", id, cluster)
		}
		return list, nil
	}
	if cluster != 0 {
		return ask(ctx, c, c.endpoints(), call)
	}
	return c.meet(ctx, call)
}

// meet is list for the first time: all endpoints are asked, and those that answer must be of one cluster.
func (c *Client) meet(ctx context.Context, call func(context.Context, *clientv3.Client) (*clientv3.MemberListResponse, error)) (*clientv3.MemberListResponse, string, error) {
	urls := c.endpoints()
	lists, errs := make([]*clientv3.MemberListResponse, len(urls)), make([]error, len(urls))
	var asked sync.WaitGroup
	for i, u := range urls {
		asked.Go(func() {
			conn, err := c.conn(u)
			if err == nil {
				lists[i], err = call(ctx, conn)
			}
			errs[i] = err
		})
	}
	asked.Wait()

	var (
		failed failures
		first  *clientv3.MemberListResponse // the first of the answers, in the order of the endpoints
		from   string
	)
	for i, u := range urls {
		switch {
		case errs[i] != nil:
			failed = append(failed, failure{u, errs[i]})
		case first == nil:
			first, from = lists[i], u
		case lists[i].Header.GetClusterId() != first.Header.GetClusterId():
			return nil, "", fmt.Errorf("%s and %s are of two etcd clusters, %x and %x",
				from, u, first.Header.GetClusterId(), lists[i].Header.GetClusterId())
		}
	}
	if first == nil {
		return nil, "", failed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id := first.Header.GetClusterId()
	if c.cluster != 0 && c.cluster != id {
		return nil, "", fmt.Errorf("%s is of another etcd cluster, %x instead of %x, which another read has met meanwhile", from, id, c.cluster)
	}
	c.cluster = id
	return first, from, nil
}

// members are those of a list, as etcd lists them.
func members(list *clientv3.MemberListResponse) (out []quorum.Member) {
	for _, m := range list.Members {
		out = append(out, quorum.Member{
			ID: quorum.MemberID(m.GetID()), Name: m.GetName(), PeerURLs: m.GetPeerURLs(), ClientURLs: m.GetClientURLs(), Learner: m.GetIsLearner(),
		})
	}
	return out
}

// answer is what a member said of itself.
type answer struct {
	status *clientv3.StatusResponse // nil without an answer
	vars   *vars                    // of the leader, where a member does not answer

	alarms    *clientv3.AlarmResponse // nil where there are none to ask for
	alarmsErr error
}

// visit asks a member at its own endpoint how it is, and writes that into m.
func (c *Client) visit(ctx context.Context, m *quorum.Member, cluster uint64) answer {
	if !m.Started() {
		m.Why = "it has not started"
		return answer{}
	}
	if len(m.ClientURLs) == 0 {
		m.Why = "it lists no client URL"
		return answer{}
	}
	status, at, err := ask(ctx, c, m.ClientURLs, func(ctx context.Context, conn *clientv3.Client) (*clientv3.StatusResponse, error) {
		if m.Learner {
			if err := connected(ctx, conn); err != nil {
				return nil, err
			}
		}
		status, err := statusOf(ctx, conn)
		if err != nil {
			return nil, err
		}
		// A reinstalled host has its predecessor's address, and a dead member's URL then answers.
		if id := quorum.MemberID(status.Header.GetMemberId()); id != m.ID {
			return nil, fmt.Errorf("another member answers there, %x", id)
		}
		if id := status.Header.GetClusterId(); id != cluster {
			return nil, fmt.Errorf("a member of another etcd cluster answers there, of %x", id)
		}
		return status, nil
	})
	if err != nil {
		m.Why = err.Error()
		return answer{}
	}
	m.Applied, m.Leader = status.RaftAppliedIndex, quorum.MemberID(status.Leader)
	out := answer{status: status}

	// A status has alarms as texts alone, beside the one that there is no leader. The list of them goes through raft.
	if hints := len(status.Errors); !m.Learner && (hints > 1 || hints == 1 && status.Leader != 0) {
		conn, err := c.conn(at)
		if err == nil {
			out.alarms, err = conn.AlarmList(ctx)
		}
		out.alarmsErr = err
	}

	if !m.Learner { // it would refuse linearizable reads
		if err := c.Linearizable(ctx, at); err != nil {
			m.Why = err.Error()
			return out
		}
	}
	m.Healthy = true
	if c.unwell.Load() && m.Leader == m.ID {
		said, err := c.vars(ctx, at)
		if err == nil {
			out.vars = &said
		} else {
			c.cfg.Logger.V(1).Info("etcd's leader does not show how far the others are", "url", at, "reason", err.Error())
		}
	}
	return out
}

// statusOf asks through the connection that is there: Client.Status would dial, with a handshake, at each call.
func statusOf(ctx context.Context, conn *clientv3.Client) (*clientv3.StatusResponse, error) {
	remote := clientv3.RetryMaintenanceClient(conn, conn.ActiveConnection())
	return clientv3.NewMaintenanceFromMaintenanceClient(remote, conn).Status(ctx, "")
}

// quorate says why a voter gives no linearizable answer. It is asked for the key that etcdctl's endpoint health reads; that one may not
// read it is an answer, too.
func quorate(ctx context.Context, conn *clientv3.Client) error {
	_, err := conn.Get(clientv3.WithRequireLeader(ctx), "health", clientv3.WithCountOnly())
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return nil
	}
	return err
}

// connectBound is how long a read waits for a learner that does not take the connection.
const connectBound = 100 * time.Millisecond

// connected waits for a learner's connection. While one is sent its data it accepts connections and says nothing on them; a read
// that waited for that would be late to see it answer, and so would be its promotion.
func connected(ctx context.Context, conn *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, connectBound)
	defer cancel()
	for c := conn.ActiveConnection(); ; {
		state := c.GetState()
		switch state {
		case connectivity.Idle:
			c.Connect()
		case connectivity.Connecting:
		case connectivity.Ready, connectivity.TransientFailure, connectivity.Shutdown:
			return nil // the call says more
		}
		if !c.WaitForStateChange(ctx, state) {
			return errors.New("it takes no connection yet")
		}
	}
}

// sum fills in what only all answers together say.
func sum(ring *quorum.Ring, answers []answer) {
	var term uint64
	var lowest *semver.Version
	for _, a := range answers {
		if a.status == nil {
			continue
		}
		// The latest term counts: in it there is one leader, or none yet.
		switch {
		case a.status.RaftTerm > term:
			term, ring.Leader = a.status.RaftTerm, quorum.MemberID(a.status.Leader)
		case a.status.RaftTerm == term && ring.Leader == 0:
			ring.Leader = quorum.MemberID(a.status.Leader)
		}
		ring.Index = max(ring.Index, a.status.RaftIndex)
		if v, err := semver.NewVersion(a.status.Version); err == nil && (lowest == nil || v.LessThan(*lowest)) {
			lowest = v
		}
	}
	if lowest != nil {
		ring.Version = lowest.String()
	}
	for i, a := range answers {
		if a.vars != nil && ring.Members[i].ID == ring.Leader {
			a.vars.account(ring, a.status.Version)
		}
	}
}
