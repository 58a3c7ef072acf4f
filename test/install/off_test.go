package install_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/install"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestOff switches Holdfast off and on again, by the command and by the lines of docs/incidents.md: while a tool scales it up again, with pods that answer
// their last requests, with its namespace deleted, with a pod on a dead host, and with a Machine that its latch alone holds.
func TestOff(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	f := start(t)
	f.hook()
	part := f.parts(t)
	lines, err := install.Documented("incidents.md", "Switch Holdfast off")
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.Expect(lines).To(gomega.HaveLen(4))
	command, byHand, policies, on := lines[0], lines[1], lines[2], lines[3]
	command = strings.ReplaceAll(command, "kubectl holdfast off", "kubectl holdfast off --yes")

	guard := f.render("self-signed", "")
	part("guard mode", func() {
		f.install(guard)
		f.guarded("master-0", "master-1", "master-2")
		f.enforced()
		f.must("kubectl", nil, "delete", "machine", "master-0", "--wait=false", "-n", sandbox.MachineNamespace)
	})
	part("a GitOps tool scales it up again", func() {
		stop := f.syncs()
		out, err := f.typed(command)
		stop()
		f.Expect(err).To(gomega.HaveOccurred())
		f.Expect(out).To(gomega.ContainSubstring("argocd-controller scaled Deployment holdfast-system/holdfast up to 2 again. Stop that first: argocd app set guard --sync-policy none"))
		f.complete()
		f.enforced()
	})
	part("off and on by the command", func() {
		f.switchOff(command)
		f.switchOn(on)
	})
	part("off and on by hand", func() {
		f.switchOff(byHand)
		f.switchOn(on)
	})
	part("its namespace is deleted", func() {
		f.must("kubectl", nil, "delete", "namespace", namespace)
		out, err := f.command("kubectl-holdfast", nil, "check")
		f.Expect(err).To(gomega.HaveOccurred())
		f.Expect(out).To(gomega.And(gomega.ContainSubstring("ok    registrations"), gomega.ContainSubstring("ok    policies"), gomega.ContainSubstring("WRONG reached")))
		f.held()
		out, err = f.command("kubectl", nil, "patch", "machine", "master-1", "--type=merge", "-p", `{"spec":{"lifecycleHooks":null}}`, "-n", sandbox.MachineNamespace)
		f.Expect(err).To(gomega.HaveOccurred())
		f.Expect(out).To(gomega.ContainSubstring("ValidatingAdmissionPolicy"))
		lines, err := install.Documented("incidents.md", "Namespace holdfast-system was deleted")
		f.Expect(err).NotTo(gomega.HaveOccurred())
		_, check, _ := strings.Cut(lines[0], "\n") // after the manifests are applied
		f.install(guard)
		f.switchOn(check)
	})
	part("with a pod on a dead host", func() {
		node := f.pods()[0].Spec.NodeName
		f.Expect(f.sandbox.Power(node, false)).To(gomega.Succeed())
		f.Eventually(func(g gomega.Gomega) {
			var n corev1.Node
			g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Name: node}, &n)).To(gomega.Succeed())
			for _, c := range n.Status.Conditions {
				g.Expect(c.Type != corev1.NodeReady || c.Status != corev1.ConditionTrue).To(gomega.BeTrue())
			}
		}).Should(gomega.Succeed())
		out, err := f.typed(command)
		f.t.Log(out)
		f.Expect(err).NotTo(gomega.HaveOccurred())
		f.Expect(out).To(gomega.ContainSubstring("is not waited for: its Node " + node + " is not ready"))
		f.unregistered()
		f.Expect(f.sandbox.Power(node, true)).To(gomega.Succeed())
		f.switchOn(on)
	})
	part("a latch that holds alone", func() {
		out, err := f.typed(command)
		f.Expect(err).NotTo(gomega.HaveOccurred(), out)
		f.Expect(f.client(sandbox.EtcdOperator).Patch(f.t.Context(), f.machine("master-0"), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`)))).To(gomega.Succeed())
		var let string
		for line := range strings.Lines(out) {
			if strings.Contains(line, "patch machine.machine.openshift.io master-0") {
				let = line
			}
		}
		out, err = f.typed(let)
		f.Expect(err).To(gomega.HaveOccurred(), "the policies are in force: %s", out)
		_, err = f.typed(policies)
		f.Expect(err).NotTo(gomega.HaveOccurred())
		f.Eventually(func() error { _, err := f.typed(let); return err }).Should(gomega.Succeed())
		f.Eventually(func() error {
			return f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: "master-0"}, &machinev1beta1.Machine{})
		}).Should(gomega.Satisfy(apierrors.IsNotFound))
		f.switchOn(on)
	})
}

// switchOff types the lines while requests come, and looks that what is held stays held, and all else passes.
func (f *fixture) switchOff(script string) {
	f.t.Helper()
	out, err := f.typed(script)
	f.t.Log(out)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.Expect(f.pods()).To(gomega.BeEmpty())
	f.unregistered()
	f.held()
	f.must("kubectl", nil, "delete", "machine", "master-1", "--wait=false", "--dry-run=server", "-n", sandbox.MachineNamespace)
}

// held looks that the Machine that is being deleted is.
func (f *fixture) held() {
	f.t.Helper()
	m := machineapi.Machine(f.machine("master-0"))
	f.Expect(m.Deleting() && m.Hook == quorum.EntryOurs && m.Latch == quorum.EntryOurs).To(gomega.BeTrue())
}

// switchOn types the lines that switch it on again.
func (f *fixture) switchOn(script string) {
	f.t.Helper()
	out, err := f.typed(script)
	f.t.Log(out)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.complete()
	f.enforced()
	_, err = f.command("kubectl", nil, "delete", "machine", "master-1", "--wait=false", "--dry-run=server", "-n", sandbox.MachineNamespace)
	f.Expect(err).To(gomega.HaveOccurred())
}

// unregistered looks that no registration of Holdfast's is there.
func (f *fixture) unregistered() {
	f.t.Helper()
	key := client.ObjectKey{Name: registrations.Name}
	f.Expect(f.admin.Get(f.t.Context(), key, &admissionregistrationv1.ValidatingWebhookConfiguration{})).To(gomega.Satisfy(apierrors.IsNotFound))
	f.Expect(f.admin.Get(f.t.Context(), key, &admissionregistrationv1.MutatingWebhookConfiguration{})).To(gomega.Satisfy(apierrors.IsNotFound))
}

// syncs has Argo CD's Application guard keep two replicas, until stop is called.
func (f *fixture) syncs() (stop func()) {
	f.t.Helper()
	key := client.ObjectKey{Namespace: namespace, Name: "holdfast"}
	f.must("kubectl", nil, "-n", namespace, "annotate", "deployment", "holdfast", fmt.Sprintf("argocd.argoproj.io/tracking-id=guard:apps/Deployment:%s/holdfast", namespace))
	watched, err := f.admin.Watch(f.t.Context(), &appsv1.DeploymentList{}, client.InNamespace(namespace))
	f.Expect(err).NotTo(gomega.HaveOccurred())
	ctx, cancel := context.WithCancel(f.t.Context())
	var runs sync.WaitGroup
	runs.Go(func() {
		for event := range watched.ResultChan() {
			d, ok := event.Object.(*appsv1.Deployment)
			if !ok || d.Name != key.Name || ptr.Deref(d.Spec.Replicas, 1) == 2 {
				continue
			}
			before := d.DeepCopy()
			d.Spec.Replicas = ptr.To[int32](2)
			if err := f.admin.Patch(ctx, d, client.MergeFrom(before), client.FieldOwner("argocd-controller")); err != nil && ctx.Err() == nil {
				f.t.Error(err)
			}
		}
	})
	return func() {
		watched.Stop()
		cancel()
		runs.Wait()
	}
}
