package main

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
)

// TestPreflight starts the manager against a real API server where it would work against itself, or
// against cluster-etcd-operator.
func TestPreflight(t *testing.T) {
	t.Parallel()
	env := apiserver.Start(t)
	admin, err := env.AddUser(envtest.User{Name: "etcd-keeper", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := admin.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := file(t, "kubeconfig", string(text))

	dir := t.TempDir()
	ca, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	cacert, err := ca.WriteCert(dir)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.IssueFiles(dir, "tls", pki.Leaf{CommonName: "holdfast", Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	endpoints := "https://127.0.0.1:1"
	run := func(more ...string) (int, string) {
		status, _, stderr := typed(t, append([]string{
			"run", "--kubeconfig=" + kubeconfig, "--endpoints=" + endpoints, "--cacert=" + cacert, "--cert=" + cert, "--key=" + key,
			"--webhook-cert-dir=" + filepath.Dir(cert), "--metrics-bind-address=0", "--health-probe-bind-address=0",
		}, more...)...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		return status, lines[len(lines)-1]
	}

	if status, said := run("--custodians=etcd-keeper"); status != 1 || !strings.Contains(said, "machines.machine.openshift.io") {
		t.Errorf("without the Machine API: status %d, %q", status, said)
	}
	crds, err := assets.CRDs(assets.MachineAPI()...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envtest.InstallCRDs(env.Config, envtest.CRDInstallOptions{CRDs: crds}); err != nil {
		t.Fatal(err)
	}
	if status, said := run(); status != 2 || !strings.Contains(said, "etcd-keeper") || !strings.Contains(said, "--custodians") {
		t.Errorf("not a custodian: status %d, %q", status, said)
	}

	c, err := client.New(env.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	testDiscover(t, c, func() (int, string) { return run("--custodians=etcd-keeper") }, &endpoints)
	testSearch(t, c)
	testHostFiles(t, kubeconfig, c)

	testBesideOperator(t, env.Config, c, func(more ...string) (int, string) {
		return run(append(more, "--custodians=etcd-keeper", "--quorum-guard=false")...)
	})
}

// testBesideOperator: full mode does not start where something shows that cluster-etcd-operator runs.
func testBesideOperator(t *testing.T, config *rest.Config, c client.Client, run func(more ...string) (int, string)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(sign string) {
		t.Helper()
		if status, said := run("--mode=full"); status != 2 || !strings.Contains(said, sign) || !strings.Contains(said, "--mode guard") {
			t.Errorf("beside %s: status %d, %q", sign, status, said)
		}
	}
	// With a port that is in use the manager ends right after its preflight.
	passes := func(flags ...string) {
		t.Helper()
		if status, said := run(append(flags, "--health-probe-bind-address=192.0.2.1:1")...); status != 1 || !strings.Contains(said, "192.0.2.1") {
			t.Errorf("%q: status %d, %q", flags, status, said)
		}
	}
	passes("--mode=full")
	operator := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd-operator", Name: "etcd-operator"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "o"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "o"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "o", Image: "o"}}},
			},
		},
	}
	must(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operator.Namespace}}))
	must(c.Create(t.Context(), operator))
	refused("openshift-etcd-operator/etcd-operator")
	passes("--mode=guard")
	passes("--mode=full", "--allow-cluster-etcd-operator")

	crds, err := assets.CRDs(assets.ClusterOperatorCRD)
	must(err)
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{CRDs: crds})
	must(err)
	with, err := client.New(config, client.Options{Scheme: scheme()})
	must(err)
	must(with.Create(t.Context(), &configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: "etcd"}}))
	operator.Spec.Replicas = new(int32(0)) // until the version operator sees it
	must(c.Update(t.Context(), operator))
	refused("openshift-etcd-operator/etcd-operator")
	must(c.Delete(t.Context(), operator))
	refused("ClusterOperator etcd")
}

// testDiscover: without --endpoints etcd is looked for on the control-plane Nodes.
func testDiscover(t *testing.T, c client.Client, run func() (int, string), endpoints *string) {
	t.Helper()
	given := *endpoints
	*endpoints = ""
	defer func() { *endpoints = given }()
	if status, said := run(); status != 2 || !strings.Contains(said, "no control-plane Node") || !strings.Contains(said, "--endpoints") {
		t.Errorf("neither endpoints nor Nodes: status %d, %q", status, said)
	}
	for name, node := range map[string]struct {
		role      string
		addresses []string
	}{
		"master-0": {"control-plane", []string{"10.0.0.1", "fd00::1"}}, "master-1": {"master", []string{"10.0.0.2"}},
		"arbiter-0": {"arbiter", []string{"10.0.0.3"}}, "worker-0": {"worker", []string{"10.0.0.4"}}, "new": {"master", nil},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/" + node.role: ""}}}
		if err := c.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		for _, address := range node.addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		if err := c.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"https://10.0.0.1:2379", "https://10.0.0.2:2379", "https://10.0.0.3:2379", "https://[fd00::1]:2379"}
	if got, err := discover(t.Context(), c); err != nil || !slices.Equal(got, want) {
		t.Errorf("etcd is looked for at %q: %v", got, err)
	}
}

// learned is an etcd client that has not met etcd.
type learned []string

func (l *learned) Learn(urls []string) { *l = urls }
func (*learned) Answered() time.Time   { return time.Time{} }
func (*learned) Restored(context.Context, func(context.Context) (int64, error)) (uint64, error) {
	return 0, nil
}

// testSearch: etcd is looked for wherever somebody wrote down where it is, with the port of the endpoints that were given.
func testSearch(t *testing.T, c client.Client) {
	t.Helper()
	o := &runOptions{endpoints: []string{"https://10.9.9.9:12379"}, electNamespace: "holdfast-system", etcdNamespace: "openshift-etcd"}
	looks := func() []string {
		t.Helper()
		var l learned
		o.search(c, &l, logr.Discard()).once(t.Context())
		return l
	}
	nodes := []string{"https://10.0.0.1:12379", "https://10.0.0.2:12379", "https://10.0.0.3:12379", "https://[fd00::1]:12379"}
	if got := looks(); !slices.Equal(got, nodes) {
		t.Errorf("on Nodes alone it is looked for at %q", got)
	}
	ring := &quorum.Snapshot{Ring: quorum.Ring{Known: true, Members: []quorum.Member{
		{ClientURLs: []string{"https://10.0.0.7:2379", "https://etcd.example:2379"}}, {ClientURLs: []string{"https://10.0.0.8:2379"}, Learner: true},
	}}}
	data, err := snapshotfile.RingData(ring, "a", nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	ring.Ring = quorum.Ring{}
	data, err = snapshotfile.RingData(ring, "b", data) // what was known stays while it is not
	must(err)
	many := map[string]string{}
	for i := range 100 {
		many[strconv.Itoa(i)] = "10.0.1." + strconv.Itoa(i)
	}
	for _, cm := range []*corev1.ConfigMap{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: "holdfast-ring"}, Data: data},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd", Name: "etcd-endpoints"}, Data: map[string]string{"a": "10.0.0.5", "b": "fd00::5", "c": "[fd00::6]"}},
	} {
		must(client.IgnoreAlreadyExists(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cm.Namespace}})))
		must(c.Create(t.Context(), cm))
		defer func() { must(c.Delete(context.WithoutCancel(t.Context()), cm)) }()
	}
	want := slices.Concat([]string{
		"https://10.0.0.7:2379", "https://etcd.example:2379", "https://10.0.0.5:12379", "https://[fd00::5]:12379", "https://[fd00::6]:12379",
	}, nodes)
	if got := looks(); !slices.Equal(got, want) {
		t.Errorf("etcd is looked for at %q", got)
	}
	must(c.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd", Name: "etcd-endpoints"}, Data: many}))
	if got := looks(); len(got) != 2+8+len(nodes) || !slices.Equal(got[10:], nodes) {
		t.Errorf("of many that somebody wrote down it takes %q", got)
	}
}
