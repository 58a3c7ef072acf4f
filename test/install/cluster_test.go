package install_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/install"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
)

const namespace = "holdfast-system"

// fixture is a sandbox, and the people who install something on it.
type fixture struct {
	*gomega.WithT
	t       *testing.T
	sandbox *sandbox.Sandbox
	admin   client.WithWatch
	alice   client.Client
	late    atomic.Int32 // second deletions that were answered without having read the cluster in time
}

func start(t *testing.T) *fixture {
	t.Helper()
	s := sandboxtest.Start(t, sandbox.Options{ForInstall: true})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("webhook calls that failed:\n%s", failedCalls(filepath.Join(s.Logs, "kube-apiserver.log")))
		}
	})
	f := &fixture{t: t, sandbox: s}
	f.admin, f.alice = f.client(sandbox.Admin), f.client(sandbox.Alice)
	f.on(t)
	return f
}

// failedCalls are the lines of the API server's log about webhooks that it did not reach, or not in time.
func failedCalls(log string) string {
	text, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "ailed calling webhook") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// on has failures of a part be that part's.
func (f *fixture) on(t *testing.T) {
	f.t, f.WithT = t, gomega.NewWithT(t)
	f.SetDefaultEventuallyTimeout(3 * time.Minute)
	f.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
}

// parts runs a test's parts in order, none after one that failed.
func (f *fixture) parts(t *testing.T) func(name string, run func()) {
	return func(name string, run func()) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) { f.on(t); run() }) {
			t.FailNow()
		}
		f.on(t)
	}
}

func (f *fixture) client(as sandbox.Identity) client.WithWatch {
	f.t.Helper()
	return f.clientWith(as, rest.NoWarnings{})
}

// clientWith is a client whose Warnings go to heard.
func (f *fixture) clientWith(as sandbox.Identity, heard rest.WarningHandler) client.WithWatch {
	f.t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.AddToScheme(scheme)); err != nil {
		f.t.Fatal(err)
	}
	config := f.sandbox.Config(as)
	sandboxtest.Again(config)
	config.WarningHandler = heard
	c, err := client.NewWithWatch(config, client.Options{
		Scheme: scheme,
		// Controller-runtime's own logger prints a stack when nobody has set it.
		Log: funcr.New(func(_, _ string) {}, funcr.Options{}),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// command runs one of the binaries as the administrator, and returns what it printed, both ways.
func (f *fixture) command(name string, stdin []byte, args ...string) (string, error) {
	f.t.Helper()
	path, err := assets.Path(name)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.CommandContext(f.t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.sandbox.Kubeconfig(sandbox.Admin))
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs a command that has to succeed.
func (f *fixture) must(name string, stdin []byte, args ...string) string {
	f.t.Helper()
	out, err := f.command(name, stdin, args...)
	if err != nil {
		f.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// documented does what a page of docs says under a heading: its scripts, by the administrator.
func (f *fixture) documented(page, heading string) {
	f.t.Helper()
	scripts, err := install.Documented(page, heading)
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := f.typed(strings.Join(scripts, "\n"))
	f.t.Log(out)
	if err != nil {
		f.t.Fatalf("%s: %v", heading, err)
	}
}

// typed runs lines as the administrator types them, who has kubectl and the plugin.
func (f *fixture) typed(lines string) (string, error) {
	f.t.Helper()
	kubectl, err := assets.Path("kubectl")
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.CommandContext(f.t.Context(), "bash", "-euc", lines)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.sandbox.Kubeconfig(sandbox.Admin), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// render is what kubectl makes of an overlay of this version with the components given.
func (f *fixture) render(overlay, more string, components ...string) []byte {
	f.t.Helper()
	root, err := assets.Root()
	if err != nil {
		f.t.Fatal(err)
	}
	return f.renderFrom(filepath.Join(root, "deploy"), overlay, more, components...)
}

// renderFrom is what kubectl makes of an overlay in that folder for this sandbox: its etcds have no Service, so the
// addresses of the members are given. more is added to the kustomization's patches.
func (f *fixture) renderFrom(deploy, overlay, more string, components ...string) []byte {
	f.t.Helper()
	// kubectl loads folders by a relative path.
	dir := f.t.TempDir()
	at, err := filepath.Rel(dir, deploy)
	if err != nil {
		f.t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- " + at + "/overlays/" + overlay + "\n"
	for i, c := range components {
		if i == 0 {
			text += "components:\n"
		}
		text += "- " + at + "/components/" + c + "\n"
	}
	text += `patches:
- patch: |-
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: holdfast, namespace: holdfast-system}
    spec:
      template:
        spec:
          containers:
          - name: manager
            env:
            - name: ETCD_ENDPOINTS
              value: ` + strings.Join(f.sandbox.VoterEndpoints(), ",") + "\n" + more
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return []byte(f.must("kubectl", nil, "kustomize", dir))
}

// install applies manifests and waits until the rollout is complete.
func (f *fixture) install(manifests []byte) {
	f.t.Helper()
	f.must("kubectl", manifests, "apply", "-f", "-")
	f.complete()
}

// complete waits until the Deployment is as wanted: all its pods new, and ready.
func (f *fixture) complete() {
	f.t.Helper()
	f.Eventually(func(g gomega.Gomega) {
		var d appsv1.Deployment
		g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: "holdfast"}, &d)).To(gomega.Succeed())
		g.Expect(d.Status.ObservedGeneration).To(gomega.Equal(d.Generation))
		g.Expect(d.Status.Replicas).To(gomega.Equal(*d.Spec.Replicas))
		g.Expect(d.Status.UpdatedReplicas).To(gomega.Equal(*d.Spec.Replicas))
		g.Expect(d.Status.AvailableReplicas).To(gomega.Equal(*d.Spec.Replicas))
	}).Should(gomega.Succeed())
}

// pods are the replicas.
func (f *fixture) pods() []corev1.Pod {
	f.t.Helper()
	var pods corev1.PodList
	if err := f.admin.List(f.t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/name": "holdfast"}); err != nil {
		f.t.Fatal(err)
	}
	return pods.Items
}

// podLogs is the end of what each replica said.
func (f *fixture) podLogs() (string, error) {
	logs, err := filepath.Glob(filepath.Join(f.sandbox.Logs, "pod-holdfast-*.log"))
	out := ""
	for _, log := range logs {
		out += process.Tail(log, 5) + "\n"
	}
	return out, err
}

// machine is a Machine as it stands.
func (f *fixture) machine(name string) *machinev1beta1.Machine {
	f.t.Helper()
	m := &machinev1beta1.Machine{}
	if err := f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: name}, m); err != nil {
		f.t.Fatal(err)
	}
	return m
}

// hook does cluster-etcd-operator's part: its hook on each Machine.
func (f *fixture) hook() {
	f.t.Helper()
	operator := f.client(sandbox.EtcdOperator)
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		f.Eventually(func() error {
			m := f.machine(name)
			before := m.DeepCopy()
			m.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{{Name: quorum.HookName, Owner: quorum.HookOwner}}
			return operator.Patch(f.t.Context(), m, client.MergeFrom(before))
		}).Should(gomega.Succeed())
	}
}

// guarded waits until hook and latch are on the Machines.
func (f *fixture) guarded(names ...string) {
	f.t.Helper()
	f.Eventually(func(g gomega.Gomega) {
		for _, name := range names {
			m := machineapi.Machine(f.machine(name))
			g.Expect(m.Hook).To(gomega.Equal(quorum.EntryOurs), name)
			g.Expect(m.Latch).To(gomega.Equal(quorum.EntryOurs), name)
		}
	}).Should(gomega.Succeed())
}

// objects parses a YAML text.
func objects(t *testing.T, text []byte) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
}
