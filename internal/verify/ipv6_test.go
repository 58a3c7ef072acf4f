package verify

import (
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/ring"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestIPv6 is a ring of IPv6 addresses: a member joins it, starts again on its data, and is found as an endpoint. Loopback has one such address,
// so its members differ in their ports.
func TestIPv6(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	dir := t.TempDir()
	ca, err := pki.NewAuthority("test")
	g.Expect(err).NotTo(HaveOccurred())
	member := func(name string) ring.MemberSpec {
		return ring.MemberSpec{Name: name, Address: "::1", Ports: freePorts(t), Dir: filepath.Join(dir, name), InitialCluster: map[string]string{}, Extra: []string{ring.Unsynced}}
	}
	url := func(s ring.MemberSpec) string { return s.Ports.PeerURL(s.Address) }
	first, second := member("m0"), member("m1")
	first.InitialCluster[first.Name] = url(first)
	start := func(s ring.MemberSpec) *ring.Member {
		m, err := ring.StartMember(ca, s)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = m.Kill() })
		return m
	}
	m0 := start(first)
	config, files, err := ring.ClientConfig(ca, dir, m0.ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ring.WaitHealthy(t.Context(), config, m0)).To(Succeed())
	admin, err := clientv3.New(config)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = admin.Close() })
	client, err := etcd.New(etcd.Config{Endpoints: config.Endpoints, CACert: files.CA, Cert: files.Cert, Key: files.Key})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(client.Close)

	added, err := admin.MemberAddAsLearner(t.Context(), []string{url(second)})
	g.Expect(err).NotTo(HaveOccurred())
	environment := hostenv.Environment{State: hostenv.StateExisting, InitialCluster: hostenv.Peers{}, Members: hostenv.Peers{}}
	for _, m := range added.Members {
		name := m.Name
		if name == "" {
			name = second.Name
		}
		environment.InitialCluster[name] = m.PeerURLs
		environment.Members[quorum.MemberID(m.ID).Hex()] = m.PeerURLs
		second.InitialCluster[name] = m.PeerURLs[0]
	}
	environment, err = hostenv.Parse(environment.Text())
	g.Expect(err).NotTo(HaveOccurred(), "what is published is read back")
	second.Existing = true
	check := &Membership{
		Etcd: client, Environment: environment, PeerURL: url(second), DataDir: second.DataDir(),
		Timeout: 20 * time.Second, QuorumWait: time.Second, Out: &transcript{},
	}
	g.Expect(check.Run(t.Context())).To(Succeed())
	m1 := start(second)
	g.Eventually(func() error {
		_, err := admin.MemberPromote(t.Context(), added.Member.ID)
		return err
	}).Should(Succeed())
	g.Eventually(func() error {
		_, err := Health(t.Context(), client, m1.ClientURL())
		return err
	}).Should(Succeed())

	g.Expect(m1.Stop()).To(Succeed())
	g.Expect(check.Run(t.Context())).To(Succeed(), "on its own data, without a quorum")
	start(second)
	var s quorum.Snapshot
	g.Eventually(func() bool {
		s.Ring = client.Read(t.Context())
		return s.Ring.Known && len(s.Ring.Members) == 2 && s.Ring.Members[0].Healthy && s.Ring.Members[1].Healthy
	}).Should(BeTrue())
	endpoints, err := hostenv.Endpoints(quorum.NewJoin(&s))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(endpoints).To(HaveLen(2))
	for _, e := range endpoints {
		g.Expect(e.Address.String()).To(Equal("::1"))
		g.Expect(e.Port).To(BeElementOf(first.Ports.Client, second.Ports.Client))
	}
}

// freePorts are two that nobody listens on at ::1, and that no connection is given as its own.
func freePorts(t *testing.T) ring.Ports {
	t.Helper()
	if listener, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		tier.Lacks(t, "this computer has no ::1: %v", err)
	} else {
		_ = listener.Close()
	}
	var ports []int
	for tries := 0; len(ports) < 2 && tries < 1000; tries++ {
		port := 10_000 + rand.IntN(20_000)
		listener, err := net.Listen("tcp6", net.JoinHostPort("::1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, port)
	}
	if len(ports) < 2 {
		t.Fatal("no port is free at ::1")
	}
	return ring.Ports{Client: ports[0], Peer: ports[1]}
}
