package etcd

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/holdfast-dev/holdfast/test/ring"
)

// TestRestored: a client follows another cluster only where the API server's objects are there, at two moments, and nobody of the
// cluster before answers.
func TestRestored(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 2)
	spec := r.Next("other")
	spec.Existing, spec.InitialCluster = false, map[string]string{spec.Name: r.Ports.PeerURL(spec.Address)}
	other, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = other.Kill() })
	g.Expect(ring.WaitHealthy(t.Context(), r.Config, other)).To(Succeed())
	there, err := r.Client(other.ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = there.Close() })

	c, err := New(configFor(r, r.Members...))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)
	// write puts a key where the API server is stored, and says at which revision it is then.
	write := func(ctx context.Context) (int64, error) {
		put, err := there.Put(ctx, "key", "value")
		if err != nil {
			return 0, err
		}
		return put.Header.Revision, nil
	}
	still := func(ctx context.Context) (int64, error) {
		got, err := there.Get(ctx, "key")
		if err != nil {
			return 0, err
		}
		return got.Header.Revision, nil
	}
	stays := func(stored func(context.Context) (int64, error), why string) {
		t.Helper()
		cluster, err := c.Restored(t.Context(), stored)
		g.Expect(cluster).To(BeZero())
		if why == "" {
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			g.Expect(err).To(MatchError(ContainSubstring(why)))
		}
	}

	for range 3 { // a new etcd is at revision 1
		g.Expect(write(t.Context())).NotTo(BeZero())
	}
	stays(write, "") // it has met no cluster yet
	g.Expect(c.Read(t.Context()).Known).To(BeTrue())
	c.Learn([]string{other.ClientURL()})
	stays(write, "") // a member of its own cluster answers
	g.Expect(r.Members[0].Kill()).To(Succeed())
	stays(write, "") // one of them still does, without quorum
	g.Expect(r.Members[1].Kill()).To(Succeed())
	g.Expect(c.Read(t.Context()).Known).To(BeFalse())

	stays(func(context.Context) (int64, error) { return 0, errors.New("the API server hangs") }, "the API server hangs")
	stays(func(context.Context) (int64, error) { return 1_000_000, nil }, "the API server's objects are not there")
	stays(func(context.Context) (int64, error) { return 1, nil }, "the API server's objects are not there")
	stays(write, "looked at once more")
	stays(still, "looked at once more") // the same revision again shows nothing new
	g.Expect(c.Read(t.Context()).Why).To(ContainSubstring("another etcd cluster"))
	g.Expect(c.Restored(t.Context(), write)).NotTo(BeZero())
	g.Expect(c.Read(t.Context()).Known).To(BeTrue())
}
