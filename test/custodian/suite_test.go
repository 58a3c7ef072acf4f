//go:build cpms

package custodian_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// TestPlatformSuite runs the end-to-end tests of the platform's control plane machine set operator, built from its module as they are,
// against that operator with Holdfast in guard mode beside it, and against Holdfast in full mode. The sandbox says that it is AWS, and its
// Machines have AWS's provider spec. Voters have to be healthy for 10 s, as by default, before one is removed: the tests look every 5 s, and
// would not see a Machine being deleted otherwise.
func TestPlatformSuite(t *testing.T) {
	cases := []struct {
		name, labels, focus string
		fails               string // the part of a test's name that fails with Holdfast; docs/full-mode.md says why
	}{
		{name: "all", labels: "Periodic", focus: "and the provider spec is changed"},
		{name: "one", labels: "PreSubmit", focus: "an active ControlPlaneMachineSet and the provider spec of index 1"},
		{name: "prefix", labels: "PreSubmit", focus: "an active ControlPlaneMachineSet and ControlPlaneMachineSet is updated", fails: "again MachineNamePrefix is reset"},
		{name: "on delete", labels: "PreSubmit", focus: "with the OnDelete update strategy"},
		{name: "deleted", labels: "PreSubmit", focus: "and the ControlPlaneMachineSet is up to date and the ControlPlaneMachineSet is deleted"},
		{name: "default", labels: "PreSubmit", focus: "and a defaulted value is deleted"},
		{name: "inactive", labels: "PreSubmit", focus: "With an inactive ControlPlaneMachineSet", fails: "regeneration"},
	}
	for _, keeper := range []string{"platform", "holdfast"} {
		for _, part := range cases {
			t.Run(keeper+"/"+part.name, func(t *testing.T) {
				t.Parallel()
				fails, options := "", sandbox.Options{Mode: "guard", PlatformSets: true}
				if keeper == "holdfast" {
					fails, options.Mode, options.HoldfastArgs = part.fails, "full", []string{"--stabilization=10s"}
				}
				c := start(t, options)
				c.onAWS(t)
				if keeper == "holdfast" {
					c.handedOver(t)
				} else {
					t.Cleanup(c.operates(t))
				}
				for _, r := range c.suite(t, part.labels, part.focus) {
					name := strings.Join(append(r.ContainerHierarchyTexts[1:], r.LeafNodeText), " ")
					t.Logf("%s, %.0f s: %s %s", r.State, r.RunTime.Seconds(), name, r.Failure.Message)
					if r.State != "passed" {
						set, err := c.set(t.Context())
						t.Log(set.Status.Conditions, err)
					}
					if expected := fails != "" && strings.Contains(name, fails); (r.State == "passed") == expected {
						t.Errorf("%s: %s", r.State, name)
					}
				}
			})
		}
	}
}

// onAWS has the cluster be on AWS, with a set that the platform's operator generates, and the names of Machines with a prefix enabled.
func (c *cluster) onAWS(t *testing.T) {
	t.Helper()
	must(t, c.SetOperator.Stop())
	for i, name := range c.names(t) {
		spec := fmt.Sprintf(`{"spec":{"providerSpec":{"value":{"apiVersion":"machine.openshift.io/v1beta1","kind":"AWSMachineProviderConfig","ami":{"id":"ami-1"},"deviceIndex":0,
			"credentialsSecret":{"name":"aws-cloud-credentials"},"userDataSecret":{"name":"master-user-data"},"placement":{"region":"sandbox","availabilityZone":"zone-%c"}}}}}`, 'a'+i)
		must(t, c.admin.Patch(t.Context(), named(name), client.RawPatch(types.MergePatchType, []byte(spec))))
	}
	status := func(o client.Object, patch string) {
		must(t, c.admin.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	cluster := metav1.ObjectMeta{Name: "cluster"}
	status(&configv1.Infrastructure{ObjectMeta: cluster}, `{"status":{"platform":"AWS","platformStatus":{"type":"AWS","aws":{"region":"sandbox"}}}}`)
	gates := &configv1.FeatureGate{}
	must(t, c.admin.Get(t.Context(), client.ObjectKey{Name: "cluster"}, gates))
	gates.Status.FeatureGates[0].Enabled = []configv1.FeatureGateAttributes{{Name: "CPMSMachineNamePrefix"}}
	gates.Status.FeatureGates[0].Disabled = []configv1.FeatureGateAttributes{{Name: "MachineAPIMigration"}}
	must(t, c.admin.Status().Update(t.Context(), gates))
	must(t, c.MachineAPI.Stop()) // its webhooks read the platform when they start
	must(t, errors.Join(c.MachineAPI.Start(), c.SetOperator.Start()))
	eventually(t, "a set that the platform's operator generated", func(ctx context.Context) error {
		set, err := c.set(ctx)
		if err == nil && set.Status.UpdatedReplicas != desired {
			err = fmt.Errorf("its status is %+v", set.Status)
		}
		return err
	})
}

// handedOver takes the platform's operator away. After a set was deleted the tests look for an Inactive one, which that operator
// generates: here a person writes it.
func (c *cluster) handedOver(t *testing.T) {
	t.Helper()
	must(t, c.SetOperator.Stop())
	must(t, c.admin.Delete(t.Context(), &configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: "control-plane-machine-set"}}))
	was, err := c.set(t.Context())
	must(t, err)
	again := &machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: was.Namespace, Name: was.Name, Labels: was.Labels}, Spec: was.Spec}
	again.Spec.State = machinev1.ControlPlaneMachineSetStateInactive
	watching, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for watching.Err() == nil {
			if _, err := c.set(watching); apierrors.IsNotFound(err) {
				_ = c.alice.Create(watching, again.DeepCopy()) // tried again
			}
			select {
			case <-watching.Done():
			case <-time.After(glimpse):
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
}

// report is what became of one test, as ginkgo writes it.
type report struct {
	ContainerHierarchyTexts           []string
	LeafNodeType, LeafNodeText, State string
	RunTime                           time.Duration
	Failure                           struct{ Message string }
}

// suite runs the tests of these labels whose names match.
func (c *cluster) suite(t *testing.T, labels, focus string) (tests []report) {
	t.Helper()
	path, err := assets.Path("set-e2e")
	must(t, err)
	file := filepath.Join(t.TempDir(), "report.json")
	command := exec.CommandContext(t.Context(), path, "-ginkgo.no-color", "-ginkgo.v", "-ginkgo.label-filter="+labels, "-ginkgo.focus="+focus, "-ginkgo.json-report="+file)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(sandbox.Alice))
	out, failed := command.CombinedOutput()
	must(t, os.WriteFile(filepath.Join(c.Logs, "suite.log"), out, 0o600))
	raw, err := os.ReadFile(file)
	var reports []struct{ SpecReports []report }
	if err := cmp.Or(err, json.Unmarshal(raw, &reports)); err != nil {
		t.Fatalf("%v (%v)\n%s", err, failed, out)
	}
	for _, r := range reports[0].SpecReports {
		if r.LeafNodeType == "It" && r.State != "skipped" {
			tests = append(tests, r)
		}
	}
	if len(tests) == 0 {
		t.Fatalf("no test ran (%v)\n%s", failed, out)
	}
	return tests
}
