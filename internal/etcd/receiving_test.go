package etcd

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// TestReceiving: a learner that is being sent a large snapshot does not answer, and etcd's leader says what it is doing.
func TestReceiving(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	spec := r.Members[0].Spec()
	entries := "--snapshot-catchup-entries=5"
	if old, err := assets.Before("etcd", "3.6"); err != nil {
		t.Fatal(err)
	} else if old {
		entries = "--experimental-snapshot-catchup-entries=5"
	}
	spec.Extra = append(spec.Extra, "--snapshot-count=5", entries) // the log's beginning is soon gone
	g.Expect(r.Members[0].Stop()).To(Succeed())
	leader, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	r.Members[0] = leader
	g.Expect(ring.WaitHealthy(t.Context(), r.Config, leader)).To(Succeed())
	c := startClient(t, r)
	conn, err := c.conn(leader.ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	for i := range 16 {
		_, err = conn.Put(t.Context(), fmt.Sprint(i), strings.Repeat("x", 1<<20))
		g.Expect(err).NotTo(HaveOccurred())
	}

	// Its peers reach the learner by a way that stops after 4 MiB, until it is opened.
	next := r.Next("m1")
	ports, err := r.Block.FreePorts(1)
	g.Expect(err).NotTo(HaveOccurred())
	at := net.JoinHostPort(next.Address, fmt.Sprint(ports[0]))
	next.Extra = append(next.Extra, "--listen-peer-urls=https://"+at)
	opened := make(chan struct{})
	narrow(t, net.JoinHostPort(next.Address, fmt.Sprint(r.Ports.Peer)), at, opened)
	g.Expect(c.Read(t.Context()).Known).To(BeTrue())
	id, err := add(t, c, r.Ports.PeerURL(next.Address))
	g.Expect(err).NotTo(HaveOccurred())
	next.InitialCluster = map[string]string{"m0": leader.PeerURL(), "m1": r.Ports.PeerURL(next.Address)}
	learner, err := ring.StartMember(r.CA, next)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = learner.Kill() })

	is := func(healthy, receiving bool) func(Gomega) {
		return func(g Gomega) {
			got := c.Read(t.Context())
			m := got.Member(id)
			g.Expect(m).NotTo(BeNil(), got.Why)
			g.Expect([]bool{m.Healthy, m.Receiving}).To(Equal([]bool{healthy, receiving}), "healthy and receiving: %+v", *m)
		}
	}
	g.Eventually(is(false, true), "2m", "50ms").Should(Succeed())
	close(opened)
	g.Eventually(is(true, false), "2m", "50ms").Should(Succeed())
}

// narrow leads connections from one address to another. Of each, it passes on 4 MiB before the way is open.
func narrow(t *testing.T, from, to string, opened <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() { cancel(); _ = listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				out, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
				if err != nil {
					_ = in.Close()
					return
				}
				context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
				go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
				if _, err = io.CopyN(out, in, 4<<20); err == nil {
					select {
					case <-opened:
					case <-ctx.Done():
					}
					_, _ = io.Copy(out, in)
				}
				_ = out.Close()
			}()
		}
	}()
}
