package verify

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// moved is the specification of a member whose host has another address.
func (r *realRing) moved(m *ring.Member) ring.MemberSpec {
	old := m.Spec()
	spec := r.Next(old.Name)
	spec.Dir = old.Dir
	spec.InitialCluster = map[string]string{spec.Name: r.Ports.PeerURL(spec.Address)}
	r.node(spec)
	return spec
}

// goesOn starts a member on the data that it has.
func (r *realRing) goesOn(t *testing.T, i int, spec ring.MemberSpec) {
	t.Helper()
	m, err := ring.StartMember(r.CA, spec)
	if err != nil {
		t.Fatal(err)
	}
	r.Members[i] = m
	r.Config.Endpoints = nil
	for _, m := range r.Members {
		r.Config.Endpoints = append(r.Config.Endpoints, m.ClientURL())
	}
	r.admin.SetEndpoints(r.Config.Endpoints...)
	if err := ring.WaitHealthy(t.Context(), r.Config, m); err != nil {
		t.Fatal(err)
	}
}

// TestAddressChanges does what docs/full-mode.md says of addresses that change: of one member, and of all at once.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	r := startRing(t, 3)
	t.Cleanup(func() {
		for _, m := range r.Members {
			_ = m.Kill()
		}
	})
	r.put(t, "before", 10)

	// One: it waits, and says what to type; then it goes on with its data.
	id := r.id(t, r.Members[2].Spec())
	g.Expect(r.Members[2].Kill()).To(Succeed())
	spec := r.moved(r.Members[2])
	r.put(t, "meanwhile", 1) // so there is a leader
	says(g, t, r.check(t, spec), "that is for good: etcdctl member update")
	check, waited := r.check(t, spec), make(chan error, 1)
	go func() { waited <- said(t, check, patience) }()
	_, err := r.admin.MemberUpdate(t.Context(), id, []string{r.Ports.PeerURL(spec.Address)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(waited).Should(Receive(BeNil()), "it starts, though its environment is of before: its data are its own")
	r.goesOn(t, 2, spec)
	r.alike(g, t)

	// All at once: nobody reaches anybody, so one begins alone, and the others are added anew.
	r.put(t, "all", 10)
	for _, m := range r.Members {
		g.Expect(m.Kill()).To(Succeed()) // what was committed last is in their logs alone
	}
	farthest := 0
	for i, m := range r.Members {
		if is, best := end(t, m), end(t, r.Members[farthest]); is.term > best.term || is.term == best.term && is.index > best.index {
			farthest = i
		}
	}
	s, _ := snapshotOf(t, r.Members[farthest])
	g.Expect(s.Run(t.Context())).To(Succeed())
	first := r.moved(r.Members[0])
	id = r.restoreAt(t, s.File, first, first.Name+"="+r.Ports.PeerURL(first.Address), "--initial-cluster-token", "moved", "--bump-revision", "1000000000", "--mark-compacted")
	alone := hostenv.Peers{fmt.Sprintf("%x", id): {r.Ports.PeerURL(first.Address)}} // as the page says, its environment names it alone, at the new peer URL
	check = &Membership{
		Etcd: r.client(t, r.Members...), Environment: hostenv.Environment{State: hostenv.StateExisting, InitialCluster: alone, Members: alone},
		PeerURL: r.Ports.PeerURL(first.Address), DataDir: first.DataDir(), Timeout: 20 * time.Second, QuorumWait: 300 * time.Millisecond, Out: &bytes.Buffer{},
	}
	g.Expect(said(t, check, patience)).To(Succeed())
	r.goesOn(t, 0, first)
	for i := 1; i < 3; i++ {
		spec := r.moved(r.Members[i])
		var added *clientv3.MemberAddResponse
		g.Eventually(func() (err error) { // etcd takes none in its first 5 s
			added, err = r.admin.MemberAddAsLearner(t.Context(), []string{r.Ports.PeerURL(spec.Address)})
			return err
		}).Should(Succeed())
		for _, m := range added.Members {
			if m.GetName() != "" {
				spec.InitialCluster[m.GetName()] = m.GetPeerURLs()[0]
			}
		}
		g.Expect(said(t, r.check(t, spec), patience)).To(Succeed())
		g.Expect(filepath.Glob(spec.DataDir() + "-removed-*")).To(HaveLen(1))
		m, err := ring.StartMember(r.CA, spec)
		g.Expect(err).NotTo(HaveOccurred())
		r.Members[i] = m
		g.Eventually(func() error {
			_, err := r.admin.MemberPromote(t.Context(), added.Member.GetID())
			return err
		}).Should(Succeed())
	}
	r.alike(g, t)
	got, err := r.admin.Get(t.Context(), "all-9")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Kvs).To(HaveLen(1))
}
