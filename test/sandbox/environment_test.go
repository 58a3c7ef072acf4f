package sandbox_test

import (
	"context"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
)

// TestEnvironment: a host knows of the ring what the ConfigMap says, and nothing else. etcd lists its
// member, and etcd starts there when the ConfigMap says so, as the ConfigMap says.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	s := sandboxtest.Start(t, sandbox.Options{Replicas: 1})
	c := admin(t, s)
	ctx := t.Context()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	g.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)

	key := client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.Name}
	var published corev1.ConfigMap
	g.Eventually(func() error { return c.Get(ctx, key, &published) }).Should(Succeed())
	g.Expect(published.Data).To(HaveKeyWithValue("master-0", ContainSubstring("ETCD_MEMBER_IDS=")))
	g.Expect(s.Holdfast.Stop()).To(Succeed())

	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://cloud/instances/late", strings.NewReader(`{"type":"m5.large"}`))
	g.Expect(err).NotTo(HaveOccurred())
	cloud := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sandbox.SocketIn(s.Dir))
	}}}
	defer cloud.CloseIdleConnections()
	response, err := cloud.Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(response.Body.Close()).To(Succeed())
	g.Expect(response.StatusCode).To(Equal(http.StatusCreated))
	late, _ := s.Host("late")

	etcd, err := s.EtcdClient()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = etcd.Close() })
	g.Eventually(func() error { _, err := etcd.MemberAddAsLearner(ctx, []string{late.PeerURL}); return err }).Should(Succeed())
	running := func() bool { host, _ := s.Host("late"); return host.Etcd != nil }
	g.Consistently(running, time.Second).Should(BeFalse(), "listed by etcd, and not in the ConfigMap")

	list, err := etcd.MemberList(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	e := hostenv.Environment{State: hostenv.StateExisting, InitialCluster: hostenv.Peers{}, Members: hostenv.Peers{}}
	for _, m := range list.Members {
		name := m.GetName()
		if name == "" {
			name = "late"
		}
		e.InitialCluster[name] = m.GetPeerURLs()
		e.Members[quorum.MemberID(m.GetID()).Hex()] = m.GetPeerURLs()
	}
	wrong := e
	wrong.Members = maps.Clone(e.Members)
	wrong.Members["bad"] = []string{"https://127.0.0.66:2380"}
	holdfast := as(t, s, sandbox.Holdfast) // nobody else may
	publish := func(e hostenv.Environment) {
		g.Expect(c.Get(ctx, key, &published)).To(Succeed())
		published.Data["late"] = e.Text()
		g.Expect(holdfast.Update(ctx, &published)).To(Succeed())
	}
	publish(wrong)
	g.Consistently(running, time.Second).Should(BeFalse(), "the ConfigMap names a member that etcd does not list")
	publish(e)
	g.Eventually(running).Should(BeTrue())
	g.Eventually(func() (bool, error) {
		list, err := etcd.MemberList(ctx)
		return err == nil && len(list.Members) == 2 && list.Members[0].GetName() != "" && list.Members[1].GetName() != "", err
	}).Should(BeTrue(), "it joined")
}
