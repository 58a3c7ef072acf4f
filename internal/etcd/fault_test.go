package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
)

const (
	stop = syscall.SIGSTOP
	cont = syscall.SIGCONT
)

// freeze stops a process and returns when none of its threads runs any more: the signal alone leaves
// it the time to answer.
func freeze(t *testing.T, p *process.Process) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(p.Signal(stop)).To(Succeed())
	g.Eventually(func(g Gomega) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.PID()))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(threads).NotTo(BeEmpty())
		for _, thread := range threads {
			status, err := os.ReadFile(thread)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(status)).To(ContainSubstring("State:\tT"))
		}
	}, "2m", "5ms").Should(Succeed())
}

const (
	// inTime is for a read that a silent member holds up until Config.ReadTimeout, a second. A busy computer
	// adds to that; without the time-out the read would last as long as the silence.
	inTime = 10 * time.Second
	// direct is for a read that waits for no silent member.
	direct = time.Second / 2
)

// timed reads n times and returns the median and the longest duration.
func timed(t *testing.T, c *Client, n int) (median, longest time.Duration) {
	t.Helper()
	var took []time.Duration
	late := 0
	for range n {
		from := time.Now()
		switch got := c.Read(t.Context()); {
		case got.Known:
			took = append(took, time.Since(from))
		case late > n/5: // a busy computer can be too late for one
			t.Fatal(got.Why)
		default:
			late++
		}
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)-1]
}

// TestPolling is not parallel, to measure: reading over and over is quick and leaves nothing behind.
func TestPolling(t *testing.T) {
	g := NewWithT(t)
	r := startRing(t, 3)
	start := runtime.NumGoroutine()
	c := startClient(t, r)
	whole(g, c.Read(t.Context()), 3)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)

	median, longest := timed(t, c, 300)
	t.Logf("3 healthy voters: median %v, longest %v", median, longest)
	g.Expect(median).To(BeNumerically("<", direct))
	from := time.Now()
	for range 20 {
		g.Expect(locked(t, c, func(context.Context, *MembershipLock) error { return nil })).To(Succeed())
	}
	t.Logf("lock and unlock: %v", time.Since(from)/20)
	g.Eventually(runtime.NumGoroutine, "2m", "20ms").Should(BeNumerically("<=", goroutines))
	g.Eventually(func() int { return openFiles(t) }, "2m", "20ms").Should(BeNumerically("<=", files))
	c.Close()
	g.Eventually(runtime.NumGoroutine, "2m", "20ms").Should(BeNumerically("<=", start))
}

// TestFaults goes from a whole ring to a lost quorum and back.
func TestFaults(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	c := startClient(t, r)
	got := c.Read(t.Context())
	whole(g, got, 3)
	leader, others := leaderOf(t, &got, r.Members)
	hung, dead := others[0], others[1]
	id := func(m *ring.Member) quorum.MemberID { return named(&got, m.Spec().Name).ID }

	// A voter that hangs takes its own health with it, and time up to the bound.
	freeze(t, hung.Process())
	median, longest := timed(t, c, 5)
	t.Logf("one of 3 hangs: median %v, longest %v", median, longest)
	g.Expect(longest).To(BeNumerically("<", inTime))
	var now quorum.Ring
	g.Eventually(func(g Gomega) { // a busy computer can be too late for one look
		now = readKnown(t, c)
		g.Expect(now.Member(id(hung)).Healthy).To(BeFalse())
		g.Expect(now.Member(id(hung)).Why).NotTo(BeEmpty())
		g.Expect(now.Member(id(leader)).Healthy).To(BeTrue(), now.Member(id(leader)).Why)
		g.Expect(now.Member(id(dead)).Healthy).To(BeTrue(), now.Member(id(dead)).Why)
	}, "2m").Should(Succeed())

	// Leadership that was offered to it may yet be taken: that is not a refusal.
	err := locked(t, c, func(ctx context.Context, h *MembershipLock) error {
		ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer cancel()
		return h.MoveLeader(ctx, id(hung))
	})
	g.Expect(err).To(MatchError(ErrAmbiguous))
	// And nobody decides on another change while it is on its way.
	g.Expect(waitInVain(t, c)).To(MatchError(concurrency.ErrLocked))
	g.Expect(hung.Process().Signal(cont)).To(Succeed())
	g.Eventually(func(g Gomega) { whole(g, c.Read(t.Context()), 3) }, "2m", "50ms").Should(Succeed())

	// A dead voter.
	got = c.Read(t.Context())
	leader, others = leaderOf(t, &got, r.Members)
	dead, other := others[0], others[1]
	g.Expect(dead.Kill()).To(Succeed())
	median, longest = timed(t, c, 100)
	t.Logf("one of 3 is dead: median %v, longest %v", median, longest)
	g.Expect(median).To(BeNumerically("<", direct))
	now = c.Read(t.Context())
	g.Expect(now.Member(id(dead)).Healthy).To(BeFalse())
	g.Expect(now.Member(id(dead)).Why).NotTo(BeEmpty())
	_, err = add(t, c, r.Ports.PeerURL(r.Next("next").Address))
	g.Expect(err).To(MatchError(rpctypes.ErrUnhealthy))
	g.Expect(remove(t, c, id(other))).To(MatchError(rpctypes.ErrUnhealthy))

	// Its address answers again, for somebody else: that does not make it healthy.
	spec := dead.Spec()
	spec.Dir, spec.InitialCluster = t.TempDir(), map[string]string{spec.Name: dead.PeerURL()}
	impostor, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = impostor.Kill() })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	g.Expect(ring.WaitHealthy(ctx, r.Config, impostor)).To(Succeed())
	g.Eventually(func() string { return memberNow(t, c, id(dead)).Why }, "2m", "50ms").Should(ContainSubstring("answers there"))
	g.Expect(memberNow(t, c, id(dead)).Healthy).To(BeFalse())
	// Nor is its answer used as the ring's, even if it is asked first.
	c.last = impostor.ClientURL()
	g.Expect(c.Read(t.Context()).Members).To(HaveLen(3))
	late := startClient(t, r)
	now = late.Read(t.Context())
	g.Expect(now.Known).To(BeFalse(), "whose word to take is not known")
	g.Expect(impostor.Kill()).To(Succeed())
	g.Expect(late.Read(t.Context()).Members).To(HaveLen(3))

	// Back again, noticed within seconds although calls to it failed all the time.
	back, err := ring.StartMember(r.CA, dead.Spec())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = back.Kill() })
	g.Expect(ring.WaitHealthy(ctx, r.Config, back)).To(Succeed())
	from := time.Now()
	g.Eventually(func(g Gomega) { whole(g, c.Read(t.Context()), 3) }, "2m", "20ms").Should(Succeed())
	t.Logf("seen healthy again after %v", time.Since(from))

	// The leader dies: unknown while nobody leads, then known under another.
	got = c.Read(t.Context())
	leader, others = leaderOf(t, &got, []*ring.Member{leader, other, back})
	g.Expect(leader.Kill()).To(Succeed())
	from = time.Now()
	g.Eventually(func(g Gomega) {
		now := c.Read(t.Context())
		g.Expect(now.Known).To(BeTrue(), now.Why)
		g.Expect(now.Leader).NotTo(Or(BeZero(), Equal(id(leader))))
	}, "2m", "20ms").Should(Succeed())
	t.Logf("read under a new leader %v after the old one died", time.Since(from))
	g.Expect(remove(t, c, id(leader))).To(Succeed(), "a dead voter may go")

	// A leader that hangs with a change in its socket.
	got = c.Read(t.Context())
	leader, others = leaderOf(t, &got, others)
	conn, err := c.conn(leader.ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	freeze(t, leader.Process())
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err = deliver(short, "remove", conn, func(ctx context.Context, to *clientv3.Client) error {
		_, err := to.MemberRemove(ctx, uint64(id(others[0])))
		return err
	})
	g.Expect(err).To(MatchError(ErrAmbiguous))

	// It was one of two: quorum is lost, and that is said within the bound.
	from = time.Now()
	now = c.Read(t.Context())
	g.Expect(time.Since(from)).To(BeNumerically("<", inTime))
	g.Expect(now.Known).To(BeFalse())
	g.Expect(now.Why).NotTo(BeEmpty())
	g.Expect(now.Members).To(BeEmpty())
	t.Logf("without quorum after %v: %s", time.Since(from), now.Why)
	_, err = c.Lock(t.Context())
	g.Expect(err).To(HaveOccurred())
	g.Expect(errors.Is(err, ErrAmbiguous)).To(BeFalse())
	g.Expect(leader.Process().Signal(cont)).To(Succeed())
	g.Eventually(func() bool { return c.Read(t.Context()).Known }, "2m", "50ms").Should(BeTrue())

	// Lost for good: what is left says at once that it knows of no leader.
	g.Expect(leader.Kill()).To(Succeed())
	g.Eventually(func(g Gomega) {
		from := time.Now()
		g.Expect(c.Read(t.Context()).Known).To(BeFalse())
		g.Expect(time.Since(from)).To(BeNumerically("<", direct))
	}, "2m", "50ms").Should(Succeed())

	c.Close()
	g.Expect(c.Read(t.Context()).Known).To(BeFalse())
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestCutOff: a member without quorum, whose own data are old, does not say that the lock is held.
func TestCutOff(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	c := startClient(t, r)
	got := c.Read(t.Context())
	whole(g, got, 3)
	held, err := c.Lock(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	leader, others := leaderOf(t, &got, r.Members)
	at, err := c.conn(leader.ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held.verify(t.Context(), at)).To(Succeed())
	for _, m := range others {
		g.Expect(m.Kill()).To(Succeed())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	g.Expect(held.verify(ctx, at)).To(MatchError(ErrLockLost))
}
