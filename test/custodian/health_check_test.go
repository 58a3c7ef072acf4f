package custodian_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestHealthCheckWithoutSet: hosts die on a control plane without a set, so nobody makes the replacement but a person. The real
// MachineHealthCheck controller leaves a Machine alone that no controller owns, and deletes one that has such an owner. The stand-in for
// cluster-etcd-operator then removes the dead member, and adds that of the new Machine. test/scenario has the same in full mode.
func TestHealthCheckWithoutSet(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Mode: "guard"})
	o := c.custodian(t, dial(t, c.Sandbox), custodian.Options{})
	goOn(t, o, "the operator's hook, and latch and evidence with it, on every Machine", c.restless)
	must(t, c.alice.Create(t.Context(), sandbox.HealthCheck("control-plane", 3*time.Second)))

	for _, part := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"no owner: it is left alone, and a person deletes it and creates another", func(t *testing.T) {
			c.watch(t, desired-1) // a dead voter goes before another can come
			c.diesAlone(t, "master-0")
			c.remove(t, "master-0")
			c.heldDead(t, "master-0", string(sandbox.Alice))
			c.replacedByHand(t, o, "master-0", "first-0", "master-1", "master-2")
		}},
		{"no owner: a person creates another first", func(t *testing.T) {
			c.watch(t, desired-1)
			c.diesAlone(t, "master-1")
			c.replace(t, "master-1", "first-1")
			goOn(t, o, "the operator's hook on first-1, and its Node", func(ctx context.Context) error {
				m, err := c.machine(ctx, "first-1")
				if err == nil && (m == nil || m.Status.NodeRef == nil || !protected(m)) {
					err = errors.New("it is not there yet")
				}
				return err
			})
			// Neither the operator nor etcd takes a member while a voter does not answer.
			c.membersAre(t, "first-0", "master-1", "master-2")
			c.remove(t, "master-1")
			goOn(t, o, "first-1 in the place of master-1", func(ctx context.Context) error { return errors.Join(c.gone(ctx, "master-1"), c.restless(ctx)) })
		}},
		{"an owner that makes no Machines: it is deleted, and a person creates another", func(t *testing.T) {
			c.watch(t, desired-1)
			c.own(t, "master-2")
			must(t, c.Power("master-2", false))
			c.eventSays(t, "master-2", "MachineDeleted", "has been remediated by requesting to delete Machine object")
			c.heldDead(t, "master-2", string(sandbox.MachineAPI))
			c.replacedByHand(t, o, "master-2", "first-2", "first-0", "first-1")
		}},
	} {
		if !t.Run(part.name, part.run) {
			return // those after it begin with a control plane at rest
		}
	}
}

// diesAlone cuts the power of a host whose Machine nobody owns: the MachineHealthCheck says on the Machine why it does nothing, and has not
// deleted it.
func (c *cluster) diesAlone(t *testing.T, name string) {
	t.Helper()
	must(t, c.Power(name, false))
	c.eventSays(t, name, "SkippedNoController", "has no controller owner, skipping remediation")
	m, err := c.machine(t.Context(), name)
	must(t, err)
	if m == nil || !m.DeletionTimestamp.IsZero() {
		t.Fatalf("Machine %s, which nobody owns, is %+v, want it there and not deleted", name, m)
	}
}

// heldDead wants the deletion of a dead host's Machine to be held while the operator has not come to it, and its Event to say so and that a
// person is to create another Machine.
func (c *cluster) heldDead(t *testing.T, name, deletedBy string) {
	t.Helper()
	c.eventSays(t, name, "DeletionHeld", "DELETE by "+deletedBy, "is held until", "create one")
	c.eventSays(t, name, "ReplacementWaits", "create another control-plane Machine if none is on its way")
	c.seen(t, name)
	m, err := c.machine(t.Context(), name)
	must(t, err)
	if m == nil || !protected(m) {
		t.Errorf("Machine %s is %+v, want hook and latch on it while etcd lists its member", name, m)
	}
	eventually(t, "etcd to list the member of "+name+" still", func(ctx context.Context) error { return c.votes(ctx, name) })
}

// replacedByHand: the operator removes the dead member and lets the Machine go, before there is another; then a person creates one.
func (c *cluster) replacedByHand(t *testing.T, o *custodian.Operator, old, next string, others ...string) {
	t.Helper()
	goOn(t, o, "Machine "+old+" gone", func(ctx context.Context) error { return c.gone(ctx, old) })
	c.membersAre(t, others...)
	c.replace(t, others[0], next)
	goOn(t, o, next+" to vote, and the control plane at rest", c.restless)
}

// membersAre waits until etcd lists these members, in the alphabet's order, and no others.
func (c *cluster) membersAre(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("etcd to list %q and no others", want), func(ctx context.Context) error {
		members, err := c.members(ctx)
		if now := slices.Sorted(maps.Keys(members)); err == nil && !slices.Equal(now, want) {
			err = fmt.Errorf("the members are %q", now)
		}
		return err
	})
}

// own makes somebody who makes no Machines the controller of a Machine, as a person may.
func (c *cluster) own(t *testing.T, name string) {
	t.Helper()
	keeper := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: "keeper"}}
	must(t, c.alice.Create(t.Context(), keeper))
	m, err := c.machine(t.Context(), name)
	must(t, err)
	patch := client.MergeFrom(m.DeepCopy())
	m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(keeper, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	must(t, c.alice.Patch(t.Context(), m, patch))
}

// eventSays waits until an Event on a Machine with that reason has all of these words.
func (c *cluster) eventSays(t *testing.T, name, reason string, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("Event %s on Machine %s with %q", reason, name, words), func(ctx context.Context) error {
		var list corev1.EventList
		if err := c.admin.List(ctx, &list, client.InNamespace(sandbox.MachineNamespace)); err != nil {
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
