package sandbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// members watches etcd's member list on behalf of all hosts. A real control
// plane has a static pod on each host that does this with etcdctl.
type members struct {
	client *clientv3.Client
	// running are the client URLs of the members whose process runs, voters or not.
	running func() []string

	mu      sync.Mutex
	began   time.Time // when the read of list began
	list    []*etcdserverpb.Member
	changed chan struct{} // closed when list changes, and replaced
}

func newMembers(config clientv3.Config, running func() []string) (*members, error) {
	client, err := clientv3.New(config)
	if err != nil {
		return nil, err
	}
	return &members{client: client, running: running, changed: make(chan struct{})}, nil
}

// run keeps the list fresh until the context ends. A failure is an etcd without
// quorum, or one that is not up yet: the list stays as it was.
func (m *members) run(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		_, _ = m.read(ctx, 2*time.Second)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// read asks etcd for the list, linearizable, and keeps it.
func (m *members) read(ctx context.Context, limit time.Duration) ([]*etcdserverpb.Member, error) {
	began := time.Now()
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := m.client.MemberList(call)
	if err != nil {
		// What it knew of as voters may be gone, all of it in a ring of one whose
		// member was replaced between two reads. Whoever runs may know more.
		if urls := m.running(); len(urls) > 0 {
			m.client.SetEndpoints(urls...)
		}
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if began.Before(m.began) {
		return response.Members, nil // a read that began later was faster
	}
	m.began = began
	if slices.EqualFunc(m.list, response.Members, sameMember) {
		return m.list, nil
	}
	m.list = response.Members
	close(m.changed)
	m.changed = make(chan struct{})
	m.client.SetEndpoints(voters(m.list)...)
	return m.list, nil
}

// latest is the list as it was read last, and a channel that is closed when it changes.
func (m *members) latest() ([]*etcdserverpb.Member, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list, m.changed
}

func sameMember(a, b *etcdserverpb.Member) bool {
	return a.ID == b.ID && a.Name == b.Name && a.IsLearner == b.IsLearner &&
		slices.Equal(a.PeerURLs, b.PeerURLs) && slices.Equal(a.ClientURLs, b.ClientURLs)
}

// voters are the client URLs of the voters that have started. A learner is no
// endpoint: it rejects most calls.
func voters(list []*etcdserverpb.Member) []string {
	var urls []string
	for _, m := range list {
		if !m.IsLearner {
			urls = append(urls, m.ClientURLs...)
		}
	}
	slices.Sort(urls)
	return urls
}

func byPeerURL(list []*etcdserverpb.Member, url string) *etcdserverpb.Member {
	for _, m := range list {
		if slices.Contains(m.PeerURLs, url) {
			return m
		}
	}
	return nil
}

func listed(list []*etcdserverpb.Member, id uint64) bool {
	return slices.ContainsFunc(list, func(m *etcdserverpb.Member) bool { return m.ID == id })
}
