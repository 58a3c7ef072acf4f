package etcd

import (
	"testing"

	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestWaits: where a member's etcd waits is read as long as its host says so, and not where two hosts do.
func TestWaits(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const here, there = "https://10.0.0.8:2380", "https://10.0.0.9:2380"
	r := startRing(t, 1)
	c, host, other := startClient(t, r), startClient(t, r), startClient(t, r)
	id := addWhenAccepted(t, c, r.Ports.PeerURL(r.Next("late").Address)) // it does not answer
	for _, client := range []*Client{host, other} {
		g.Expect(client.Waits(t.Context(), id, here)).NotTo(Succeed(), "before it knows which etcd this is")
		g.Expect(client.Read(t.Context()).Known).To(BeTrue())
		g.Expect(client.WaitsNoMore(t.Context())).To(Succeed(), "nothing was said")
	}
	at := func() string { return memberNow(t, c, id).WaitsAt }
	g.Expect(at()).To(BeEmpty())
	g.Expect(host.Waits(t.Context(), id, here)).To(Succeed())
	g.Expect(at()).To(Equal(here))

	conn, err := c.conn(r.Members[0].ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	_, err = conn.Delete(t.Context(), waitsPrefix, clientv3.WithPrefix())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(at()).To(BeEmpty())
	g.Expect(host.Waits(t.Context(), id, here)).To(Succeed())
	g.Expect(at()).To(Equal(here), "its lease was kept, and its key is there again")

	g.Expect(other.Waits(t.Context(), id, there)).To(Succeed())
	g.Expect(at()).To(BeEmpty(), "at two places: the data were copied")
	g.Expect(other.WaitsNoMore(t.Context())).To(Succeed())
	g.Expect(at()).To(Equal(here))
	g.Expect(host.WaitsNoMore(t.Context())).To(Succeed())
	g.Expect(at()).To(BeEmpty())
	leases, err := conn.Leases(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(leases.Leases).To(BeEmpty(), "and it leaves no lease")
}
