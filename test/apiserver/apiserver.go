// Package apiserver starts a kube-apiserver with an etcd of its own, for tests that need no sandbox.
package apiserver

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/slots"
)

// Start waits for a test slot and starts them, with what is configured, until the test ends. The result's
// Config is an admin's.
func Start(t testing.TB, configure ...func(*envtest.Environment)) *envtest.Environment {
	t.Helper()
	slots.Take(t)
	env := &envtest.Environment{ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: 8 * time.Minute}
	env.ControlPlane.Etcd = &envtest.Etcd{Path: binary(t, "etcd")}
	env.ControlPlane.GetAPIServer().Path = binary(t, "kube-apiserver")
	for _, change := range configure {
		change(env)
	}
	_, err := env.Start()
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func binary(t testing.TB, name string) string {
	t.Helper()
	path, err := assets.Path(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// WithMachineAPI has the API server serve Machines, MachineSets and MachineHealthChecks.
func WithMachineAPI(t testing.TB) func(*envtest.Environment) {
	t.Helper()
	return func(env *envtest.Environment) {
		env.CRDDirectoryPaths = append(env.CRDDirectoryPaths, MachineCRDs(t)...)
	}
}

// WithControlPlaneMachineSets has it serve ControlPlaneMachineSets.
func WithControlPlaneMachineSets(t testing.TB) func(*envtest.Environment) {
	t.Helper()
	return withSet(t, assets.CRD)
}

// WithScalableSets has it serve ControlPlaneMachineSets whose replicas can be changed.
func WithScalableSets(t testing.TB) func(*envtest.Environment) {
	t.Helper()
	return withSet(t, assets.ScalableSet)
}

func withSet(t testing.TB, form func([]byte) ([]byte, error)) func(*envtest.Environment) {
	t.Helper()
	text, err := os.ReadFile(openshift(t, "machine/v1", "0000_10_control-plane-machine-set_01_controlplanemachinesets-Default")[0])
	if err == nil {
		text, err = form(text)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err == nil {
		err = json.Unmarshal(text, crd)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(env *envtest.Environment) { env.CRDs = append(env.CRDs, crd) }
}

// MachineCRDs are those of Machines, MachineSets and MachineHealthChecks.
func MachineCRDs(t testing.TB) []string {
	t.Helper()
	return openshift(t, "machine/v1beta1", "0000_10_machine-api_01_machines-Default", "0000_10_machine-api_01_machinesets-Default", "0000_10_machine-api_01_machinehealthchecks")
}

// ClusterOperatorCRD is that of ClusterOperators.
func ClusterOperatorCRD(t testing.TB) []string {
	t.Helper()
	return openshift(t, "config/v1", "0000_00_cluster-version-operator_01_clusteroperators")
}

// KubeAPIServerCRD is that of the object by which OpenShift configures its API servers.
func KubeAPIServerCRD(t testing.TB) []string {
	t.Helper()
	return openshift(t, "operator/v1", "0000_20_kube-apiserver_01_kubeapiservers-Default")
}

// openshift are the real ones, out of the module that their types come from.
func openshift(t testing.TB, group string, names ...string) (paths []string) {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/openshift/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		paths = append(paths, filepath.Join(strings.TrimSpace(string(dir)), group, "zz_generated.crd-manifests", name+".crd.yaml"))
	}
	return paths
}
