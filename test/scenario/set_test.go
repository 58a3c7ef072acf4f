package scenario_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestSet keeps the control plane's Machines as one set: Holdfast adopts them, replaces them one after the other when the template changes,
// replaces what a person deletes, and leaves the Machines when the set is deleted.
func TestSet(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 3) // every voter votes until another does in its place
	c.atRest(t)
	first := c.machineNames(t)

	t.Run("adoption", func(t *testing.T) {
		must(t, c.as(sandbox.Alice).Create(t.Context(), controlPlaneSet(t)))
		c.setSettles(t, 3, sandbox.InstanceType)
		if now := c.machineNames(t); !slices.Equal(now, first) {
			t.Errorf("Machines %v became %v", first, now)
		}
		var check machinev1beta1.MachineHealthCheck
		must(t, c.as(sandbox.Admin).Get(t.Context(), client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.HealthCheckName}, &check))
		if most := check.Spec.MaxUnhealthy.String(); most != "1" {
			t.Errorf("the health check acts while %s are unhealthy, want 1", most)
		}
		c.tells(t, cpms.Name, "SetAction")
		if n := c.counts(t, "prefer a domain-qualified finalizer name"); n > 0 {
			t.Errorf("Holdfast's log has the API server's Warning on Machines that are only tried %d times", n)
		}
	})

	t.Run("a change of the template replaces all three", func(t *testing.T) {
		began := time.Now()
		c.says(t, 0, []string{"is changed", "All 3 Machines of the set are as the template says."}, "replace", first[0], "--instance-type=m5.2xlarge", "--yes")
		c.setSettles(t, 3, "m5.2xlarge")
		t.Logf("three Machines were replaced in %.1f s", time.Since(began).Seconds())
		for _, name := range first {
			if c.isThere(t, name) {
				t.Errorf("Machine %s is still there", name)
			}
		}
	})

	t.Run("OnDelete replaces what is deleted, with the template of now, and with names as long as they may be", func(t *testing.T) {
		long := strings.Repeat("n", 54)
		if err := c.patchSet(t.Context(), fmt.Sprintf(`{"spec":{"machineNamePrefix":%q}}`, long+"n")); err == nil || !strings.Contains(err.Error(), "at most 54 characters") {
			t.Errorf("a prefix that is too long: %v", err)
		}
		must(t, c.patchSet(t.Context(), fmt.Sprintf(`{"spec":{"strategy":{"type":"OnDelete"},"machineNamePrefix":%q}}`, long)))
		must(t, c.template(t.Context(), "m5.large"))
		before := c.machineNames(t)
		must(t, c.remove(t.Context(), before[0]))
		c.gone(t, slowly, before[0])
		c.atRest(t)
		for _, name := range c.machineNames(t) {
			want := "m5.2xlarge"
			if !slices.Contains(before, name) {
				want = "m5.large"
				if !strings.HasPrefix(name, long) {
					t.Errorf("the new Machine is called %s", name)
				}
			}
			if got := c.instanceType(t, name); got != want {
				t.Errorf("Machine %s is a %s, want %s", name, got, want)
			}
		}
	})

	t.Run("the set is deleted, and the Machines stay", func(t *testing.T) {
		before := c.machineNames(t)
		set := controlPlaneSet(t)
		if err := c.as(sandbox.Alice).Delete(t.Context(), set, client.PropagationPolicy(metav1.DeletePropagationForeground)); err == nil || !strings.Contains(err.Error(), "--cascade=background") {
			t.Fatalf("deleted with foreground propagation: %v", err)
		}
		must(t, c.as(sandbox.Alice).Delete(t.Context(), set))
		eventually(t, quickly, "the set gone", func(ctx context.Context) error {
			err := c.as(sandbox.Admin).Get(ctx, client.ObjectKeyFromObject(set), set)
			if err == nil {
				err = fmt.Errorf("it is there, with finalizers %v", set.Finalizers)
			}
			return client.IgnoreNotFound(err)
		})
		eventually(t, quickly, "its MachineHealthCheck gone", func(ctx context.Context) error {
			var check machinev1beta1.MachineHealthCheck
			err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.HealthCheckName}, &check)
			if err == nil {
				err = errors.New("it is there")
			}
			return client.IgnoreNotFound(err)
		})
		if now := c.machineNames(t); !slices.Equal(now, before) {
			t.Errorf("Machines %v became %v", before, now)
		}
		for _, name := range before {
			m, err := c.machine(t.Context(), name)
			must(t, err)
			if len(m.OwnerReferences) > 0 || !m.DeletionTimestamp.IsZero() {
				t.Errorf("Machine %s has owners %v, and was deleted at %v", name, m.OwnerReferences, m.DeletionTimestamp)
			}
		}
		c.atRest(t)
	})

	t.Run("another set is given Machines with one index", func(t *testing.T) {
		before := c.machineNames(t)
		long := slices.IndexFunc(before, func(name string) bool { return strings.HasPrefix(name, "nnn") })
		other := before[(long+1)%3]
		must(t, c.remove(t.Context(), before[long]))
		must(t, c.replacement(t.Context(), before[long], "twin"+other[strings.LastIndex(other, "-"):])) // an m5.2xlarge as the others
		c.gone(t, slowly, before[long])
		c.atRest(t)
		before = c.machineNames(t)
		set := controlPlaneSet(t)
		set.Spec.Template.OpenShiftMachineV1Beta1Machine.Spec.ProviderSpec.Value.Raw = providerSpec(t, "m5.2xlarge")
		must(t, c.as(sandbox.Alice).Create(t.Context(), set))
		c.setSays(t, machineset.ConditionProgressing, metav1.ConditionFalse, "have one index")
		if now := c.machineNames(t); !slices.Equal(now, before) {
			t.Errorf("Machines %v became %v", before, now)
		}
	})
}

// TestSetScales scales the control plane by kubectl, up to seven and down to one.
func TestSetScales(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	history, before := c.watch(t, 3), 3
	c.atRest(t)
	must(t, c.as(sandbox.Alice).Create(t.Context(), controlPlaneSet(t)))
	c.setSettles(t, 3, sandbox.InstanceType)
	for i, replicas := range []int{5, 7, 5, 3, 1, 3} {
		began := time.Now()
		c.desired.Store(int64(replicas))
		history.atLeast(min(before, replicas))
		before = replicas
		must(t, c.scale(t, replicas))
		c.setSettles(t, replicas, sandbox.InstanceType)
		t.Logf("%d Machines after %.1f s", replicas, time.Since(began).Seconds())
		if i == 0 {
			history.atLeast(3) // a dead voter goes before another can come
			t.Run("two of five hosts die, and are replaced", c.twoOfFiveDie)
		}
	}
	if err := c.scale(t, 4); err == nil || !strings.Contains(err.Error(), "must be odd") {
		t.Errorf("scaled to 4: %v", err)
	}
}

// twoOfFiveDie: the set's MachineHealthCheck deletes both Machines, and the set replaces them.
func (c *cluster) twoOfFiveDie(t *testing.T) {
	dead := c.machineNames(t)[:2]
	for _, name := range dead {
		must(t, c.Power(name, false))
	}
	for _, name := range dead {
		c.notReadyForLong(t, name)
	}
	for _, name := range dead {
		c.gone(t, 3*slowly, name)
	}
	c.setSettles(t, 5, sandbox.InstanceType)
}

// scale runs kubectl scale as a person.
func (c *cluster) scale(t *testing.T, replicas int) error {
	t.Helper()
	kubectl, err := assets.Path("kubectl")
	must(t, err)
	out, err := exec.CommandContext(t.Context(), kubectl, "--kubeconfig", c.Kubeconfig(sandbox.Alice), "-n", sandbox.MachineNamespace,
		"scale", "controlplanemachineset", cpms.Name, fmt.Sprintf("--replicas=%d", replicas)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// controlPlaneSet is an Active set of three that selects the sandbox's Machines.
func controlPlaneSet(t *testing.T) *machinev1.ControlPlaneMachineSet {
	t.Helper()
	labels := map[string]string{machinev1beta1.MachineClusterIDLabel: "sandbox", quorum.RoleLabel: "master", quorum.TypeLabel: "master"}
	return &machinev1.ControlPlaneMachineSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: cpms.Name},
		Spec: machinev1.ControlPlaneMachineSetSpec{
			State: machinev1.ControlPlaneMachineSetStateActive, Replicas: ptr.To[int32](3),
			Strategy: machinev1.ControlPlaneMachineSetStrategy{Type: machinev1.RollingUpdate},
			Selector: metav1.LabelSelector{MatchLabels: labels},
			Template: machinev1.ControlPlaneMachineSetTemplate{
				MachineType: machinev1.OpenShiftMachineV1Beta1MachineType,
				OpenShiftMachineV1Beta1Machine: &machinev1.OpenShiftMachineV1Beta1MachineTemplate{
					ObjectMeta: machinev1.ControlPlaneMachineSetTemplateObjectMeta{Labels: labels},
					Spec:       machinev1beta1.MachineSpec{ProviderSpec: machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{Raw: providerSpec(t, sandbox.InstanceType)}}},
				},
			},
		},
	}
}

func providerSpec(t *testing.T, instanceType string) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]string{"apiVersion": "process.holdfast.dev/v1", "kind": "ProcessMachineProviderSpec", "instanceType": instanceType})
	must(t, err)
	return raw
}

// patchSet changes the set as a person does.
func (c *cluster) patchSet(ctx context.Context, patch string) error {
	set := &machinev1.ControlPlaneMachineSet{}
	set.Namespace, set.Name = sandbox.MachineNamespace, cpms.Name
	return c.as(sandbox.Alice).Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// template changes the instance type of the set's template.
func (c *cluster) template(ctx context.Context, instanceType string) error {
	return c.patchSet(ctx, fmt.Sprintf(`{"spec":{"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":%q}}}}}}}`, instanceType))
}

// setSettles waits until the set has so many Machines of that instance type, all its own, and says so, and the control plane is at rest.
func (c *cluster) setSettles(t *testing.T, replicas int, instanceType string) {
	t.Helper()
	eventually(t, 3*slowly, fmt.Sprintf("a set of %d %s", replicas, instanceType), func(ctx context.Context) error {
		var set machinev1.ControlPlaneMachineSet
		if err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.Name}, &set); err != nil {
			return err
		}
		var machines machinev1beta1.MachineList
		if err := c.as(sandbox.Admin).List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
			return err
		}
		for i := range machines.Items {
			m := &machines.Items[i]
			if !metav1.IsControlledBy(m, &set) {
				return fmt.Errorf("Machine %s is not the set's", m.Name)
			}
			if got, err := typeOf(m); err != nil || got != instanceType {
				return fmt.Errorf("Machine %s is a %s (%w)", m.Name, got, err)
			}
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || s.Replicas != int32(replicas) || s.UpdatedReplicas != int32(replicas) || s.UnavailableReplicas != 0 ||
			!meta.IsStatusConditionFalse(s.Conditions, string(machineset.ConditionProgressing)) {
			return fmt.Errorf("the set's status is %+v at generation %d", s, set.Generation)
		}
		return c.restless(ctx)
	})
}

func typeOf(m *machinev1beta1.Machine) (string, error) {
	var spec struct{ InstanceType string }
	err := json.Unmarshal(m.Spec.ProviderSpec.Value.Raw, &spec)
	return spec.InstanceType, err
}

func (c *cluster) instanceType(t *testing.T, name string) string {
	t.Helper()
	m, err := c.machine(t.Context(), name)
	must(t, err)
	got, err := typeOf(m)
	must(t, err)
	return got
}

// machineNames are those of all Machines, in the alphabet's order.
func (c *cluster) machineNames(t *testing.T) (names []string) {
	t.Helper()
	eventually(t, quickly, "the list of Machines", func(ctx context.Context) error {
		var machines machinev1beta1.MachineList
		names = nil
		err := c.as(sandbox.Admin).List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace))
		for i := range machines.Items {
			names = append(names, machines.Items[i].Name)
		}
		return err
	})
	slices.Sort(names)
	return names
}
