package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// TestHostLife is an etcd host's life in a ring of one: added, promoted,
// removed, added again, crashed, without power, terminated. No API server runs,
// so the sandbox plays the operator that renders the hosts' environments.
func TestHostLife(t *testing.T) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	g.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	s, err := open(Options{Dir: t.TempDir(), Replicas: 1, WithoutHoldfast: true}.withDefaults())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	g.Expect(s.prepare()).To(Succeed())
	// What the static pod gives a member that hangs, two minutes, is too long for a test.
	container := &s.cloud.pod.Spec.Containers[0]
	for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		probe.PeriodSeconds, probe.TimeoutSeconds = 1, 1
	}
	container.ReadinessProbe.FailureThreshold, container.LivenessProbe.FailureThreshold = 1, 3
	g.Expect(s.startRing(ctx)).To(Succeed())
	etcd, err := s.EtcdClient()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = etcd.Close() })

	h, created, err := s.cloud.create("late", "m5.large", "", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(created).To(BeTrue())
	_, created, err = s.cloud.create("late", "m5.large", "", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(created).To(BeFalse(), "creating is idempotent")
	g.Expect(h.public().Etcd).To(BeNil(), "not listed, so not started")

	join := func() uint64 {
		added, err := etcd.MemberAddAsLearner(ctx, []string{h.peerURL()})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() error {
			_, err := etcd.MemberPromote(ctx, added.Member.ID)
			return err
		}).Should(Succeed())
		return added.Member.ID
	}
	running := func() bool { return h.public().Etcd != nil }
	data := filepath.Join(h.dir, "data")

	id := join()
	// A voter that was removed ends by itself. Its container is started again, without the init containers, and waits. Its data stay until the
	// same address starts under the next ID, and are put aside then. etcd refuses to remove a voter that is not connected yet.
	g.Eventually(func() error { _, err := etcd.MemberRemove(ctx, id); return err }).Should(Succeed())
	g.Eventually(running).Should(BeFalse())
	g.Expect(data).To(BeADirectory())
	again := join()
	g.Expect(again).NotTo(Equal(id))
	g.Expect(filepath.Glob(data + "-removed-*")).To(HaveLen(1))

	// A crash: the host starts it again, on its data.
	before := h.public().Etcd
	g.Expect(before.Signal(syscall.SIGKILL)).To(Succeed())
	g.Eventually(func() bool { now := h.public().Etcd; return now != nil && now != before }).Should(BeTrue())

	// It hangs: after the readiness probe the liveness probe fails, and the kubelet kills it and starts it again.
	ready := func() bool { return h.public().Ready }
	g.Eventually(ready).Should(BeTrue(), "a voter with quorum is ready")
	before = h.public().Etcd
	g.Expect(before.Signal(syscall.SIGSTOP)).To(Succeed())
	g.Eventually(ready).Should(BeFalse(), "a member that hangs is not ready")
	g.Expect(h.public().Etcd).To(Equal(before), "it is not started again as soon as it is not ready")
	g.Eventually(func() bool { now := h.public().Etcd; return now != nil && now != before }).Should(BeTrue(), "a member that hangs is started again")
	g.Eventually(ready).Should(BeTrue(), "a member that was started again is ready")

	g.Expect(s.Power("late", false)).To(Succeed())
	g.Eventually(running).Should(BeFalse())
	g.Expect(h.instance().State).To(Equal("Stopped"))
	g.Expect(s.Power("late", true)).To(Succeed())
	g.Eventually(running).Should(BeTrue())
	g.Eventually(func() error { _, err := etcd.Get(ctx, "k"); return err }).Should(Succeed())

	// The ring must be told first: a ring of two cannot lose one.
	g.Eventually(func() error { _, err := etcd.MemberRemove(ctx, again); return err }).Should(Succeed())
	s.cloud.terminate("late")
	g.Eventually(func() *host { return s.cloud.get("late") }).Should(BeNil())
	_, err = os.Stat(h.dir)
	g.Expect(errors.Is(err, fs.ErrNotExist)).To(BeTrue(), "its disk is removed")

	// The address that is free for longest comes first.
	next, _, err := s.cloud.create("next", "m5.large", "", nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(next.address).NotTo(Equal(h.address))
}
