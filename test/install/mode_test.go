package install_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestMode changes the mode of an installation under load, as docs/install.md says, and back.
func TestMode(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	f := start(t)
	f.hook()
	guard, full := f.render("self-signed", ""), f.render("self-signed", "", "full-mode")
	part := f.parts(t)
	part("guard mode", func() {
		f.install(guard)
		f.guarded("master-0", "master-1", "master-2")
		f.mode("guard")
	})
	part("full mode waits for cluster-etcd-operator to go", func() {
		gone := f.clusterOperator()
		f.rolloutBy(f.requests(""), func() {
			f.must("kubectl", full, "apply", "-f", "-")
			f.refuses("cluster-etcd-operator is here (ClusterOperator etcd)")
			f.mode("guard")
			gone()
			f.complete()
		})
		f.mode("full")
	})
	part("full mode releases", func() {
		f.must("kubectl", nil, "delete", "machine", "master-0", "--wait=false", "-n", sandbox.MachineNamespace)
		f.replace("master-0", "master-3")
	})
	part("full mode leaves etcd's members alone when cluster-etcd-operator comes back", func() {
		status := func() (string, error) { return f.command("kubectl-holdfast", nil, "status") }
		gone := f.clusterOperator()
		f.Eventually(status).Should(gomega.ContainSubstring(string(membership.ReasonEtcdOperatorPresent)))
		gone()
		f.Eventually(status).ShouldNot(gomega.ContainSubstring(string(membership.ReasonEtcdOperatorPresent)))
	})
	var kept map[string]string
	part("guard mode again", func() {
		f.settled(3)
		kept = f.leftovers()
		f.rollout(f.requests(""), guard)
		f.mode("guard")
		f.Expect(f.leftovers()).To(gomega.Equal(kept), "guard mode changed what full mode left")
	})
	part("what full mode left is deleted", func() {
		since := f.logged()
		f.documented("install.md", "Changing the mode")
		f.only(guard, full)
		f.upset()
		f.leads()
		_, forbidden := f.asked(since)
		f.Expect(forbidden).To(gomega.BeEmpty())
	})
	part("guard mode leaves the hook to its owner", f.owner)
	part("it is uninstalled without the plugin", func() {
		f.must("kubectl", nil, "wait", "--for=delete", "machine/master-1", "-n", sandbox.MachineNamespace, "--timeout=60s")
		f.must("kubectl", nil, "label", "machine", "master-2", "holdfast.dev/replaces=uid", "-n", sandbox.MachineNamespace) // as kubectl holdfast replace does
		f.documented("install.md", "Uninstall without the plugin")
		f.nothingLeft("master-2", "master-3")
		f.Expect(f.must("kubectl-holdfast", nil, "uninstall", "--yes")).To(gomega.ContainSubstring("Nothing of Holdfast is on this cluster."))
	})
}

// mode waits until the elected replica tells that mode.
func (f *fixture) mode(mode string) {
	f.t.Helper()
	f.Eventually(func() (string, error) { return f.command("kubectl-holdfast", nil, "status") }).Should(gomega.ContainSubstring("Mode: " + mode))
}

// clusterOperator makes ClusterOperator etcd, which says that cluster-etcd-operator is here, and returns what
// removes it.
func (f *fixture) clusterOperator() (remove func()) {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "config.openshift.io/v1", "kind": "ClusterOperator", "metadata": map[string]any{"name": "etcd"}, "spec": map[string]any{}}}
	f.Expect(f.admin.Create(f.t.Context(), u)).To(gomega.Succeed())
	return func() { f.Expect(f.admin.Delete(f.t.Context(), u)).To(gomega.Succeed()) }
}

// refuses waits until a replica ended with those words, as its pod's log has it.
func (f *fixture) refuses(words string) {
	f.t.Helper()
	f.Eventually(func() (string, error) { return f.podLogs() }).Should(gomega.ContainSubstring(words))
}

// settled waits until full mode keeps the quorum guard for that many Machines, and membership for their Nodes.
func (f *fixture) settled(machines int32) {
	f.t.Helper()
	f.Eventually(func(g gomega.Gomega) {
		var (
			budget     policyv1.PodDisruptionBudget
			pods       corev1.PodList
			membership corev1.ConfigMap
		)
		key := client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: machineapi.GuardName}
		g.Expect(f.admin.Get(f.t.Context(), key, &budget)).To(gomega.Succeed())
		g.Expect(budget.Spec.MinAvailable.IntVal).To(gomega.Equal(machines - 1))
		g.Expect(f.admin.List(f.t.Context(), &pods, client.InNamespace(sandbox.EtcdNamespace), client.MatchingLabels(machineapi.QuorumGuardForm{}.Labels()))).To(gomega.Succeed())
		g.Expect(pods.Items).To(gomega.HaveLen(int(machines)))
		g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: "etcd-membership"}, &membership)).To(gomega.Succeed())
		g.Expect(membership.Data).To(gomega.HaveLen(int(machines)))
	}).Should(gomega.Succeed())
}

// leftovers are the objects that full mode keeps in etcd's namespace and the Machines', by what of them matters.
func (f *fixture) leftovers() map[string]string {
	f.t.Helper()
	out := map[string]string{}
	ctx := f.t.Context()
	get := func(namespace, name string, o client.Object, what func() any) {
		f.Expect(f.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)).To(gomega.Succeed())
		out[fmt.Sprintf("%T %s", o, name)] = fmt.Sprint(o.GetUID(), " ", what())
	}
	budget := &policyv1.PodDisruptionBudget{}
	get(sandbox.EtcdNamespace, machineapi.GuardName, budget, func() any { return budget.Spec.MinAvailable })
	for namespace, names := range map[string][]string{sandbox.EtcdNamespace: {"etcd-membership", "etcd-endpoints"}} {
		for _, name := range names {
			cm := &corev1.ConfigMap{}
			get(namespace, name, cm, func() any { return cm.Data })
		}
	}
	return out
}

// only looks that nothing is left of what the manifests of full mode have and those of guard mode have not, nor of
// the quorum guard; and that all of guard mode's is there.
func (f *fixture) only(guard, full []byte) {
	f.t.Helper()
	ctx := f.t.Context()
	name := func(u *unstructured.Unstructured) string {
		return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
	}
	wanted := map[string]bool{}
	for _, u := range objects(f.t, guard) {
		wanted[name(u)] = true
		f.Expect(f.admin.Get(ctx, client.ObjectKeyFromObject(u), u)).To(gomega.Succeed(), name(u))
	}
	more := 0
	for _, u := range objects(f.t, full) {
		if !wanted[name(u)] {
			more++
			f.Expect(f.admin.Get(ctx, client.ObjectKeyFromObject(u), u)).To(gomega.Satisfy(apierrors.IsNotFound), name(u))
		}
	}
	f.Expect(more).NotTo(gomega.BeZero())
	for _, o := range []client.Object{&policyv1.PodDisruptionBudget{}, &corev1.ServiceAccount{}} {
		f.Expect(f.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: machineapi.GuardName}, o)).To(gomega.Satisfy(apierrors.IsNotFound), "%T", o)
	}
	f.Expect(f.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: hostenv.Name}, &corev1.ConfigMap{})).To(gomega.Satisfy(apierrors.IsNotFound))
}

// owner deletes a Machine in guard mode. Its hook is cluster-etcd-operator's to release, and stays until that has
// removed the member and releases it; the latch goes with it.
func (f *fixture) owner() {
	const name = "master-1"
	ctx, operator := f.t.Context(), f.client(sandbox.EtcdOperator)
	machine := machineapi.Machine(f.machine(name))
	members := machine.OwnEvidence().MemberIDs
	f.Expect(members).To(gomega.HaveLen(1))
	f.must("kubectl", nil, "delete", "machine", name, "--wait=false", "-n", sandbox.MachineNamespace)
	release := func() (*machinev1beta1.Machine, error) {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: name}}
		return m, operator.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`)))
	}
	m, err := release()
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.Expect(intact(m)).To(gomega.Succeed(), "its member votes")

	config := f.sandbox.EtcdConfig
	config.Endpoints = f.sandbox.VoterEndpoints()
	etcd, err := clientv3.New(config)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	defer func() { _ = etcd.Close() }()
	f.Eventually(func() error { // the member may be the one that is asked
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := etcd.MemberRemove(limited, uint64(members[0]))
		return err
	}).Should(gomega.Or(gomega.Succeed(), gomega.MatchError(rpctypes.ErrMemberNotFound)))
	f.Eventually(func() (string, error) { return f.command("kubectl-holdfast", nil, "status") }).Should(gomega.ContainSubstring("2 of 2 voters healthy"))
	f.Consistently(func() error { return intact(f.machine(name)) }).WithTimeout(2*time.Second).Should(gomega.Succeed(), "Holdfast released it in guard mode")

	f.Eventually(func() error {
		m, err := release()
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		if got := machineapi.Machine(m); got.Hook != quorum.EntryAbsent || got.Latch != quorum.EntryAbsent {
			return errors.New("hook or latch is there still")
		}
		return nil
	}).Should(gomega.Succeed())
}
