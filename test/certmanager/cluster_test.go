package certmanager

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
)

const namespace = "holdfast-system"

// fixture is a sandbox with cert-manager, and the people who install something on it.
type fixture struct {
	*gomega.WithT
	t       *testing.T
	sandbox *sandbox.Sandbox
	admin   client.Client
	alice   client.Client
	gitops  client.Client

	inject, stopInjector func() // start and stop the CA injector
}

func start(t *testing.T) *fixture {
	t.Helper()
	s := sandboxtest.Start(t, sandbox.Options{ForInstall: true})
	f := &fixture{t: t, sandbox: s}
	quiet := rest.NoWarnings{}
	f.admin, f.alice, f.gitops = f.client(sandbox.Admin, quiet), f.client(sandbox.Alice, quiet), f.client(sandbox.GitOps, quiet)
	f.on(t)
	return f
}

// on has failures of a part be that part's.
func (f *fixture) on(t *testing.T) {
	f.t, f.WithT = t, gomega.NewWithT(t)
	f.SetDefaultEventuallyTimeout(3 * time.Minute)
	f.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
}

// client is one of an identity's. Its Warnings go to heard.
func (f *fixture) client(as sandbox.Identity, heard rest.WarningHandler) client.Client {
	f.t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.AddToScheme(scheme), cmapi.AddToScheme(scheme)); err != nil {
		f.t.Fatal(err)
	}
	config := f.sandbox.Config(as)
	config.WarningHandler = heard
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// certManager installs cert-manager's CRDs, and runs its controllers and its CA injector until the test is over.
func (f *fixture) certManager() {
	f.t.Helper()
	out, err := exec.CommandContext(f.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager").Output()
	f.Expect(err).NotTo(gomega.HaveOccurred())
	crds := filepath.Join(strings.TrimSpace(string(out)), "deploy", "crds")
	f.kubectl(nil, "apply", "--server-side", "-f", crds)
	f.kubectl(nil, "wait", "--for=condition=Established", "--timeout=60s", "-f", crds)

	file, err := os.Create(filepath.Join(f.sandbox.Logs, "cert-manager.log"))
	f.Expect(err).NotTo(gomega.HaveOccurred())
	log := logr.FromSlogHandler(slog.NewTextHandler(file, nil))
	ctrl.SetLogger(log) // the injector's
	klog.SetLogger(log) // Kubernetes' libraries'
	t, kubeconfig := f.t, f.sandbox.Kubeconfig(sandbox.Admin)
	background(t, func(ctx context.Context) error { return Controllers(ctx, kubeconfig, log) })
	f.inject = func() {
		f.stopInjector = background(t, func(ctx context.Context) error { return Injector(ctx, kubeconfig, log) })
	}
	f.inject()
}

// background runs something until it is stopped, which waits, or the test is over.
func background(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// kubectl runs it as the administrator. It has to succeed.
func (f *fixture) kubectl(stdin []byte, args ...string) string {
	f.t.Helper()
	out, err := f.try(stdin, args...)
	if err != nil {
		f.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// try returns what kubectl printed, both ways.
func (f *fixture) try(stdin []byte, args ...string) (string, error) {
	f.t.Helper()
	path, err := assets.Path("kubectl")
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.CommandContext(f.t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.sandbox.Kubeconfig(sandbox.Admin))
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// render is what kubectl makes of an overlay. The sandbox's etcds have no Service, so the members' addresses
// are given.
func (f *fixture) render(overlay string) []byte {
	f.t.Helper()
	root, err := assets.Root()
	f.Expect(err).NotTo(gomega.HaveOccurred())
	dir := f.t.TempDir()
	at, err := filepath.Rel(dir, filepath.Join(root, "deploy", "overlays", overlay)) // kubectl takes no other path
	f.Expect(err).NotTo(gomega.HaveOccurred())
	text := `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [` + at + `]
patches:
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
              value: ` + strings.Join(f.sandbox.VoterEndpoints(), ",") + "\n"
	f.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)).To(gomega.Succeed())
	return []byte(f.kubectl(nil, "kustomize", dir))
}

// apply applies manifests and waits until the rollout is complete.
func (f *fixture) apply(manifests []byte) {
	f.t.Helper()
	f.kubectl(manifests, "apply", "-f", "-")
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
	}).WithTimeout(2 * time.Minute).Should(gomega.Succeed())
}

// pods are the replicas.
func (f *fixture) pods() []corev1.Pod {
	f.t.Helper()
	var pods corev1.PodList
	f.Expect(f.admin.List(f.t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/name": "holdfast"})).To(gomega.Succeed())
	return pods.Items
}

func (f *fixture) machine(name string) *machinev1beta1.Machine {
	f.t.Helper()
	m := &machinev1beta1.Machine{}
	f.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: name}, m)).To(gomega.Succeed())
	return m
}

// hook does cluster-etcd-operator's part, and waits for the latches.
func (f *fixture) hook() {
	f.t.Helper()
	operator := f.client(sandbox.EtcdOperator, rest.NoWarnings{})
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		f.Eventually(func() error {
			m := f.machine(name)
			before := m.DeepCopy()
			m.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{{Name: quorum.HookName, Owner: quorum.HookOwner}}
			return operator.Patch(f.t.Context(), m, client.MergeFrom(before))
		}).Should(gomega.Succeed())
		f.Eventually(func() bool { return machineapi.Machine(f.machine(name)).Latch == quorum.EntryOurs }).Should(gomega.BeTrue(), name)
	}
}
