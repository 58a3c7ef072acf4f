package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestHealthCheckWithoutSet: hosts die on a control plane without a set, so nobody makes the replacement but a person. The real
// MachineHealthCheck controller leaves a Machine alone that no controller owns, and deletes one that has such an owner. test/custodian
// has the same in guard mode.
func TestHealthCheckWithoutSet(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--member-dead-timeout=3s"}})
	c.watch(t, 2) // a dead voter goes before another can come
	c.atRest(t)
	must(t, c.as(sandbox.Alice).Create(t.Context(), sandbox.HealthCheck("control-plane", 3*time.Second)))

	t.Run("no owner: it is left alone, and a person deletes it and creates another", func(t *testing.T) {
		c.diesAlone(t, "master-0")
		must(t, c.remove(t.Context(), "master-0"))
		c.asksForAnother(t, "master-0", string(sandbox.Alice))
		must(t, c.replacement(t.Context(), "master-0", "first-0"))
		c.replacedBy(t, "master-0", "first-0")
	})

	t.Run("no owner: a person creates another first", func(t *testing.T) {
		c.diesAlone(t, "master-1")
		must(t, c.replacement(t.Context(), "master-1", "first-1"))
		c.nodeReady(t, "first-1")
		// etcd takes no member while a voter does not answer, and the dead one stays for as long as its Machine does.
		c.becomes(t, "first-1", "")
		c.becomes(t, "master-1", "voter")
		must(t, c.remove(t.Context(), "master-1"))
		c.replacedBy(t, "master-1", "first-1")
	})

	t.Run("an owner that makes no Machines: it is deleted, and a person creates another", func(t *testing.T) {
		c.own(t, "master-2")
		must(t, c.Power("master-2", false))
		c.eventSays(t, "master-2", "MachineDeleted", "has been remediated by requesting to delete Machine object")
		c.asksForAnother(t, "master-2", string(sandbox.MachineAPI))
		must(t, c.replacement(t.Context(), "master-2", "first-2"))
		c.replacedBy(t, "master-2", "first-2")
	})
}

// diesAlone cuts the power of a host whose Machine nobody owns: the MachineHealthCheck counts it as unhealthy, says on the Machine why it
// does nothing, and has not deleted it.
func (c *cluster) diesAlone(t *testing.T, name string) {
	t.Helper()
	must(t, c.Power(name, false))
	c.eventSays(t, name, "SkippedNoController", "has no controller owner, skipping remediation")
	eventually(t, quickly, "the MachineHealthCheck to count 2 of 3 Machines as healthy, and to say that it may act", func(ctx context.Context) error {
		var check machinev1beta1.MachineHealthCheck
		if err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: "control-plane"}, &check); err != nil {
			return err
		}
		allowed := slices.ContainsFunc(check.Status.Conditions, func(d machinev1beta1.Condition) bool {
			return d.Type == machinev1beta1.RemediationAllowedCondition && d.Status == corev1.ConditionTrue
		})
		if now, of := check.Status.CurrentHealthy, check.Status.ExpectedMachines; !allowed || now == nil || *now != 2 || of == nil || *of != 3 {
			return fmt.Errorf("its status is %+v", check.Status)
		}
		return nil
	})
	m, err := c.machine(t.Context(), name)
	must(t, err)
	if m == nil || !m.DeletionTimestamp.IsZero() {
		t.Fatalf("Machine %s, which nobody owns, is %+v, want it there and not deleted", name, m)
	}
}

// asksForAnother wants the deletion to be held, and its Events to say so and that a person is to create another Machine.
func (c *cluster) asksForAnother(t *testing.T, name, deletedBy string) {
	t.Helper()
	c.eventSays(t, name, "DeletionHeld", "DELETE by "+deletedBy, "is held until", "create one")
	c.eventSays(t, name, "ReplacementWaits", "no other control-plane Machine waits for its place; create one")
	m, err := c.seen(t.Context(), name)
	must(t, err)
	if !m.Deleting() || !m.Protected() {
		t.Errorf("Machine %s: being deleted %t, held by hook, latch and finalizer %t, want both while nobody has made another", name, m.Deleting(), m.Protected())
	}
	c.becomes(t, name, "voter") // and stays one until another can come
}

// replacedBy waits until the new member votes, the old Machine is gone, and the control plane is at rest.
func (c *cluster) replacedBy(t *testing.T, old, next string) {
	t.Helper()
	c.becomes(t, next, "voter")
	c.gone(t, slowly, old)
	c.atRest(t)
	c.tells(t, old, "MemberRemoved", "HookReleased")
}

// own makes somebody who makes no Machines the controller of a Machine, as a person may.
func (c *cluster) own(t *testing.T, name string) {
	t.Helper()
	keeper := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: "keeper"}}
	must(t, c.as(sandbox.Alice).Create(t.Context(), keeper))
	m, err := c.machine(t.Context(), name)
	must(t, err)
	patch := client.MergeFrom(m.DeepCopy())
	m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(keeper, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	must(t, c.as(sandbox.Alice).Patch(t.Context(), m, patch))
}

// eventSays waits until an Event on a Machine with that reason has all of these words.
func (c *cluster) eventSays(t *testing.T, name, reason string, words ...string) {
	t.Helper()
	eventually(t, quickly, fmt.Sprintf("Event %s on Machine %s with %q", reason, name, words), func(ctx context.Context) error {
		var list corev1.EventList
		if err := c.as(sandbox.Admin).List(ctx, &list, client.InNamespace(sandbox.MachineNamespace)); err != nil {
			return err
		}
		var said []string
		for i := range list.Items {
			e := &list.Items[i]
			if e.InvolvedObject.Name != name {
				continue
			}
			if said = append(said, e.Reason+": "+e.Message); e.Reason == reason && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Message, w) }) {
				return nil
			}
		}
		return errors.New("its Events are\n" + strings.Join(said, "\n"))
	})
}
