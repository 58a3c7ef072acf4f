//go:build cpms

package custodian_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// TestPlatformSets runs the platform's own control plane machine set operator beside Holdfast: in guard mode with the stand-in for
// cluster-etcd-operator, and in full mode, where Holdfast drives etcd and leaves the set to that operator.
func TestPlatformSets(t *testing.T) {
	for _, mode := range []string{"guard", "full"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := start(t, sandbox.Options{Mode: mode, PlatformSets: true})
			if mode == "guard" {
				t.Cleanup(c.operates(t))
			}
			eventually(t, "a control plane at rest", c.restless)
			must(t, c.alice.Create(t.Context(), platformSet(t)))
			type part struct {
				name string
				run  func(t *testing.T)
			}
			parts := []part{
				{"adoption", c.platformAdopts},
				{"RollingUpdate replaces all three", c.platformRollsOut},
				{"a person deletes in the middle", c.platformAndPerson},
				{"the template changes twice in a second", c.platformTwice},
				{"OnDelete, and two are deleted", c.platformOnDelete},
			}
			parts = append(parts, part{"a host dies, and a MachineHealthCheck finds it", c.platformHeals})
			if mode == "full" {
				parts = append(parts, part{"Holdfast takes over, and gives back", c.takenOver})
			}
			for _, part := range append(parts, part{"the set is deleted", c.platformDeleted}) {
				if !t.Run(part.name, part.run) {
					return // those after it begin with a control plane at rest
				}
			}
		})
	}
}

func (c *cluster) platformAdopts(t *testing.T) {
	c.watch(t, desired)
	before := c.names(t)
	c.settled(t, sandbox.InstanceType)
	if now := c.names(t); !slices.Equal(now, before) {
		t.Errorf("Machines %v became %v", before, now)
	}
	set, err := c.set(t.Context())
	must(t, err)
	if slices.Contains(set.Finalizers, cpms.Finalizer) {
		t.Errorf("Holdfast took the set, which the platform's operator reconciles: finalizers %v", set.Finalizers)
	}
}

func (c *cluster) platformRollsOut(t *testing.T) {
	c.watch(t, desired)
	before, seen, began := c.names(t), len(c.recordsOf(t, sandbox.SetOperatorIdentity)), time.Now()
	must(t, c.template(t.Context(), "m5.xlarge"))
	c.settled(t, "m5.xlarge")
	t.Logf("three Machines were replaced in %.1f s", time.Since(began).Seconds())
	for _, name := range before {
		if slices.Contains(c.names(t), name) {
			t.Errorf("Machine %s is still there", name)
		}
	}
	c.noneDenied(t, seen)
}

// platformAndPerson: a person deletes a Machine while the operator replaces another. Either the deletion is refused, or both go, and the
// voters are never too few, which the story sees.
func (c *cluster) platformAndPerson(t *testing.T) {
	c.watch(t, desired-1)
	before := c.names(t)
	must(t, c.template(t.Context(), "m5.2xlarge"))
	eventually(t, "a fourth Machine", func(context.Context) error {
		if n := len(c.names(t)); n <= len(before) {
			return fmt.Errorf("%d Machines", n)
		}
		return nil
	})
	if err := c.alice.Delete(t.Context(), named(before[2])); err != nil && !apierrors.IsForbidden(err) {
		t.Errorf("a person's deletion: %v", err)
	} else {
		t.Logf("a person's deletion of %s: %v", before[2], err)
	}
	c.settled(t, "m5.2xlarge")
}

// platformTwice: the operator creates a Machine and deletes it again at once, before the machine controller has seen it. If it comes too
// late to do so, it is stuck: an index has two Machines that are ready and of an older template, it deletes neither before one of the
// template is ready, and it has no room to create that one. A person deletes the younger one then.
func (c *cluster) platformTwice(t *testing.T) {
	c.watch(t, desired)
	must(t, c.template(t.Context(), "m5.4xlarge"))
	must(t, c.template(t.Context(), "m5.2xlarge"))
	must(t, c.template(t.Context(), "m5.xlarge"))
	var stuck bool
	eventually(t, "a Machine of the last template, or an operator that is stuck", func(ctx context.Context) error {
		set, err := c.set(ctx)
		if err != nil {
			return err
		}
		s := set.Status
		stuck = s.ReadyReplicas == desired+1 && s.UpdatedReplicas == 0
		if s.ObservedGeneration != set.Generation || s.UpdatedReplicas == 0 && !stuck {
			return fmt.Errorf("the set's status is %+v at generation %d", s, set.Generation)
		}
		return nil
	})
	if stuck {
		t.Log("the operator came too late, and is stuck: a person deletes the Machine that was created last")
		c.remove(t, c.youngest(t))
	}
	c.settled(t, "m5.xlarge")
}

// youngest names the Machine that was created last.
func (c *cluster) youngest(t *testing.T) string {
	t.Helper()
	var machines machinev1beta1.MachineList
	must(t, c.admin.List(t.Context(), &machines, client.InNamespace(sandbox.MachineNamespace)))
	last := slices.MaxFunc(machines.Items, func(a, b machinev1beta1.Machine) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return last.Name
}

func (c *cluster) platformOnDelete(t *testing.T) {
	c.watch(t, desired)
	seen := len(c.recordsOf(t, sandbox.SetOperatorIdentity))
	must(t, c.patchSet(t.Context(), `{"spec":{"strategy":{"type":"OnDelete"}}}`))
	must(t, c.template(t.Context(), "m5.large"))
	before := c.names(t)
	// Two: the second is refused until the first is replaced.
	c.remove(t, before[0])
	c.refused(t, c.alice, before[1], quorum.RuleOneTooMany)
	eventually(t, "Machine "+before[0]+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, before[0]), c.restless(ctx)) })
	c.remove(t, before[1])
	eventually(t, "Machine "+before[1]+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, before[1]), c.restless(ctx)) })
	for _, name := range c.names(t) {
		m, err := c.machine(t.Context(), name)
		must(t, err)
		want := "m5.xlarge"
		if !slices.Contains(before, name) {
			want = "m5.large"
		}
		if got, err := kindOf(m); err != nil || got != want {
			t.Errorf("Machine %s is a %s (%v), want %s", name, got, err, want)
		}
	}
	c.noneDenied(t, seen)
}

// platformHeals: the MachineHealthCheck controller deletes the Machine of a host that died, and the set makes another.
func (c *cluster) platformHeals(t *testing.T) {
	c.watch(t, desired-1)
	check := sandbox.HealthCheck("control-plane", 3*time.Second)
	must(t, c.alice.Create(t.Context(), check))
	dead := c.names(t)[1]
	must(t, c.Power(dead, false))
	eventually(t, "Machine "+dead+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, dead), c.restless(ctx)) })
	must(t, c.alice.Delete(t.Context(), check))
}

// takenOver: the platform's operator is removed, and Holdfast goes on with the set as it is; then the operator comes back.
func (c *cluster) takenOver(t *testing.T) {
	c.watch(t, desired)
	taken := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("Holdfast's finalizer on the set: %t", want), func(ctx context.Context) error {
			set, err := c.set(ctx)
			if err == nil && slices.Contains(set.Finalizers, cpms.Finalizer) != want {
				err = fmt.Errorf("its finalizers are %v", set.Finalizers)
			}
			return err
		})
	}
	sign := &configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: "control-plane-machine-set"}}
	must(t, c.SetOperator.Stop())
	must(t, c.admin.Delete(t.Context(), sign.DeepCopy()))
	taken(true)
	before := c.names(t)
	c.remove(t, before[1])
	eventually(t, "Machine "+before[1]+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, before[1]), c.restless(ctx)) })

	must(t, c.admin.Create(t.Context(), sign))
	taken(false)
	must(t, c.SetOperator.Start())
	now := c.names(t)
	c.remove(t, now[0])
	eventually(t, "Machine "+now[0]+" replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, now[0]), c.restless(ctx)) })
}

// platformDeleted: however the set is deleted, the operator lets its Machines go; a new set adopts them, and replaces them while Holdfast is
// killed.
func (c *cluster) platformDeleted(t *testing.T) {
	s := c.watch(t, desired)
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		before := c.names(t)
		set, err := c.set(t.Context())
		must(t, err)
		must(t, c.alice.Delete(t.Context(), set, client.PropagationPolicy(how)))
		eventually(t, fmt.Sprintf("no set and no Machine with an owner, after a deletion with propagation %s", how), func(ctx context.Context) error {
			if _, err := c.set(ctx); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the set is there: %w", err)
			}
			return c.owned(ctx, 0)
		})
		again := platformSet(t)
		again.Spec.Strategy.Type = machinev1.OnDelete
		must(t, c.alice.Create(t.Context(), again))
		eventually(t, "all Machines adopted again, and at rest", func(ctx context.Context) error {
			return errors.Join(c.owned(ctx, desired), c.restless(ctx))
		})
		// With foreground propagation the garbage collector deletes what the set owns. It gets one, which is held until it is replaced;
		// the others are refused (one-too-many).
		lost := slices.DeleteFunc(slices.Clone(before), func(name string) bool { return slices.Contains(c.names(t), name) })
		if len(lost) > 1 || len(lost) > 0 && how != metav1.DeletePropagationForeground {
			t.Errorf("with propagation %s Machines %v are gone", how, lost)
		}
	}

	must(t, c.template(t.Context(), "m5.8xlarge"))
	must(t, c.patchSet(t.Context(), `{"spec":{"strategy":{"type":"RollingUpdate"}}}`))
	eventually(t, "a fourth Machine", func(context.Context) error {
		if n := len(c.names(t)); n <= desired {
			return fmt.Errorf("%d Machines", n)
		}
		return nil
	})
	s.restart(t)
	c.settled(t, "m5.8xlarge")
}

// owned wants so many Machines to have an owner.
func (c *cluster) owned(ctx context.Context, want int) error {
	var machines machinev1beta1.MachineList
	if err := c.admin.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return err
	}
	n := 0
	for i := range machines.Items {
		if len(machines.Items[i].OwnerReferences) > 0 {
			n++
		}
	}
	if n != want {
		return fmt.Errorf("%d of %d Machines have an owner", n, len(machines.Items))
	}
	return nil
}

// settled waits until the operator's set has its Machines, all of that instance type, and the control plane is at rest.
func (c *cluster) settled(t *testing.T, instanceType string) {
	t.Helper()
	deadline := time.Now().Add(3 * within)
	for {
		err := c.unsettled(t.Context(), instanceType)
		switch {
		case err == nil:
			return
		case time.Now().After(deadline):
			t.Fatalf("a set of three %s: %v", instanceType, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(glimpse):
		}
	}
}

func (c *cluster) unsettled(ctx context.Context, instanceType string) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	set, err := c.set(ctx)
	if err != nil {
		return err
	}
	var machines machinev1beta1.MachineList
	if err := c.admin.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return err
	}
	for i := range machines.Items {
		m := &machines.Items[i]
		if !metav1.IsControlledBy(m, set) {
			return fmt.Errorf("Machine %s is not the set's", m.Name)
		}
		if got, err := kindOf(m); err != nil || got != instanceType {
			return fmt.Errorf("Machine %s is a %s (%w)", m.Name, got, err)
		}
	}
	if s := set.Status; s.ObservedGeneration != set.Generation || s.UpdatedReplicas != desired {
		return fmt.Errorf("the set's status is %+v at generation %d", s, set.Generation)
	}
	return c.restless(ctx)
}

// noneDenied wants no request of the operator's to have been denied since there were that many records of it.
func (c *cluster) noneDenied(t *testing.T, seen int) {
	t.Helper()
	for _, e := range c.recordsOf(t, sandbox.SetOperatorIdentity)[seen:] {
		if slices.Contains(e.Verdicts(), admission.VerdictDenied.String()) {
			t.Errorf("the operator was denied: %v of Machine %s", e.Rules(), e.Name())
		}
	}
}

func (c *cluster) set(ctx context.Context) (*machinev1.ControlPlaneMachineSet, error) {
	set := &machinev1.ControlPlaneMachineSet{}
	return set, c.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.Name}, set)
}

// patchSet changes the set as a person does.
func (c *cluster) patchSet(ctx context.Context, patch string) error {
	set := &machinev1.ControlPlaneMachineSet{}
	set.Namespace, set.Name = sandbox.MachineNamespace, cpms.Name
	return c.alice.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// template changes the instance type of the set's template.
func (c *cluster) template(ctx context.Context, instanceType string) error {
	return c.patchSet(ctx, fmt.Sprintf(`{"spec":{"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":%q}}}}}}}`, instanceType))
}

// names are those of all Machines, in the alphabet's order.
func (c *cluster) names(t *testing.T) (names []string) {
	t.Helper()
	eventually(t, "the list of Machines", func(ctx context.Context) error {
		var machines machinev1beta1.MachineList
		names = nil
		err := c.admin.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace))
		for i := range machines.Items {
			names = append(names, machines.Items[i].Name)
		}
		return err
	})
	slices.Sort(names)
	return names
}

func kindOf(m *machinev1beta1.Machine) (string, error) {
	var spec struct{ InstanceType string }
	err := json.Unmarshal(m.Spec.ProviderSpec.Value.Raw, &spec)
	return spec.InstanceType, err
}
