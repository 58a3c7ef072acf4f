package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// startRing is a real ring with mutual TLS, gone with the test.
func startRing(t *testing.T, n int) *ring.Ring {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := ring.Start(ctx, t.TempDir(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	return r
}

func configFor(r *ring.Ring, seeds ...*ring.Member) Config {
	cfg := Config{CACert: r.Files.CA, Cert: r.Files.Cert, Key: r.Files.Key, Identity: "the test"}
	for _, m := range seeds {
		cfg.Endpoints = append(cfg.Endpoints, m.ClientURL())
	}
	return cfg
}

// startClient is a client that knows of the given members, or of all that the ring began with.
func startClient(t *testing.T, r *ring.Ring, seeds ...*ring.Member) *Client {
	t.Helper()
	if len(seeds) == 0 {
		seeds = r.Members
	}
	c, err := New(configFor(r, seeds...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// locked runs one change under the lock.
func locked(t *testing.T, c *Client, change func(context.Context, *MembershipLock) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	h, err := c.Lock(ctx)
	for errors.Is(err, concurrency.ErrLocked) && ctx.Err() == nil { // left behind by an ambiguous change
		h, err = c.Lock(ctx)
	}
	if err != nil {
		t.Fatalf("the lock: %v", err)
	}
	defer func() {
		if err := h.Unlock(ctx); err != nil {
			t.Errorf("unlock: %v", err)
		}
	}()
	return change(ctx, h)
}

func add(t *testing.T, c *Client, peerURL string) (id quorum.MemberID, err error) {
	t.Helper()
	err = locked(t, c, func(ctx context.Context, h *MembershipLock) error { id, err = h.AddLearner(ctx, peerURL); return err })
	return id, err
}

func promote(t *testing.T, c *Client, id quorum.MemberID) error {
	t.Helper()
	return locked(t, c, func(ctx context.Context, h *MembershipLock) error { return h.Promote(ctx, id) })
}

func remove(t *testing.T, c *Client, id quorum.MemberID) error {
	t.Helper()
	return locked(t, c, func(ctx context.Context, h *MembershipLock) error { return h.Remove(ctx, id) })
}

func moveLeader(t *testing.T, c *Client, to quorum.MemberID) error {
	t.Helper()
	return locked(t, c, func(ctx context.Context, h *MembershipLock) error { return h.MoveLeader(ctx, to) })
}

// addWhenAccepted adds a learner as soon as etcd has seen its voters connected for long enough.
func addWhenAccepted(t *testing.T, c *Client, peerURL string) (id quorum.MemberID) {
	t.Helper()
	NewWithT(t).Eventually(func() (err error) { id, err = add(t, c, peerURL); return err }, "2m", "200ms").Should(Succeed())
	return id
}

// named finds a member by its name.
func named(r *quorum.Ring, name string) *quorum.Member {
	for i := range r.Members {
		if r.Members[i].Name == name {
			return &r.Members[i]
		}
	}
	return nil
}

// memberNow is a member in a read made now, nil without it.
func memberNow(t *testing.T, c *Client, id quorum.MemberID) *quorum.Member {
	t.Helper()
	r := readKnown(t, c)
	return r.Member(id)
}

// readKnown reads until etcd is known: a busy computer can be too late for one look.
func readKnown(t *testing.T, c *Client) quorum.Ring {
	t.Helper()
	var r quorum.Ring
	NewWithT(t).Eventually(t.Context(), func() error {
		if r = c.Read(t.Context()); !r.Known {
			return errors.New(r.Why)
		}
		return nil
	}).WithTimeout(2 * time.Minute).WithPolling(time.Millisecond).Should(Succeed())
	return r
}

// leaderOf splits the members that are processes into the leader and the others.
func leaderOf(t *testing.T, r *quorum.Ring, members []*ring.Member) (leader *ring.Member, others []*ring.Member) {
	t.Helper()
	for _, m := range members {
		if l := r.Member(r.Leader); l != nil && m.Spec().Name == l.Name {
			leader = m
		} else {
			others = append(others, m)
		}
	}
	if leader == nil {
		t.Fatalf("the leader is none of the members: %+v", r)
	}
	return leader, others
}

func whole(g Gomega, r quorum.Ring, voters int) {
	g.Expect(r.Known).To(BeTrue(), r.Why)
	all, healthy := r.Voters()
	g.Expect(all).To(Equal(voters))
	g.Expect(healthy).To(Equal(voters), "%+v", r.Members)
	g.Expect(r.Leader).NotTo(BeZero())
	g.Expect(r.Index).NotTo(BeZero())
	g.Expect(r.Version).To(MatchRegexp(`^3\.\d+\.\d+$`))
	for _, m := range r.Members {
		g.Expect(m.Applied).NotTo(BeZero())
	}
}

// TestOneVoter is the smallest ring: what etcd refuses there, and by which error it is known.
func TestOneVoter(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	c := startClient(t, r)
	whole(g, c.Read(t.Context()), 1)
	voter := c.Read(t.Context()).Members[0].ID

	// A voter that is listed with an address at which a later one answers.
	stale := quorum.Member{ID: 42, Name: "stale", ClientURLs: []string{"%", r.Members[0].ClientURL()}}
	g.Expect(c.visit(t.Context(), &stale, c.cluster).status).To(BeNil())
	g.Expect(stale.Healthy).To(BeFalse())
	g.Expect(stale.Applied).To(BeZero())

	next := r.Next("next")
	id := addWhenAccepted(t, c, r.Ports.PeerURL(next.Address))

	got := c.Read(t.Context())
	learner := got.Member(id)
	g.Expect(learner).NotTo(BeNil())
	g.Expect(learner.Learner).To(BeTrue())
	g.Expect(learner.Started()).To(BeFalse())
	g.Expect(learner.Healthy).To(BeFalse())
	g.Expect(learner.Why).NotTo(BeEmpty())
	g.Expect(got.Member(voter).Healthy).To(BeTrue(), "a member that has not started ails no other")

	for what, is := range map[string]struct {
		err  error
		want error
	}{
		"a learner that has not started":  {promote(t, c, id), rpctypes.ErrMemberLearnerNotReady},
		"a voter":                         {promote(t, c, voter), rpctypes.ErrMemberNotLearner},
		"promote a stranger":              {promote(t, c, 42), rpctypes.ErrMemberNotFound},
		"remove a stranger":               {remove(t, c, 42), rpctypes.ErrMemberNotFound},
		"leadership to a stranger":        {moveLeader(t, c, 42), rpctypes.ErrBadLeaderTransferee},
		"leadership to a learner":         {moveLeader(t, c, id), rpctypes.ErrBadLeaderTransferee},
		"a second learner":                {second(add(t, c, r.Ports.PeerURL(r.Next("other").Address))), rpctypes.ErrTooManyLearners},
		"a learner under a used peer URL": {second(add(t, c, r.Members[0].PeerURL())), rpctypes.ErrPeerURLExist},
	} {
		g.Expect(is.err).To(MatchError(is.want), what)
		g.Expect(errors.Is(is.err, ErrAmbiguous)).To(BeFalse(), what)
	}
	for _, bad := range []string{"", "127.0.0.1:1", "https://", "https://127.0.0.1", "https://127.0.0.1:1/x", "::", "%"} {
		_, err := add(t, c, bad)
		g.Expect(err).To(HaveOccurred())
		g.Expect(errors.Is(err, ErrAmbiguous)).To(BeFalse(), bad)
	}

	g.Expect(remove(t, c, id)).To(Succeed())
	g.Expect(memberNow(t, c, id)).To(BeNil())
	whole(g, c.Read(t.Context()), 1)
}

func second[A, B any](_ A, b B) B { return b }

// TestLearned: endpoints that were learned are asked besides those that were given, and do not show which member answers there.
func TestLearned(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	cfg := configFor(r)
	nobody := r.Ports.ClientURL(r.Block.Addr(9).String())
	cfg.Endpoints = []string{nobody}
	client := func() *Client {
		c, err := New(cfg)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(c.Close)
		return c
	}
	c := client()
	g.Expect(c.Read(t.Context()).Known).To(BeFalse())
	g.Expect(c.Answered()).To(BeZero())
	c.Learn([]string{"http://127.0.0.1:1", "nothing", nobody, r.Members[0].ClientURL()})
	g.Expect(c.Read(t.Context()).Known).To(BeTrue())
	g.Expect(c.Answered()).To(BeTemporally("~", time.Now(), time.Minute))
	g.Expect(c.endpoints()).To(Equal([]string{r.Members[0].ClientURL(), nobody}))

	// Another etcd, with a certificate of the same CA: who has met etcd asks it in vain, who has not decides for neither.
	spec := r.Next("other")
	spec.Existing, spec.InitialCluster = false, map[string]string{spec.Name: r.Ports.PeerURL(spec.Address)}
	other, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = other.Kill() })
	g.Expect(ring.WaitHealthy(t.Context(), r.Config, other)).To(Succeed())
	both := client()
	both.Learn([]string{other.ClientURL(), r.Members[0].ClientURL()})
	g.Expect(both.Read(t.Context()).Why).To(ContainSubstring("are of two etcd clusters"))
	both.Learn([]string{r.Members[0].ClientURL()})
	g.Expect(both.Read(t.Context()).Known).To(BeTrue(), "it goes by what was learned last")

	g.Expect(r.Members[0].Kill()).To(Succeed())
	g.Expect(c.Read(t.Context()).Known).To(BeFalse())
	c.Learn([]string{other.ClientURL()})
	g.Expect(c.Read(t.Context()).Why).To(ContainSubstring("it is of another etcd cluster"))
}

// TestReplacement replaces the member that the client was told of, as Holdfast does it.
func TestReplacement(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	seed := r.Members[0]
	c := startClient(t, r, seed)
	got := c.Read(t.Context())
	whole(g, got, 3)
	old := named(&got, seed.Spec().Name).ID

	// A ring's voters have not been connected for 5 s, nor has one that starts again.
	_, others := leaderOf(t, &got, r.Members)
	follower := others[len(others)-1]
	g.Expect(follower.Kill()).To(Succeed())
	follower, err := follower.Restart(r.CA)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = follower.Kill() })
	spec := r.Next("m3")
	_, err = add(t, c, r.Ports.PeerURL(spec.Address))
	g.Expect(err).To(MatchError(rpctypes.ErrUnhealthy))
	g.Expect(errors.Is(err, ErrAmbiguous)).To(BeFalse())
	id := addWhenAccepted(t, c, r.Ports.PeerURL(spec.Address))

	spec.InitialCluster = map[string]string{spec.Name: r.Ports.PeerURL(spec.Address)}
	for _, m := range r.Members {
		spec.InitialCluster[m.Spec().Name] = m.PeerURL()
	}
	fresh, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = fresh.Kill() })
	g.Eventually(func(g Gomega) {
		got := readKnown(t, c)
		m := got.Member(id)
		g.Expect(m.Name).To(Equal("m3"))
		g.Expect(m.Learner).To(BeTrue())
		g.Expect(m.Healthy).To(BeTrue(), m.Why)
		g.Expect(m.Applied).To(BeNumerically("~", got.Index, 5))
	}, "2m", "50ms").Should(Succeed())
	g.Expect(c.endpoints()).NotTo(ContainElement(fresh.ClientURL()), "a learner refuses most calls")

	// A learner that hangs falls behind: the index goes on without it.
	before := c.Read(t.Context()).Index
	freeze(t, fresh.Process())
	writer, err := r.Client()
	g.Expect(err).NotTo(HaveOccurred())
	defer writer.Close()
	for range 200 {
		_, err := writer.Put(t.Context(), "lag", "x")
		g.Expect(err).NotTo(HaveOccurred())
	}
	got = readKnown(t, c)
	g.Expect(got.Index).To(BeNumerically(">=", before+200))
	g.Expect(got.Member(id).Healthy).To(BeFalse())
	g.Expect(got.Member(id).Applied).To(BeZero())
	g.Expect(fresh.Process().Signal(cont)).To(Succeed())
	g.Eventually(func(g Gomega) {
		got := readKnown(t, c)
		g.Expect(got.Member(id).Applied).To(BeNumerically(">=", before+200))
	}, "2m", "20ms").Should(Succeed())

	g.Expect(promote(t, c, id)).To(Succeed())
	g.Eventually(func(g Gomega) { whole(g, c.Read(t.Context()), 4) }, "2m", "50ms").Should(Succeed())
	g.Expect(c.endpoints()).To(ContainElement(fresh.ClientURL()))

	// etcd counts the new voter as connected for 5 s before it lets a healthy one go.
	g.Expect(moveLeader(t, c, id)).To(Succeed())
	g.Expect(c.Read(t.Context()).Leader).To(Equal(id))
	g.Eventually(func() error { return remove(t, c, old) }, "2m", "200ms").Should(Succeed())
	g.Expect(seed.Kill()).To(Succeed())

	// The only seed is dead, and the ring has moved on.
	whole(g, c.Read(t.Context()), 3)
	g.Expect(memberNow(t, c, old)).To(BeNil())
	g.Expect(c.endpoints()).To(HaveLen(4), "three voters, and the seed as a fallback")
}
