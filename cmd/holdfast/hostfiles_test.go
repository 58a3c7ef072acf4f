package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/hostfiles"
	"github.com/holdfast-dev/holdfast/test/pki"
)

// testHostFiles has a host's files follow what a real API server has for it.
func testHostFiles(t *testing.T, kubeconfig string, c client.Client) {
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(20 * time.Second)
	meta := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: hostenv.Namespace, Name: name, Labels: labels}
	}
	g.Expect(client.IgnoreAlreadyExists(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostenv.Namespace}}))).To(Succeed())
	dir := filepath.Join(t.TempDir(), "etcd")
	held := func(name string) func() string {
		return func() string {
			text, _ := os.ReadFile(filepath.Join(dir, name)) // "" while it is not there
			return string(text)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- execute(ctx, []string{"host-files", "--kubeconfig=" + kubeconfig, "--node=m0", "--directory=" + dir}, os.Stderr, os.Stderr)
	}()

	environment := func(state string) string { return "ETCD_INITIAL_CLUSTER_STATE=" + state + "\n" }
	published := &corev1.ConfigMap{ObjectMeta: meta(hostenv.Name, nil), Data: map[string]string{"m0": environment("new"), "m1": environment("existing")}}
	g.Expect(c.Create(t.Context(), published)).To(Succeed())
	g.Eventually(held(hostfiles.Membership)).Should(Equal(environment("new")))

	ca, err := pki.NewAuthority("test")
	g.Expect(err).NotTo(HaveOccurred())
	issue := func(kind, node string) *corev1.Secret {
		cert, key, err := ca.Issue(pki.Leaf{CommonName: kind, Hosts: []string{"127.0.0.1"}})
		g.Expect(err).NotTo(HaveOccurred())
		return &corev1.Secret{
			ObjectMeta: meta(hostfiles.SecretName(kind, node), map[string]string{hostfiles.Label: node}), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca.CertPEM()},
		}
	}
	pair := func(s *corev1.Secret) string { return string(slices.Concat(s.Data["tls.key"], s.Data["tls.crt"])) }
	serving := issue("serving", "m0")
	g.Expect(c.Create(t.Context(), issue("serving", "m1"))).To(Succeed())
	g.Expect(c.Create(t.Context(), serving)).To(Succeed())
	g.Eventually(held("serving.pem")).Should(Equal(pair(serving)))
	g.Expect(held("serving-ca.crt")()).To(Equal(string(ca.CertPEM())))
	g.Expect(filepath.Join(dir, "peer.pem")).NotTo(BeAnExistingFile(), "there is no such Secret")

	serving.Data = issue("serving", "m0").Data
	g.Expect(c.Update(t.Context(), serving)).To(Succeed())
	g.Eventually(held("serving.pem")).Should(Equal(pair(serving)), "renewed")

	// What goes in the cluster stays on the host. The change after it shows that it was seen.
	g.Expect(c.Delete(t.Context(), serving)).To(Succeed())
	published.Data["m0"] = environment("perhaps")
	g.Expect(c.Update(t.Context(), published)).To(Succeed())
	peer := issue("peer", "m0")
	g.Expect(c.Create(t.Context(), peer)).To(Succeed())
	g.Eventually(held("peer.pem")).Should(Equal(pair(peer)))
	g.Expect(held("serving.pem")()).To(Equal(pair(serving)))
	g.Expect(held(hostfiles.Membership)()).To(Equal(environment("new")))
	stop()
	g.Eventually(done).Should(Receive(Equal(0)))
}
