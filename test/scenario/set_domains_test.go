package scenario_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestSetDomains spreads the Machines over failure domains, and moves them when the domains change. While the set is taken over and spread,
// and while it is deleted, Holdfast is killed after each of its actions.
func TestSetDomains(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 3)
	c.atRest(t)
	set := controlPlaneSet(t)
	template := set.Spec.Template.OpenShiftMachineV1Beta1Machine
	template.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: awsSpec(t, sandbox.InstanceType)}
	template.FailureDomains = &machinev1.FailureDomains{}
	must(t, json.Unmarshal(domains(t, "zone-a", "zone-b"), template.FailureDomains))
	must(t, c.as(sandbox.Alice).Create(t.Context(), set))
	for _, step := range []struct {
		name    string
		domains []string
		want    map[string]int
	}{
		{"two domains for three Machines", nil, map[string]int{"zone-a": 2, "zone-b": 1}},
		{"a third domain", []string{"zone-a", "zone-b", "zone-c"}, map[string]int{"zone-a": 1, "zone-b": 1, "zone-c": 1}},
		{"one domain less", []string{"zone-a", "zone-c"}, map[string]int{"zone-a": 2, "zone-c": 1}},
	} {
		t.Run(step.name, func(t *testing.T) {
			began := time.Now()
			if step.domains != nil {
				must(t, c.patchSet(t.Context(), fmt.Sprintf(`{"spec":{"template":{"machines_v1beta1_machine_openshift_io":{"failureDomains":%s}}}}`, domains(t, step.domains...))))
			}
			what := fmt.Sprint("Machines in ", step.want)
			spread := func(ctx context.Context) error {
				if now, err := c.spread(ctx); err != nil || !maps.Equal(now, step.want) {
					return fmt.Errorf("they are in %v, %w", now, err)
				}
				return nil
			}
			if step.domains == nil {
				// It is taken, each Machine is adopted, replaced and deleted.
				if kills := c.killAtEach(t, what, spread); kills < 6 {
					t.Errorf("Holdfast was killed %d times", kills)
				}
			}
			eventually(t, 3*slowly, what, spread)
			c.setSettles(t, 3, sandbox.InstanceType)
			t.Logf("after %.1f s", time.Since(began).Seconds())
		})
	}
	t.Run("the set is deleted", func(t *testing.T) {
		before := c.machineNames(t)
		must(t, c.as(sandbox.Alice).Delete(t.Context(), set))
		kills := c.killAtEach(t, "no set", func(ctx context.Context) error {
			err := c.as(sandbox.Admin).Get(ctx, client.ObjectKeyFromObject(set), set)
			if err == nil {
				err = errors.New("it is there")
			}
			return client.IgnoreNotFound(err)
		})
		t.Logf("Holdfast was killed %d times", kills) // all may be over before the first action is seen
		c.atRest(t)
		for _, name := range before {
			if m, err := c.machine(t.Context(), name); err != nil || m == nil || len(m.OwnerReferences) > 0 || !m.DeletionTimestamp.IsZero() {
				t.Errorf("Machine %s is %+v, %v", name, m, err)
			}
		}
	})
}

// killAtEach kills Holdfast after each action of the set, until something is so, and returns how often.
func (c *cluster) killAtEach(t *testing.T, what string, is func(context.Context) error) (kills int) {
	t.Helper()
	for actions := c.setActions(t); ; kills++ {
		over := false
		eventually(t, 3*slowly, "the set's next action, or "+what, func(ctx context.Context) error {
			err := is(ctx)
			if over = err == nil; !over && c.setActions(t) > actions {
				return nil
			}
			return err
		})
		if over {
			return kills
		}
		actions = c.setActions(t)
		must(t, c.Holdfast.Restart())
	}
}

// setActions is how many actions of the set Holdfast has taken since the sandbox was started, by its log.
func (c *cluster) setActions(t *testing.T) (n int) {
	t.Helper()
	log, err := os.ReadFile(c.Holdfast.Process().Log())
	must(t, err)
	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte("machineset")) && bytes.Contains(line, []byte(`"why": `)) {
			n++
		}
	}
	return n
}

// TestSetFailures: what goes wrong is reported, nothing is deleted that etcd needs, and a person's correction is all that it takes.
func TestSetFailures(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 2)
	c.atRest(t)
	must(t, c.as(sandbox.Alice).Create(t.Context(), controlPlaneSet(t)))
	c.setSettles(t, 3, sandbox.InstanceType)
	first := c.machineNames(t)

	for kind, phase := range map[string]string{"no-capacity.large": "Provisioning", "no-power.large": "Provisioned"} {
		t.Run("a template that cannot be created: "+kind, func(t *testing.T) {
			must(t, c.template(t.Context(), kind))
			eventually(t, slowly, "a fourth Machine, which is "+phase, func(ctx context.Context) error {
				for _, name := range c.machineNames(t) {
					if m, err := c.machine(ctx, name); err == nil && m != nil && !slices.Contains(first, name) && ptr.Deref(m.Status.Phase, "") == phase {
						return nil
					}
				}
				return errors.New("there is none")
			})
			c.setSays(t, machineset.ConditionProgressing, metav1.ConditionTrue, "no Node")
			if now := c.machineNames(t); len(now) > 4 || slices.ContainsFunc(first, func(name string) bool { return !slices.Contains(now, name) }) {
				t.Errorf("Machines %v", now)
			}
			must(t, c.template(t.Context(), sandbox.InstanceType))
			c.setSettles(t, 3, sandbox.InstanceType)
			if now := c.machineNames(t); !slices.Equal(now, first) {
				t.Errorf("Machines %v became %v", first, now)
			}
		})
	}

	t.Run("a template that is refused: the MachineHealthCheck deletes each Machine that failed, and the set makes no other at once", func(t *testing.T) {
		creations := func() float64 {
			n, err := c.metric(t.Context(), "holdfast_machineset_actions_total", `action="Create"`, `result="done"`)
			must(t, err)
			return n
		}
		before := creations()
		must(t, c.template(t.Context(), "impossible.large"))
		c.setSays(t, machineset.ConditionDegraded, metav1.ConditionTrue, "(2 in a row)")
		c.setSays(t, machineset.ConditionProgressing, metav1.ConditionTrue, "the next try is at")
		if n := creations() - before; n < 2 || n > 3 {
			t.Errorf("%v Machines were created", n)
		}
		must(t, c.template(t.Context(), sandbox.InstanceType))
		c.setSettles(t, 3, sandbox.InstanceType)
		c.setSays(t, machineset.ConditionDegraded, metav1.ConditionFalse, "")
		if now := c.machineNames(t); !slices.Equal(now, first) {
			t.Errorf("Machines %v became %v", first, now)
		}
	})

	t.Run("a host is down: the set waits, and says for what", func(t *testing.T) {
		must(t, c.Power(first[0], false))
		must(t, c.template(t.Context(), "m5.2xlarge"))
		c.setSays(t, machineset.ConditionProgressing, metav1.ConditionTrue, first[0])
		if now := c.machineNames(t); !slices.Equal(now, first) {
			t.Errorf("Machines %v became %v", first, now)
		}
		must(t, c.template(t.Context(), sandbox.InstanceType))
		must(t, c.Power(first[0], true))
		c.recovers(t)
		c.setSettles(t, 3, sandbox.InstanceType)
	})

	t.Run("etcd is down on a host whose Node is ready: the set waits, and says for what", func(t *testing.T) {
		now := c.machineNames(t)
		must(t, c.SetEnvironment(now[0], "no environment"))
		etcd := c.hostProcess(t, now[0])
		must(t, etcd.Signal(syscall.SIGKILL))
		<-etcd.Done() // else the set may begin while it still answers
		must(t, c.template(t.Context(), "m5.2xlarge"))
		c.setSays(t, machineset.ConditionProgressing, metav1.ConditionTrue, "etcd member "+now[0])
		c.nodeReady(t, now[0])
		if after := c.machineNames(t); !slices.Equal(after, now) {
			t.Errorf("Machines %v became %v", now, after)
		}
		must(t, c.template(t.Context(), sandbox.InstanceType))
		must(t, c.SetEnvironment(now[0], ""))
		c.setSettles(t, 3, sandbox.InstanceType)
		if after := c.machineNames(t); !slices.Equal(after, now) {
			t.Errorf("Machines %v became %v", now, after)
		}
		c.tells(t, cpms.Name, string(machineset.ReasonGateShut))
	})

	t.Run("a host dies, and the MachineHealthCheck finds it", func(t *testing.T) {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(process.Tail(filepath.Join(c.Logs, "machine-api.log"), 40))
			}
		})
		must(t, c.Power(first[0], false))
		c.notReadyForLong(t, first[0])
		c.gone(t, 3*slowly, first[0]) // its controller backs off for longer and longer while more are unhealthy than maxUnhealthy
		c.setSettles(t, 3, sandbox.InstanceType)
	})

	t.Run("the plugin has the set replace a Machine", func(t *testing.T) {
		now := c.machineNames(t)
		c.says(t, 0, []string{"kept by Holdfast", "3 wanted, 3 there, 3 ready, 3 as the template says"}, "status")
		c.says(t, 0, []string{"It is kept by ControlPlaneMachineSet cluster", "it is as the template says"}, "explain", now[0])
		c.says(t, 0, []string{"is held", "is gone. Machine sandbox-master-", "votes"}, "replace", now[0], "--yes")
		c.setSettles(t, 3, sandbox.InstanceType)
	})

	t.Run("two of three die, and come back", func(t *testing.T) {
		now := c.machineNames(t)
		must(t, c.Power(now[0], false))
		must(t, c.Power(now[1], false))
		eventually(t, quickly, "etcd without a quorum", func(ctx context.Context) error {
			within, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := c.etcd.MemberList(within); err == nil {
				return errors.New("it answers")
			}
			return nil
		})
		must(t, c.Power(now[0], true))
		must(t, c.Power(now[1], true))
		c.setSettles(t, 3, sandbox.InstanceType)
		if after := c.machineNames(t); !slices.Equal(after, now) {
			t.Errorf("Machines %v became %v", now, after)
		}
	})
}

// setSays waits until a condition of the set is so, and says that.
func (c *cluster) setSays(t *testing.T, condition machineset.ConditionType, status metav1.ConditionStatus, words string) {
	t.Helper()
	eventually(t, slowly, fmt.Sprintf("%s=%s with %q", condition, status, words), func(ctx context.Context) error {
		var set machinev1.ControlPlaneMachineSet
		if err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.Name}, &set); err != nil {
			return err
		}
		now := meta.FindStatusCondition(set.Status.Conditions, string(condition))
		if now == nil || now.Status != status || !strings.Contains(now.Message, words) {
			return fmt.Errorf("it is %+v", now)
		}
		return nil
	})
}

// notReadyForLong dates back since when a Node is not ready, which is what a MachineHealthCheck goes by.
func (c *cluster) notReadyForLong(t *testing.T, name string) {
	t.Helper()
	eventually(t, quickly, "Node "+name+" not ready for an hour", func(ctx context.Context) error {
		var node corev1.Node
		if err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		ready := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		})
		if ready < 0 {
			return errors.New("it is ready")
		}
		node.Status.Conditions[ready].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
		return c.as(sandbox.Admin).Status().Update(ctx, &node)
	})
}

// spread counts the live Machines by failure domain.
func (c *cluster) spread(ctx context.Context) (map[string]int, error) {
	var machines machinev1beta1.MachineList
	if err := c.as(sandbox.Admin).List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return nil, err
	}
	count := map[string]int{}
	for i := range machines.Items {
		var spec struct {
			Placement struct{ AvailabilityZone string }
		}
		if err := json.Unmarshal(machines.Items[i].Spec.ProviderSpec.Value.Raw, &spec); err != nil {
			return nil, err
		}
		count[spec.Placement.AvailabilityZone]++
	}
	return count, nil
}

// domains are AWS's failure domains in these zones, which the sandbox's provider knows as well.
func domains(t *testing.T, zones ...string) []byte {
	t.Helper()
	d := machinev1.FailureDomains{Platform: "AWS", AWS: &[]machinev1.AWSFailureDomain{}}
	for _, zone := range zones {
		*d.AWS = append(*d.AWS, machinev1.AWSFailureDomain{Placement: machinev1.AWSFailureDomainPlacement{AvailabilityZone: zone}})
	}
	raw, err := json.Marshal(d)
	must(t, err)
	return raw
}

func awsSpec(t *testing.T, instanceType string) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "AWSMachineProviderConfig", "instanceType": instanceType, "placement": map[string]string{"region": "sandbox"},
	})
	must(t, err)
	return raw
}
