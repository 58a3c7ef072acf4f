package etcd

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
)

// TestNames: a host name in a peer URL that DNS has no address for is told by name. Where DNS does not answer nothing is.
func TestNames(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r, asked := startRing(t, 1), atomic.Int64{}
	config := configFor(r, r.Members...)
	config.LookupHost = func(_ context.Context, name string) ([]string, error) {
		asked.Add(1)
		if strings.HasPrefix(name, "there.") {
			return []string{"10.0.0.1"}, nil
		}
		return nil, &net.DNSError{Name: name, IsNotFound: strings.HasPrefix(name, "gone."), IsTimeout: strings.HasPrefix(name, "slow.")}
	}
	c, err := New(config)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)
	for name, want := range map[string]string{"gone.example": "gone.example", "slow.example": "", "there.example": ""} {
		id := addWhenAccepted(t, c, "https://"+name+":2380")
		before := asked.Load()
		for range 3 {
			ring := c.Read(t.Context())
			g.Expect(ring.Member(id).NoAddress).To(Equal(want))
		}
		g.Expect(asked.Load()-before).To(BeNumerically("<=", 1), "an answer is used again")
		g.Expect(remove(t, c, id)).To(Succeed())
	}
}
