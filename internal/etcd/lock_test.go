package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// TestLock has two clients want the lock.
func TestLock(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	one, two := patientClient(t, r), patientClient(t, r)
	g.Expect(one.Read(t.Context()).Known && two.Read(t.Context()).Known).To(BeTrue())

	held, err := one.Lock(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	from := time.Now()
	ctx, cancel, err := held.Context(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	defer cancel()
	by, ok := ctx.Deadline()
	g.Expect(ok).To(BeTrue())
	g.Expect(by).To(BeTemporally(">=", from.Add(lockTTL-lockMargin)))
	g.Expect(time.Until(by)).To(BeNumerically("<=", lockTTL-lockMargin))

	err = waitInVain(t, two)
	g.Expect(err).To(MatchError(concurrency.ErrLocked))
	g.Expect(err).To(MatchError(ContainSubstring("the test")), "the holder's name")

	// The one that waits has it when the other gives it up, whose contexts are over then.
	waited := make(chan error)
	go func() {
		h, err := two.Lock(t.Context())
		if err == nil {
			err = h.Unlock(t.Context())
		}
		waited <- err
	}()
	g.Consistently(waited, "300ms").ShouldNot(Receive())
	g.Expect(held.Unlock(t.Context())).To(Succeed())
	g.Expect(held.session.Done()).To(BeClosed())
	g.Eventually(ctx.Done(), "2m").Should(BeClosed())
	g.Expect(context.Cause(ctx)).To(MatchError(ErrLockLost))
	g.Eventually(waited, "2m").Should(Receive(BeNil()))
	_, err = held.AddLearner(t.Context(), "https://127.0.0.1:1")
	g.Expect(err).To(MatchError(ErrLockLost))

	// A lease that is lost: refused at the next change, and told as soon as it is noticed.
	held, err = one.Lock(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel, err = held.Context(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	defer cancel()
	other, err := r.Client()
	g.Expect(err).NotTo(HaveOccurred())
	defer other.Close()
	_, err = other.Revoke(t.Context(), held.session.Lease())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = held.AddLearner(t.Context(), "https://127.0.0.1:1")
	g.Expect(err).To(MatchError(ErrLockLost))
	g.Expect(errors.Is(err, ErrAmbiguous)).To(BeFalse(), "nothing was sent")
	g.Eventually(held.session.Done(), "2m").Should(BeClosed())
	g.Eventually(ctx.Done(), "2m").Should(BeClosed())
	g.Expect(context.Cause(ctx)).To(MatchError(ErrLockLost))
	g.Expect(held.Unlock(t.Context())).To(Succeed(), "what is gone need not be released")

	// The key alone gone, with the lease alive.
	held, err = one.Lock(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = other.Delete(t.Context(), lockPrefix, clientv3.WithPrefix())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = held.AddLearner(t.Context(), "https://127.0.0.1:1")
	g.Expect(err).To(MatchError(ErrLockLost))

	// Unlock works although the caller's time is up.
	over, now := context.WithCancel(t.Context())
	now()
	g.Expect(held.Unlock(over)).To(Succeed())
	left, err := other.Leases(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left.Leases).To(BeEmpty(), "of every lock, failed ones too")
	g.Expect(one.Read(t.Context()).Members).To(HaveLen(1))
}

// patientClient is a client whose calls may take as long as a busy computer needs.
func patientClient(t *testing.T, r *ring.Ring) *Client {
	t.Helper()
	cfg := configFor(r, r.Members...)
	cfg.ReadTimeout, cfg.ChangeTimeout = 30*time.Second, 30*time.Second
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// waitInVain asks for a lock that another holds, and returns what it is told when its time is over. A time that was too
// short to see the holder at all is doubled.
func waitInVain(t *testing.T, c *Client) error {
	t.Helper()
	var err error
	for within := 500 * time.Millisecond; within < 20*time.Second; within *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		_, err = c.Lock(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return err
}

// TestLockHolder: who has the lock is told of Holdfast and of a key that somebody else made, which keeps Holdfast out.
func TestLockHolder(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	c := patientClient(t, r)
	g.Expect(c.LockHolder(t.Context())).To(Equal(quorum.Lock{}))
	_, err := c.Lock(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("does not lead"))) // of a cluster that was never read
	g.Expect(c.Read(t.Context()).Known).To(BeTrue())

	held, err := c.Lock(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	lock, err := c.LockHolder(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lock).To(Equal(quorum.Lock{Key: held.mutex.Key(), Holder: "the test", Leased: true}))
	g.Expect(held.Unlock(t.Context())).To(Succeed())
	g.Expect(c.LockHolder(t.Context())).To(Equal(quorum.Lock{}))

	other, err := r.Client()
	g.Expect(err).NotTo(HaveOccurred())
	defer other.Close()
	_, err = other.Put(t.Context(), "/holdfast/membership/0", "x\xff"+strings.Repeat("y", 1000))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(waitInVain(t, c)).To(MatchError(concurrency.ErrLocked))
	lock, err = c.LockHolder(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lock).To(Equal(quorum.Lock{Key: "/holdfast/membership/0", Holder: "x?" + strings.Repeat("y", 98)}))
}

// TestStoppedHolder stops a process that holds the lock until another has it, and lets it go on.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	cfg := configFor(r, r.Members...)
	self, err := os.Executable()
	g.Expect(err).NotTo(HaveOccurred())
	log := t.TempDir() + "/holder.log"
	holder, err := process.Start(process.Spec{
		Name: "holder", Path: self, Args: []string{"-test.run=^TestHolderProcess$", "-test.v"}, Log: log,
		Env: append(os.Environ(), holderEnv+"="+strings.Join([]string{cfg.Endpoints[0], cfg.CACert, cfg.Cert, cfg.Key}, ",")),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = holder.Stop(0) })
	said := func() string { b, _ := os.ReadFile(log); return string(b) }
	g.Eventually(said, "2m", "20ms").Should(ContainSubstring("[held]"))
	freeze(t, holder)

	cfg.ChangeTimeout = 25 * time.Second
	c, err := New(cfg)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)
	from := time.Now()
	g.Expect(c.Read(t.Context()).Known).To(BeTrue())
	h, err := c.Lock(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("taken over %v after the holder was stopped", time.Since(from))
	g.Expect(holder.Signal(cont)).To(Succeed())
	g.Eventually(holder.Done(), "2m").Should(BeClosed())
	g.Expect(said()).To(ContainSubstring("[clock: not sent] [lock: lost]"))
	g.Expect(c.Read(t.Context()).Members).To(HaveLen(1))
	g.Expect(h.Unlock(t.Context())).To(Succeed())
}

const holderEnv = "HOLDFAST_TEST_HOLDER"

// TestHolderProcess is the process that TestStoppedHolder stops. It does nothing by itself.
func TestHolderProcess(t *testing.T) {
	args := strings.Split(os.Getenv(holderEnv), ",")
	if len(args) != 4 {
		return
	}
	c, err := New(Config{Endpoints: args[:1], CACert: args[1], Cert: args[2], Key: args[3], Identity: "holder"})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Read(t.Context()); !got.Known {
		t.Fatal(got.Why)
	}
	h, err := c.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel, err := h.Context(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	fmt.Println("[held]")
	start := time.Now()
	for last := start; ; { // until time was lost
		now := time.Now()
		if now.Sub(last) > time.Second {
			break
		}
		if now.Sub(start) > time.Minute {
			t.Fatal("never stopped")
		}
		last = now
	}
	// The first thing that it does: what a round that was stopped just before sending would do.
	clock := "sent"
	err = deliver(ctx, "test", nil, func(context.Context, *clientv3.Client) error { return nil })
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrLockLost) {
		clock = "not sent"
	}
	// And by etcd's word, under a context of its own.
	lock := "held"
	if _, err := h.AddLearner(context.Background(), "https://127.0.0.1:1"); errors.Is(err, ErrLockLost) {
		lock = "lost"
	}
	fmt.Printf("[clock: %s] [lock: %s]\n", clock, lock)
}
