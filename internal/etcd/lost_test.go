package etcd

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// TestLost: etcd's leader gets entries to a voter that only Holdfast does not reach, and none to one that has stopped.
func TestLost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	cfg := configFor(r, r.Members[1:]...)
	c, err := New(cfg)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)

	// read writes to etcd, and reads how far the first member is by the leader's account.
	read := func(g Gomega) quorum.Member {
		conn, err := c.conn(r.Members[1].ClientURL())
		g.Expect(err).NotTo(HaveOccurred())
		_, err = conn.Put(t.Context(), "k", "v")
		g.Expect(err).NotTo(HaveOccurred())
		got := c.Read(t.Context())
		g.Expect(got.Known).To(BeTrue(), got.Why)
		m := named(&got, "m0")
		g.Expect(m.Healthy).To(BeFalse())
		g.Expect(m.Match+m.Behind).NotTo(BeZero(), "the leader was not asked")
		return *m
	}
	spec := r.Members[0].Spec()
	g.Expect(r.Members[0].Stop()).To(Succeed())
	var stopped quorum.Member
	g.Eventually(func(g Gomega) { stopped = read(g) }, "2m", "50ms").Should(Succeed())
	g.Eventually(func(g Gomega) {
		m := read(g)
		g.Expect(m.Match).To(Equal(stopped.Match))
		g.Expect(m.Behind).To(BeNumerically(">", stopped.Behind))
	}, "2m", "50ms").Should(Succeed())

	spec.Existing, spec.InitialCluster = true, nil
	spec.Extra = append(spec.Extra, fmt.Sprintf("--advertise-client-urls=https://%s:1", spec.Address))
	silent, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	r.Members[0] = silent
	for range 2 { // it gets what is written
		before := stopped.Match
		g.Eventually(func(g Gomega) { stopped = read(g); g.Expect(stopped.Match).To(BeNumerically(">", before)) }, "2m", "50ms").Should(Succeed())
	}
}
