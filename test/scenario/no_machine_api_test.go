package scenario_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestNoMachineAPI: no machine controller runs. First all control-plane Machines are Provisioning, as where people made the hosts, and then there
// are none. Holdfast says so, changes no member, holds no Machine, and keeps the quorum guard.
func TestNoMachineAPI(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	for _, mode := range []string{"full", "guard"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := start(t, sandbox.Options{Replicas: 3, Mode: mode, WithoutHoldfast: true})
			must(t, c.MachineAPI.Stop())
			for _, name := range []string{"master-0", "master-1", "master-2"} {
				must(t, c.stuck(t.Context(), name))
			}
			must(t, c.StartHoldfast(t.Context()))
			c.standsDown(t, mode, "none of 3 control-plane Machines is or was Running (Provisioning)")
			for _, name := range []string{"master-0", "master-1", "master-2"} {
				must(t, c.removeOnce(t.Context(), name)) // nothing holds it but its finalizer, which is the machine controller's
				m, err := c.machine(t.Context(), name)
				must(t, err)
				before := m.DeepCopy()
				m.Finalizers = nil
				must(t, c.as(sandbox.MachineAPI).Patch(t.Context(), m, client.MergeFrom(before)))
				c.gone(t, quickly, name)
			}
			c.standsDown(t, mode, "there is no control-plane Machine")
		})
	}
}

// stuck makes a Machine as one that never became Running: it has neither instance nor Node.
func (c *cluster) stuck(ctx context.Context, name string) error {
	m, err := c.machine(ctx, name)
	if err != nil {
		return err
	}
	before := m.DeepCopy()
	m.Spec.ProviderID = nil
	if err := c.as(sandbox.Admin).Patch(ctx, m, client.MergeFrom(before)); err != nil {
		return err
	}
	before = m.DeepCopy()
	phase := machinev1beta1.PhaseProvisioning
	m.Status = machinev1beta1.MachineStatus{Phase: &phase}
	return c.as(sandbox.Admin).Status().Patch(ctx, m, client.MergeFrom(before))
}

// standsDown wants Holdfast to say why, and to leave alone a member that is gone, one that is listed and a learner that has caught up, each
// of which it would otherwise act upon.
func (c *cluster) standsDown(t *testing.T, mode, why string) {
	t.Helper()
	c.comesToSay(t, []string{"3 of 3 voters healthy", "MachineAPINotFunctional", why}, "status")
	if mode == "full" {
		c.guardAtRest(t)
	}
	host, _ := c.Host("master-2")
	must(t, c.removeMember(t.Context(), "master-2"))
	c.comesToSay(t, []string{"2 of 2 voters healthy", why}, "status")
	c.looks(t)
	c.becomes(t, "master-2", "")
	list, err := c.etcd.MemberAddAsLearner(t.Context(), []string{host.PeerURL})
	must(t, err)
	c.becomes(t, "master-2", "learner") // it starts
	learner := list.Member.GetID()
	c.looks(t)
	c.becomes(t, "master-2", "learner")
	eventually(t, quickly, "etcd to promote it", func(ctx context.Context) error {
		_, err := c.etcd.MemberPromote(ctx, learner)
		return err
	})
	c.comesToSay(t, []string{"3 of 3 voters healthy", why}, "status")
	if mode == "full" {
		c.guardAtRest(t)
	}
	var machines machinev1beta1.MachineList
	must(t, c.as(sandbox.Admin).List(t.Context(), &machines, client.InNamespace(sandbox.MachineNamespace)))
	if i := slices.IndexFunc(machines.Items, func(m machinev1beta1.Machine) bool {
		return machineapi.Machine(&m).Hook != quorum.EntryAbsent || machineapi.Machine(&m).Latch != quorum.EntryAbsent
	}); i >= 0 {
		t.Errorf("Machine %s is held: %+v", machines.Items[i].Name, machines.Items[i].Spec.LifecycleHooks)
	}
}

// looks waits until Holdfast has made more rounds.
func (c *cluster) looks(t *testing.T) {
	t.Helper()
	const rounds = "controller_runtime_reconcile_total"
	before, err := c.metric(t.Context(), rounds)
	must(t, err)
	eventually(t, quickly, "rounds of Holdfast", func(ctx context.Context) error {
		now, err := c.metric(ctx, rounds)
		if err == nil && now < before+5 {
			err = fmt.Errorf("%v rounds, %v before", now, before)
		}
		return err
	})
}
