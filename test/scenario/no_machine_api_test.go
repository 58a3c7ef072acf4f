package scenario_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
			first := c.machineNames(t)
			for _, name := range first {
				must(t, c.neverRan(t.Context(), name))
			}
			must(t, c.StartHoldfast(t.Context()))
			c.comesToSay(t, []string{"3 of 3 voters healthy", "MachineAPINotFunctional", "none of 3 control-plane Machines is or was Running (Provisioning)"}, "status")
			if mode == "full" {
				c.guardAtRest(t)
				c.leavesMembersAlone(t, first[2])
			}
			for _, name := range first {
				m, err := c.machine(t.Context(), name)
				must(t, err)
				if seen := machineapi.Machine(m); seen.Hook != quorum.EntryAbsent || seen.Latch != quorum.EntryAbsent {
					t.Errorf("Machine %s has hooks: %+v", name, m.Spec.LifecycleHooks)
				}
				must(t, c.remove(t.Context(), name)) // its finalizer alone holds it, which is the machine controller's
				must(t, c.as(sandbox.MachineAPI).Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
				c.gone(t, quickly, name)
			}
			c.comesToSay(t, []string{"3 of 3 voters healthy", "MachineAPINotFunctional", "there is no control-plane Machine"}, "status")
			c.looks(t, first[0])
			for _, name := range first {
				c.becomes(t, name, "voter")
			}
			if mode == "full" {
				c.guardAtRest(t)
			}
		})
	}
}

// neverRan makes a Machine as one that never became Running. It keeps its addresses, by which Holdfast knows its Node and its member, and could act.
func (c *cluster) neverRan(ctx context.Context, name string) error {
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, name
	return c.as(sandbox.MachineAPI).Status().Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Provisioning","nodeRef":null}}`)))
}

// leavesMembersAlone wants Holdfast to put no member where a ready Node has none, and not to promote a learner there that has caught up.
func (c *cluster) leavesMembersAlone(t *testing.T, name string) {
	t.Helper()
	host, _ := c.Host(name)
	eventually(t, quickly, "etcd to remove "+name, func(ctx context.Context) error { return c.removeMember(ctx, name) })
	c.looks(t, name)
	if err := c.lists(t.Context(), host.PeerURL); err == nil {
		t.Fatalf("Holdfast added a member on %s", name)
	}
	var learner uint64
	eventually(t, quickly, "etcd to add a learner", func(ctx context.Context) error {
		list, err := c.etcd.MemberAddAsLearner(ctx, []string{host.PeerURL})
		if err == nil {
			learner = list.Member.GetID()
		}
		return err
	})
	c.becomes(t, name, "learner") // it starts
	c.looks(t, name)
	if role, err := c.role(t.Context(), name); err != nil || role != "learner" {
		t.Errorf("%s is a %s, %v; want a learner", name, role, err)
	}
	eventually(t, quickly, "etcd to promote it", func(ctx context.Context) error {
		_, err := c.etcd.MemberPromote(ctx, learner)
		return err
	})
}

// looks waits until Holdfast's reconciler has made more rounds, which a change of a Node wakes it for.
func (c *cluster) looks(t *testing.T, node string) {
	t.Helper()
	rounds := func(ctx context.Context) (float64, error) {
		return c.metric(ctx, "controller_runtime_reconcile_total", `controller="ring"`)
	}
	before, err := rounds(t.Context())
	must(t, err)
	eventually(t, quickly, "rounds of Holdfast", func(ctx context.Context) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		wake := fmt.Sprintf(`{"metadata":{"annotations":{"test/wake":"%d"}}}`, time.Now().UnixNano())
		if err := c.as(sandbox.Admin).Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(wake))); err != nil {
			return err
		}
		now, err := rounds(ctx)
		if err == nil && now < before+5 {
			err = fmt.Errorf("%v rounds, %v before", now, before)
		}
		return err
	})
}
