package sandbox

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// members watches etcd's member list, for the sandbox's own clients and for the
// operator that it plays where Holdfast does not drive the membership.
type members struct {
	client *clientv3.Client
	// running are the client URLs of the members whose process runs, voters or not.
	running func() []string

	mu    sync.Mutex
	began time.Time // when the read of list began
	list  []*etcdserverpb.Member
}

func newMembers(config clientv3.Config, running func() []string) (*members, error) {
	client, err := clientv3.New(config)
	if err != nil {
		return nil, err
	}
	return &members{client: client, running: running}, nil
}

// run keeps the list fresh until the context ends, and tells each good read. A
// failure is an etcd without quorum, or one that is not up yet: the list stays as it was.
func (m *members) run(ctx context.Context, tell func([]*etcdserverpb.Member)) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if list, err := m.read(ctx, 2*time.Second); err == nil {
			tell(list)
		}
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
	m.client.SetEndpoints(voters(m.list)...)
	return m.list, nil
}

// latest is the list as it was read last.
func (m *members) latest() []*etcdserverpb.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list
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

// environments are what the hosts' etcds start with, by the Node's name: texts of package membership.
// They are remembered as a kubelet remembers its static pods: while no API server answers.
type environments struct {
	mu      sync.Mutex
	texts   map[string]string // nil until the first are known
	own     map[string]string // those that a person wrote on the host itself
	changed chan struct{}     // closed when any changes, and replaced
}

func newEnvironments() *environments { return &environments{changed: make(chan struct{})} }

func (e *environments) set(texts map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.texts != nil && maps.Equal(e.texts, texts) {
		return
	}
	e.texts = texts
	close(e.changed)
	e.changed = make(chan struct{})
}

// write is a person's own environment for a host, in the place of the one that is published; "" takes it away.
func (e *environments) write(host, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.own == nil {
		e.own = map[string]string{}
	}
	e.own[host] = text
	if text == "" {
		delete(e.own, host)
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// of is the environment of a host, "" if it has none, and a channel that is closed when any changes.
// The first members of a ring begin with the one that their installer gave them.
func (e *environments) of(h *host) (text string, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if own, ok := e.own[h.name]; ok {
		return own, e.changed
	}
	if e.texts == nil && h.founders != nil {
		return founding(h.founders), e.changed
	}
	return e.texts[h.name], e.changed
}

// founding is the environment of the first members of a ring.
func founding(founders map[string]string) string {
	e := hostenv.Environment{State: hostenv.StateNew, InitialCluster: hostenv.Peers{}}
	for name, url := range founders {
		e.InitialCluster[name] = []string{url}
	}
	return e.Text()
}

// operate renders the environments from the member list, as cluster-etcd-operator does where Holdfast
// does not drive the membership.
func (c *cloud) operate(list []*etcdserverpb.Member) {
	if c.relieved.Load() {
		return
	}
	s := &quorum.Snapshot{Ring: quorum.Ring{Known: true}}
	for _, m := range list {
		s.Ring.Members = append(s.Ring.Members, quorum.Member{
			ID: quorum.MemberID(m.ID), Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner,
		})
	}
	for _, h := range c.all() {
		s.Nodes = append(s.Nodes, quorum.Node{Name: h.name, Ready: true, Addresses: []netip.Addr{netip.MustParseAddr(h.at())}})
	}
	rendered, err := hostenv.Environments(quorum.NewJoin(s))
	if err != nil {
		c.log.Error("rendering the hosts' environments", "error", err)
		return
	}
	texts := map[string]string{}
	for name, e := range rendered {
		texts[name] = e.Text()
	}
	c.environments.set(texts)
}
