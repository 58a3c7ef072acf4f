package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	// soon bounds one step of a Machine's life; none may wait for the library's 30 s.
	soon = 25 * time.Second
	// settle is for how long nothing may happen to a Machine that is held.
	settle = 1500 * time.Millisecond
	poll   = 20 * time.Millisecond
)

// asMain makes the test's binary be machine-api itself.
const asMain = "HOLDFAST_TEST_MACHINE_API"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestMachineLife runs the controllers against a real API server: Machines live,
// are held by their hooks and go.
func TestMachineLife(t *testing.T) {
	c := start(t)

	t.Run("a Machine gets an instance, then a Node, then runs", func(t *testing.T) {
		g := NewWithT(t)
		m := c.create(g, "master-0", providerSpecOf("m5.large"), machinev1beta1.LifecycleHooks{})
		g.Eventually(c.phase(m), 3*soon, poll).Should(Equal(machinev1beta1.PhaseProvisioned), "the controllers start")

		got := c.get(g, m)
		of := c.cloud.instance("master-0")
		g.Expect(ptr.Deref(got.Spec.ProviderID, "")).To(Equal(of.ProviderID))
		g.Expect(got.Status.Addresses).To(ConsistOf(
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: of.Address},
			corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: "master-0"},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: "master-0"},
		))
		g.Expect(got.Finalizers).To(ContainElement(machinev1beta1.MachineFinalizer))
		g.Expect(got.Labels).To(And(
			HaveKeyWithValue("machine.openshift.io/instance-type", "m5.large"),
			HaveKeyWithValue("machine.openshift.io/zone", "zone-a"),
		))
		g.Expect(parseProviderStatus(got.Status.ProviderStatus)).To(Equal(providerStatus{
			APIVersion: providerAPIVersion, Kind: providerStatusKind, InstanceID: of.ID, InstanceState: "Running",
		}))
		g.Expect(c.cloud.role("master-0")).To(Equal("master"))

		began := time.Now()
		c.join(g, of)
		g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseRunning))
		t.Logf("Node there -> Running: %v", time.Since(began))
		g.Expect(c.get(g, m).Status.NodeRef.Name).To(Equal("master-0"))
	})

	t.Run("a resize is a new Machine with another instance type", func(t *testing.T) {
		g := NewWithT(t)
		began := time.Now()
		m := c.create(g, "master-0-bigger", providerSpecOf("m5.2xlarge"), machinev1beta1.LifecycleHooks{})
		g.Eventually(func() string { return c.get(g, m).Labels["machine.openshift.io/instance-type"] }, soon, poll).
			Should(Equal("m5.2xlarge"))
		g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseProvisioned))
		t.Logf("created -> Provisioned: %v", time.Since(began))
		version := c.get(g, m).ResourceVersion
		g.Consistently(func() string { return c.get(g, m).ResourceVersion }, settle, poll).
			Should(Equal(version), "a Machine that waits for its Node is looked at, but not written")
	})

	t.Run("hooks hold a deleting Machine until they are gone", func(t *testing.T) {
		g := NewWithT(t)
		m := c.running(g, "master-1", machinev1beta1.LifecycleHooks{
			PreDrain:     []machinev1beta1.LifecycleHook{{Name: "EtcdQuorumOperator", Owner: "clusteroperator/etcd"}},
			PreTerminate: []machinev1beta1.LifecycleHook{{Name: "EtcdQuorumLatch", Owner: "holdfast"}},
		})
		g.Expect(c.Delete(c.ctx, m)).To(Succeed())
		g.Eventually(c.condition(m, machinev1beta1.MachineDrainable), soon, poll).Should(Equal(corev1.ConditionFalse))
		g.Consistently(c.held(m), settle, poll).Should(Equal("Running, not drained"))

		began := time.Now()
		c.edit(g, m, func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks.PreDrain = nil })
		g.Eventually(c.held(m), soon, poll).Should(Equal("Running, drained"))
		t.Logf("preDrain hook gone -> drained: %v", time.Since(began))
		g.Consistently(c.held(m), settle, poll).Should(Equal("Running, drained"))

		began = time.Now()
		c.edit(g, m, func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks.PreTerminate = nil })
		g.Eventually(c.held(m), soon, poll).Should(Equal("Terminating, drained"))
		t.Logf("preTerminate hook gone -> instance terminating: %v", time.Since(began))
		g.Consistently(c.held(m), settle, poll).Should(Equal("Terminating, drained"), "the instance is not gone yet")

		began = time.Now()
		c.cloud.bury("master-1")
		g.Eventually(c.missing(m), soon, poll).Should(BeTrue())
		t.Logf("instance gone -> Machine gone: %v", time.Since(began))
		g.Eventually(c.missing(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "master-1"}}), soon, poll).Should(BeTrue())
	})

	t.Run("a host that is installed again under its old name is linked again", func(t *testing.T) {
		g := NewWithT(t)
		c.join(g, c.cloud.make("master-1", "m5.large", "master"))
		m := c.create(g, "master-1", providerSpecOf("m5.large"), machinev1beta1.LifecycleHooks{})
		g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseRunning))
	})

	t.Run("an invalid providerSpec fails the Machine, which can be deleted", func(t *testing.T) {
		g := NewWithT(t)
		m := c.create(g, "master-typo", `{"apiVersion":"process.holdfast.dev/v1","kind":"ProcessMachineProviderSpec"}`, machinev1beta1.LifecycleHooks{})
		g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseFailed))
		got := c.get(g, m)
		g.Expect(got.Status.ErrorReason).To(HaveValue(Equal(machinev1beta1.InvalidConfigurationMachineError)))
		g.Expect(got.Status.ErrorMessage).To(HaveValue(ContainSubstring("instanceType must be set")))
		g.Expect(c.Delete(c.ctx, m)).To(Succeed())
		g.Eventually(c.missing(m), soon, poll).Should(BeTrue())
	})

	t.Run("a cloud that is full delays a Machine only", func(t *testing.T) {
		g := NewWithT(t)
		c.cloud.setFull(true)
		m := c.create(g, "master-late", providerSpecOf("m5.large"), machinev1beta1.LifecycleHooks{})
		g.Eventually(c.cloud.refusals, soon, poll).Should(BeNumerically(">", 12), "it is asked at least twice a second")
		g.Expect(c.phase(m)()).To(Equal(machinev1beta1.PhaseProvisioning))
		c.cloud.setFull(false)
		g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseProvisioned))
	})

	t.Run("an instance that ended by itself fails its Machine", func(t *testing.T) {
		g := NewWithT(t)
		m := c.running(g, "master-2", machinev1beta1.LifecycleHooks{})
		c.cloud.bury("master-2")
		c.edit(g, m, func(m *machinev1beta1.Machine) { setEntry(&m.Annotations, "test", "look again") })
		g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseFailed))
	})

	t.Run("a MachineHealthCheck is looked at", func(t *testing.T) {
		g := NewWithT(t)
		check := &machinev1beta1.MachineHealthCheck{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "masters"},
			Spec: machinev1beta1.MachineHealthCheckSpec{
				Selector: metav1.LabelSelector{MatchLabels: map[string]string{roleLabel: "master"}},
				UnhealthyConditions: []machinev1beta1.UnhealthyCondition{{
					Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Timeout: metav1.Duration{Duration: time.Hour},
				}},
			},
		}
		g.Expect(c.Create(c.ctx, check)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(c.Get(c.ctx, client.ObjectKeyFromObject(check), check)).To(Succeed())
			g.Expect(check.Status.ExpectedMachines).To(HaveValue(Equal(5)))
			g.Expect(check.Status.CurrentHealthy).To(HaveValue(Equal(2)), "master-0 and master-1, which have Nodes")
		}, soon, poll).Should(Succeed())
	})

	// Why a Machine's status needs a guard of its own.
	t.Run("a status that names another's instance has that one terminated", func(t *testing.T) {
		g := NewWithT(t)
		m := c.create(g, "worker", providerSpecOf("m5.large"), machinev1beta1.LifecycleHooks{})
		g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseProvisioned))
		got := c.get(g, m)
		before := client.MergeFrom(got.DeepCopy())
		got.Status.ProviderStatus = c.get(g, &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "master-0",
		}}).Status.ProviderStatus
		g.Expect(c.Status().Patch(c.ctx, got, before)).To(Succeed())
		g.Expect(c.Delete(c.ctx, m)).To(Succeed())
		g.Eventually(func() string { return c.cloud.instance("master-0").State }, soon, poll).Should(Equal("Terminating"))
		g.Expect(c.cloud.instance("worker").State).To(Equal("Running"))
	})
}

// cluster is an API server with the controllers at work on it.
type cluster struct {
	client.Client
	ctx   context.Context
	cloud *fakeCloud
}

// start runs etcd, kube-apiserver, a cloud and the controllers until the test ends.
func start(t *testing.T) *cluster {
	g := NewWithT(t)
	ctrl.SetLogger(klog.NewKlogr())
	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(machinev1beta1.Install(scheme)).To(Succeed())

	env := &envtest.Environment{
		BinaryAssetsDirectory: binaries(t),
		CRDInstallOptions:     envtest.CRDInstallOptions{Paths: crds(t)},

		ControlPlaneStartTimeout: 2 * time.Minute, // on a busy computer 20 s are short
	}
	config, err := env.Start()
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})
	g.Expect(err).NotTo(HaveOccurred(), "starting the API server")

	c := &cluster{ctx: t.Context(), cloud: startCloud(t)}
	c.Client, err = client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())

	user, err := env.AddUser(envtest.User{Name: "machine-api", Groups: []string{"system:masters"}}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig, err := user.KubeConfig()
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(file, kubeconfig, 0o600)).To(Succeed())
	c.startControllers(t, "--kubeconfig="+file, "--cloud-socket="+c.cloud.socket, "--resync=10m")
	return c
}

// startControllers runs machine-api until the test ends, which it has to do
// without an error on SIGTERM. A resync is out of the way: it would hide that
// something else has to make the controllers quick.
func (c *cluster) startControllers(t *testing.T, args ...string) {
	var log bytes.Buffer // written by the process's copier until Wait returns
	process := exec.Command(os.Args[0], args...)
	process.Env = append(os.Environ(), asMain+"=1")
	process.Stdout, process.Stderr = &log, &log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		began := time.Now()
		_ = process.Process.Signal(syscall.SIGTERM) // gone already: Wait tells
		deadline := time.AfterFunc(soon, func() { _ = process.Process.Kill() })
		defer deadline.Stop()
		if err := process.Wait(); err != nil {
			t.Errorf("machine-api: %v", err)
		}
		t.Logf("SIGTERM -> ended: %v", time.Since(began))
		if t.Failed() {
			t.Logf("machine-api wrote:\n%s", &log)
		}
	})
}

// binaries is the directory of kube-apiserver and etcd.
func binaries(t *testing.T) string {
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		var err error
		if dir, err = filepath.Abs("../../bin"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Fatalf("%s is not in %s: run `make bin/%s` in the repository, or set KUBEBUILDER_ASSETS to a directory that has it",
				name, dir, name)
		}
	}
	return dir
}

// crds are the files of the Machine API's CRDs in the version of the main
// module: the controllers here are older, and must work with those.
func crds(t *testing.T) []string {
	list := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/openshift/api")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("finding github.com/openshift/api of the main module: %v", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "machine/v1beta1/zz_generated.crd-manifests")
	return []string{
		filepath.Join(dir, "0000_10_machine-api_01_machines-Default.crd.yaml"),
		filepath.Join(dir, "0000_10_machine-api_01_machinehealthchecks.crd.yaml"),
	}
}

func providerSpecOf(instanceType string) string {
	return fmt.Sprintf(`{"apiVersion":"process.holdfast.dev/v1","kind":"ProcessMachineProviderSpec","instanceType":%q}`, instanceType)
}

func (c *cluster) create(g Gomega, name, spec string, hooks machinev1beta1.LifecycleHooks) *machinev1beta1.Machine {
	m := &machinev1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{machinev1beta1.MachineClusterIDLabel: "sandbox", roleLabel: "master"},
		},
		Spec: machinev1beta1.MachineSpec{
			LifecycleHooks: hooks,
			ProviderSpec:   machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{Raw: []byte(spec)}},
		},
	}
	g.Expect(c.Create(c.ctx, m)).To(Succeed())
	return m
}

// running creates a Machine and its Node and waits until it runs.
func (c *cluster) running(g Gomega, name string, hooks machinev1beta1.LifecycleHooks) *machinev1beta1.Machine {
	m := c.create(g, name, providerSpecOf("m5.large"), hooks)
	g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseProvisioned))
	c.join(g, c.cloud.instance(name))
	g.Eventually(c.phase(m), soon, poll).Should(Equal(machinev1beta1.PhaseRunning))
	return m
}

// join registers the instance's Node, ready, as its kubelet would.
func (c *cluster) join(g Gomega, of instance) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: of.Name, Labels: map[string]string{"node-role.kubernetes.io/master": ""}},
		Spec:       corev1.NodeSpec{ProviderID: of.ProviderID},
	}
	g.Expect(c.Create(c.ctx, node)).To(Succeed())
	ready := client.MergeFrom(node.DeepCopy())
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	g.Expect(c.Status().Patch(c.ctx, node, ready)).To(Succeed())
}

func (c *cluster) get(g Gomega, m *machinev1beta1.Machine) *machinev1beta1.Machine {
	got := &machinev1beta1.Machine{}
	g.Expect(c.Get(c.ctx, client.ObjectKeyFromObject(m), got)).To(Succeed())
	return got
}

func (c *cluster) edit(g Gomega, m *machinev1beta1.Machine, change func(*machinev1beta1.Machine)) {
	got := c.get(g, m)
	before := client.MergeFrom(got.DeepCopy())
	change(got)
	g.Expect(c.Patch(c.ctx, got, before)).To(Succeed())
}

func (c *cluster) phase(m *machinev1beta1.Machine) func() string {
	return func() string {
		got := &machinev1beta1.Machine{}
		if err := c.Get(c.ctx, client.ObjectKeyFromObject(m), got); err != nil {
			return err.Error()
		}
		return ptr.Deref(got.Status.Phase, "")
	}
}

func (c *cluster) condition(m *machinev1beta1.Machine, kind machinev1beta1.ConditionType) func() corev1.ConditionStatus {
	return func() corev1.ConditionStatus {
		got := &machinev1beta1.Machine{}
		if err := c.Get(c.ctx, client.ObjectKeyFromObject(m), got); err != nil {
			return corev1.ConditionStatus(err.Error())
		}
		for _, condition := range got.Status.Conditions {
			if condition.Type == kind {
				return condition.Status
			}
		}
		return ""
	}
}

// held tells how far the end of a Machine has come.
func (c *cluster) held(m *machinev1beta1.Machine) func() string {
	drained := c.condition(m, machinev1beta1.MachineDrained)
	return func() string {
		switch status := drained(); status {
		case corev1.ConditionTrue:
			return c.cloud.instance(m.Name).State + ", drained"
		case corev1.ConditionFalse, "":
			return c.cloud.instance(m.Name).State + ", not drained"
		default:
			return string(status)
		}
	}
}

func (c *cluster) missing(object client.Object) func() bool {
	return func() bool {
		return apierrors.IsNotFound(c.Get(c.ctx, client.ObjectKeyFromObject(object), object))
	}
}

// fakeCloud stands for the sandbox's cloud. An instance that is terminated stays
// until it is buried.
type fakeCloud struct {
	socket string

	mu        sync.Mutex
	made      int
	instances map[string]instance
	roles     map[string]string
	full      bool
	refused   int
}

func startCloud(t *testing.T) *fakeCloud {
	// Not t.TempDir, whose name may be too long for a socket's.
	dir, err := os.MkdirTemp("", "cloud")
	if err != nil {
		t.Fatal(err)
	}
	c := &fakeCloud{
		socket:    filepath.Join(dir, "cloud.sock"),
		instances: map[string]instance{}, roles: map[string]string{},
	}
	listener, err := net.Listen("unix", c.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /instances", c.serveList)
	mux.HandleFunc("GET /instances/{name}", c.serveOne)
	mux.HandleFunc("PUT /instances/{name}", c.servePut)
	mux.HandleFunc("DELETE /instances/{name}", c.serveDelete)
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // ends with Close
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return c
}

func (c *fakeCloud) instance(name string) instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances[name]
}

func (c *fakeCloud) role(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.roles[name]
}

func (c *fakeCloud) bury(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, name)
}

// make is idempotent by name.
func (c *fakeCloud) make(name, instanceType, role string) instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.instances[name]; !there {
		id := fmt.Sprintf("i-%d", c.made)
		c.instances[name] = instance{
			Name: name, ID: id, Type: instanceType, State: "Running", ProviderID: "process:///" + id,
			Address: fmt.Sprintf("127.0.0.%d", 10+c.made), Zone: "zone-" + string(rune('a'+c.made%3)),
		}
		c.roles[name] = role
		c.made++
	}
	return c.instances[name]
}

// setFull makes the cloud refuse new instances, or no longer.
func (c *fakeCloud) setFull(full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = full
}

func (c *fakeCloud) refuses() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full {
		c.refused++
	}
	return c.full
}

func (c *fakeCloud) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

func (c *fakeCloud) serveList(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []instance{}
	for _, one := range c.instances {
		all = append(all, one)
	}
	_ = json.NewEncoder(w).Encode(all)
}

func (c *fakeCloud) serveOne(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer(w, r, http.StatusOK)
}

func (c *fakeCloud) servePut(w http.ResponseWriter, r *http.Request) {
	var want struct{ Type, Role string }
	_ = json.NewDecoder(r.Body).Decode(&want)
	if c.refuses() {
		http.Error(w, "no address left", http.StatusServiceUnavailable)
		return
	}
	c.make(r.PathValue("name"), want.Type, want.Role)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer(w, r, http.StatusCreated)
}

func (c *fakeCloud) serveDelete(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one, there := c.instances[r.PathValue("name")]; there {
		one.State = "Terminating"
		c.instances[one.Name] = one
	}
	c.answer(w, r, http.StatusAccepted)
}

func (c *fakeCloud) answer(w http.ResponseWriter, r *http.Request, status int) {
	one, there := c.instances[r.PathValue("name")]
	if !there {
		http.NotFound(w, r)
		return
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(one)
}
