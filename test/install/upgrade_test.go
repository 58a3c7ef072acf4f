package install_test

import (
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// version is one of two that are installed in turn.
type version struct {
	holdfast, plugin string // binaries, in bin
	automation       string // of --automation-users, so that the registrations of the two differ
	manifests        []byte
}

// TestUpgrade upgrades an installation under load and goes back, applies the other overlays, and loses a replica.
func TestUpgrade(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	f := start(t)
	f.hook()
	earlier, later, rounds := f.versions()
	part := f.parts(t)
	part("guard mode", func() { f.install(earlier.manifests); f.guards(); f.as(earlier, later) })
	f.rollouts(part, earlier, later, rounds)
	part("the other overlays", f.others)
	part("loss of a replica under load", f.loss)
}

// rollouts goes from the earlier version to this one and back under load, as often as rounds says, by parts of the
// test's. What either wrote is used by the other, and nothing changes that neither has a reason to change.
func (f *fixture) rollouts(part func(string, func()), earlier, later version, rounds int) {
	f.t.Helper()
	up, down, stays := f.requests("master-0"), f.requests("master-0"), f.stays()
	if earlier.holdfast != later.holdfast {
		down[secondDeletion] = f.heldOrRefused
	}
	for range rounds {
		part("upgrade under load", func() { f.rollout(up, later.manifests); f.as(later, earlier) })
		part("downgrade under load", func() { f.rollout(down, earlier.manifests); f.as(earlier, later) })
	}
	if diff := cmp.Diff(stays, f.stays()); diff != "" {
		f.t.Errorf("what was to stay has changed:\n%s", diff)
	}
}

// versions are the earlier and this one, and how often to go from one to the other. In make upgrade, the earlier is
// the one in HOLDFAST_FROM, as test/install/from.sh puts it there: another binary, another overlay. Without that it is
// this one with other flags.
func (f *fixture) versions() (earlier, later version, rounds int) {
	f.t.Helper()
	later = version{holdfast: "holdfast", plugin: "kubectl-holdfast"}
	later.manifests = f.render("self-signed", later.patch())
	earlier = later
	earlier.automation = "robots"
	from := os.Getenv("HOLDFAST_FROM")
	if from == "" {
		earlier.manifests = f.render("self-signed", earlier.patch())
		return earlier, later, 1
	}
	root, err := assets.Root()
	f.Expect(err).NotTo(gomega.HaveOccurred())
	at, err := filepath.Rel(filepath.Join(root, "bin"), from)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	f.Expect(filepath.IsLocal(at)).To(gomega.BeTrue(), "HOLDFAST_FROM=%s is not below bin", from)
	earlier.holdfast, earlier.plugin = filepath.Join(at, "holdfast"), filepath.Join(at, "kubectl-holdfast")
	earlier.manifests = f.renderFrom(filepath.Join(from, "deploy"), "self-signed", earlier.patch())
	return earlier, later, 2
}

// patch has the Deployment run that version with its flags: the sandbox's hosts run what the command names.
func (v version) patch() string {
	out := `- target: {kind: Deployment, name: holdfast}
  patch: |-
    - op: replace
      path: /spec/template/spec/containers/0/command
      value: [` + v.holdfast + "]\n"
	if v.automation != "" {
		out += `    - op: add
      path: /spec/template/spec/containers/0/args/-
      value: --automation-users=` + v.automation + "\n"
	}
	return out
}

// as waits until the registrations and policies are that version's own, enforced, and looks whether all else is
// well, and whether its plugin can read it, and the other version's can or says why not.
func (f *fixture) as(v, other version) {
	f.t.Helper()
	ctx := f.t.Context()
	f.Eventually(func(g gomega.Gomega) {
		validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		g.Expect(f.admin.Get(ctx, client.ObjectKey{Name: registrations.Name}, validating)).To(gomega.Succeed())
		g.Expect(validating.Webhooks).NotTo(gomega.BeEmpty())
		ca := filepath.Join(f.t.TempDir(), "ca.crt")
		g.Expect(os.WriteFile(ca, validating.Webhooks[0].ClientConfig.CABundle, 0o600)).To(gomega.Succeed())
		want, err := f.command(v.holdfast, nil, "manifests", "--webhook-service=holdfast-system/holdfast-webhook:9443", "--webhook-ca-file="+ca, "--automation-users="+v.automation)
		g.Expect(err).NotTo(gomega.HaveOccurred(), want)
		for _, o := range objects(f.t, []byte(want)) {
			live := o.DeepCopy()
			g.Expect(f.admin.Get(ctx, client.ObjectKeyFromObject(o), live)).To(gomega.Succeed())
			o.SetResourceVersion(live.GetResourceVersion())
			g.Expect(f.admin.Update(ctx, o, client.DryRunAll)).To(gomega.Succeed()) // the API server fills in its defaults
			g.Expect(decided(live)).To(gomega.Equal(decided(o)), o.GetKind())
		}
	}).Should(gomega.Succeed())
	for _, pod := range f.pods() {
		f.Expect(pod.Spec.Containers[0].Command).To(gomega.Equal([]string{v.holdfast}))
		f.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(gomega.BeZero(), pod.Name)
	}
	reads := gomega.And(gomega.ContainSubstring("as Holdfast saw it"), gomega.ContainSubstring("3 of 3 voters healthy"))
	f.Eventually(func() string { return f.must(v.plugin, nil, "status") }).Should(reads, v.plugin)
	f.Eventually(func() string { return f.must(other.plugin, nil, "status") }).
		Should(gomega.Or(reads, gomega.ContainSubstring("of this plugin's version")), other.plugin) // it may have fields that the other does not know
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		f.Expect(intact(f.machine(name))).To(gomega.Succeed(), name)
	}
}

// decided is what Holdfast decides about a registration or a policy, without the token in a webhook's path.
func decided(u *unstructured.Unstructured) map[string]any {
	webhooks, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
	for _, w := range webhooks {
		called := w.(map[string]any)["clientConfig"].(map[string]any)["service"].(map[string]any)
		called["path"] = path.Base(called["path"].(string))
	}
	if len(webhooks) > 0 {
		u.Object["webhooks"] = webhooks
	}
	return map[string]any{"webhooks": u.Object["webhooks"], "spec": u.Object["spec"]}
}

// stays is what no version has a reason to change here: the webhooks' CA, and what each Machine says of its member.
func (f *fixture) stays() map[string]string {
	f.t.Helper()
	var ca corev1.Secret
	f.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: "holdfast-webhook-ca"}, &ca)).To(gomega.Succeed())
	out := map[string]string{"the CA": string(ca.UID) + "\n" + string(ca.Data[corev1.TLSCertKey])}
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		out[name] = f.machine(name).Annotations[quorum.EvidenceAnnotation]
	}
	return out
}
