package sandbox_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
)

func admin(t *testing.T, s *sandbox.Sandbox) client.Client { return as(t, s, sandbox.Admin) }

func as(t *testing.T, s *sandbox.Sandbox, who sandbox.Identity) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(s.Config(who), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestUnguarded is a control plane of three without Holdfast: a host loses its
// power and comes back, and an unhooked Machine disappears with all it had.
func TestUnguarded(t *testing.T) {
	t.Parallel()
	s := sandboxtest.Start(t, sandbox.Options{WithoutHoldfast: true})
	c := admin(t, s)
	ctx := t.Context()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	g.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)

	var machines machinev1beta1.MachineList
	g.Expect(c.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace))).To(Succeed())
	g.Expect(machines.Items).To(HaveLen(3))
	for _, m := range machines.Items {
		g.Expect(m.Status.Phase).To(HaveValue(Equal(machinev1beta1.PhaseRunning)))
		g.Expect(m.Status.NodeRef).NotTo(BeNil())
		g.Expect(m.Finalizers).To(ContainElement(machinev1beta1.MachineFinalizer))
		host, ok := s.Host(m.Name)
		g.Expect(ok).To(BeTrue())
		g.Expect(m.Status.Addresses).To(ContainElement(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: host.Address}))
	}
	env, err := os.ReadFile(filepath.Join(s.Dir, "env"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"KUBECONFIG", "ETCDCTL_ENDPOINTS", "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY", "PATH"} {
		g.Expect(string(env)).To(ContainSubstring("export " + name + "="))
	}

	ready := func() corev1.ConditionStatus {
		var node corev1.Node
		g.Expect(c.Get(ctx, client.ObjectKey{Name: "master-2"}, &node)).To(Succeed())
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status
			}
		}
		return ""
	}
	running := func() bool { host, _ := s.Host("master-2"); return host.Etcd != nil }
	g.Expect(s.Power("master-2", false)).To(Succeed())
	g.Eventually(running).Should(BeFalse())
	g.Eventually(ready).Should(Equal(corev1.ConditionUnknown))
	g.Expect(s.Power("master-2", true)).To(Succeed())
	g.Eventually(running).Should(BeTrue())
	g.Eventually(ready).Should(Equal(corev1.ConditionTrue))

	g.Expect(c.Delete(ctx, &machines.Items[1])).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(&machines.Items[1]), &machinev1beta1.Machine{}))
	}).Should(BeTrue())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKey{Name: "master-1"}, &corev1.Node{}))
	}).Should(BeTrue())
	_, there := s.Host("master-1")
	g.Expect(there).To(BeFalse())

	// A process that ends unasked is reported, with its log.
	g.Expect(s.MachineAPI.Process().Signal(os.Kill)).To(Succeed())
	g.Eventually(s.Failed()).Should(Receive(MatchError(And(
		ContainSubstring("machine-api"), ContainSubstring(filepath.Join(s.Logs, "machine-api.log"))))))

	g.Expect(s.Stop()).To(Succeed())
	_, err = os.Stat(filepath.Join(s.Dir, "env"))
	g.Expect(errors.Is(err, fs.ErrNotExist)).To(BeTrue())
}

// TestSideBySide: two sandboxes do not meet, and a directory has one at most.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	one := sandboxtest.Start(t, sandbox.Options{Replicas: 1, WithoutHoldfast: true})
	other := sandboxtest.Start(t, sandbox.Options{Replicas: 1, WithoutHoldfast: true})
	if one.Server() == other.Server() || one.Endpoints()[0] == other.Endpoints()[0] {
		t.Fatal("they share an address")
	}
	_, err := sandbox.Start(t.Context(), sandbox.Options{Dir: one.Dir})
	if err == nil || !strings.Contains(err.Error(), "another sandbox runs in "+one.Dir) {
		t.Fatalf("a second one in the same directory: %v", err)
	}
	for _, s := range []*sandbox.Sandbox{one, other} {
		var nodes corev1.NodeList
		if err := admin(t, s).List(t.Context(), &nodes); err != nil {
			t.Fatal(err)
		}
		if len(nodes.Items) != 1 {
			t.Errorf("%d Nodes in a sandbox of one", len(nodes.Items))
		}
	}
}

func TestForeignDirectoryIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "logs")
	if err := os.WriteFile(precious, []byte("years of work"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := sandbox.Start(t.Context(), sandbox.Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "was not made by a sandbox") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Fatal(err)
	}
}

func TestReplacement(t *testing.T) {
	g := NewWithT(t)
	old := &machinev1beta1.Machine{}
	old.Name, old.Namespace, old.UID, old.ResourceVersion = "master-0", sandbox.MachineNamespace, "uid", "7"
	old.Labels = map[string]string{"machine.openshift.io/cluster-api-machine-role": "master"}
	id := "process:///i-000001"
	old.Spec.ProviderID = &id
	old.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{"instanceType":"m5.large","zone":"a"}`)}
	old.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{{Name: "EtcdQuorumOperator", Owner: "clusteroperator/etcd"}}
	phase := machinev1beta1.PhaseRunning
	old.Status.Phase = &phase

	made, err := sandbox.Replacement(old, "master-3", "m5.2xlarge")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.Name).To(Equal("master-3"))
	g.Expect(made.UID).To(BeEmpty())
	g.Expect(made.ResourceVersion).To(BeEmpty())
	g.Expect(made.Labels).To(Equal(old.Labels))
	g.Expect(made.Spec.ProviderID).To(BeNil())
	g.Expect(made.Spec.LifecycleHooks).To(Equal(old.Spec.LifecycleHooks), "people copy hooks too")
	g.Expect(string(made.Spec.ProviderSpec.Value.Raw)).To(MatchJSON(`{"instanceType":"m5.2xlarge","zone":"a"}`))
	g.Expect(made.Status).To(Equal(machinev1beta1.MachineStatus{}))
	g.Expect(old.Name).To(Equal("master-0"), "the old one is untouched")
}
