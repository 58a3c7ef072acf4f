package scenario_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestClaimedFirst has a person create a worker Machine with the instance that a control-plane Machine gets afterwards, and a tool delete it: the Machine API's
// controllers would drain and delete the voter's Node with it. A tool may not even create it.
func TestClaimedFirst(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 2)
	c.atRest(t)

	tool := c.as(sandbox.GitOps)
	early := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: sandbox.MachineNamespace, Name: "early", Labels: map[string]string{quorum.RoleLabel: "worker", quorum.TypeLabel: "worker"},
	}}
	next, err := c.nextProviderID(t.Context())
	must(t, err)
	early.Spec.ProviderID = &next
	early.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{}`)}
	if err := tool.Create(t.Context(), early.DeepCopy()); err == nil || !strings.Contains(err.Error(), "(claim)") {
		t.Fatalf("a tool names an instance: %v", err)
	}
	must(t, c.as(sandbox.Alice).Create(t.Context(), early))

	must(t, c.replacement(t.Context(), "master-0", "next"))
	must(t, c.remove(t.Context(), "master-0"))
	c.gone(t, slowly, "master-0")
	c.atRest(t)
	m, err := c.seen(t.Context(), "next")
	must(t, err)
	if m.ProviderID != next {
		t.Fatalf("Machine next has %s, not %s: this shows nothing", m.ProviderID, next)
	}
	c.tells(t, "early", string(membership.ReasonInstanceClaimedTwice))
	for _, who := range []sandbox.Identity{sandbox.GitOps, sandbox.Alice} {
		err := c.as(who).Delete(t.Context(), early)
		if err == nil || !strings.Contains(err.Error(), "(claim)") {
			t.Fatalf("%s deletes Machine early: %v", who, err)
		}
	}

	// As the refusal says.
	must(t, c.patch(t.Context(), "early", `{"spec":{"providerID":null}}`))
	eventually(t, quickly, "Machine early deleted", func(ctx context.Context) error {
		machine, err := c.machine(ctx, "early")
		if err != nil {
			return err
		}
		machine.Status.NodeRef, machine.Status.Addresses, machine.Status.ProviderStatus = nil, nil, nil
		if err := c.as(sandbox.MachineAPI).Status().Update(ctx, machine); err != nil {
			return err
		}
		return tool.Delete(ctx, early)
	})
	c.gone(t, slowly, "early")
	c.atRest(t)
	if n, err := c.role(t.Context(), "next"); err != nil || n != "voter" {
		t.Errorf("next is %q: %v", n, err)
	}
}

// TestClaimedByTwin: a control-plane Machine with the hook names the instance that a replacement will get. Neither is known to host the
// member then, so nothing is released, until a person lifts the rule and takes the instance off the twin.
func TestClaimedByTwin(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	history := c.watch(t, 2)
	c.atRest(t)

	old, err := c.machine(t.Context(), "master-0")
	must(t, err)
	twin, err := sandbox.Replacement(old, "twin", "m5.2xlarge")
	must(t, err)
	next, err := c.nextProviderID(t.Context())
	must(t, err)
	twin.Spec.ProviderID = &next
	must(t, c.as(sandbox.Alice).Create(t.Context(), twin))
	must(t, c.replacement(t.Context(), "master-0", "next"))
	c.nodeReady(t, "next")
	m, err := c.seen(t.Context(), "next")
	must(t, err)
	if m.ProviderID != next {
		t.Fatalf("Machine next has %s, not %s: this shows nothing", m.ProviderID, next)
	}
	c.tells(t, "twin", string(membership.ReasonInstanceClaimedTwice))
	must(t, c.remove(t.Context(), "master-0"))
	eventually(t, quickly, "twin to have failed, and to be hooked", func(ctx context.Context) error {
		if m, err := c.seen(ctx, "twin"); err != nil || m.Phase != "Failed" || !m.Protected() {
			return fmt.Errorf("it is %q, and protected: %t: %w", m.Phase, m.Protected(), err)
		}
		return nil
	})
	c.refused(t, "twin", string(quorum.RuleClaim))

	takeOff := `{"spec":{"providerID":null}}`
	must(t, c.patch(t.Context(), "twin", takeOff))
	if m, err := c.seen(t.Context(), "twin"); err != nil || m.ProviderID != next {
		t.Errorf("the rule is not lifted, and twin has %q: %v", m.ProviderID, err)
	}
	history.detaches("twin")
	must(t, c.patch(t.Context(), "twin", `{"metadata":{"annotations":{"`+quorum.OverrideAnnotation+`":"claim: it is the instance of next"}}}`))
	must(t, c.patch(t.Context(), "twin", takeOff))
	if m, err := c.seen(t.Context(), "twin"); err != nil || m.ProviderID != "" {
		t.Errorf("the rule is lifted, and twin has %q: %v", m.ProviderID, err)
	}
	eventually(t, quickly, "the rest taken off", func(ctx context.Context) error { // the node link has joined the Node to it
		machine, err := c.machine(ctx, "twin")
		if err != nil {
			return err
		}
		machine.Status.NodeRef, machine.Status.Addresses, machine.Status.ProviderStatus = nil, nil, nil
		return c.as(sandbox.MachineAPI).Status().Update(ctx, machine)
	})
	must(t, c.remove(t.Context(), "twin"))
	c.gone(t, slowly, "twin")
	c.gone(t, slowly, "master-0")
	c.atRest(t)
	c.becomes(t, "next", "voter")
}

// nextProviderID is what the sandbox's next instance will have.
func (c *cluster) nextProviderID(ctx context.Context) (string, error) {
	var machines machinev1beta1.MachineList
	if err := c.as(sandbox.Admin).List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return "", err
	}
	last := 0
	for i := range machines.Items {
		var n int
		if id := machines.Items[i].Spec.ProviderID; id != nil {
			if _, err := fmt.Sscanf(*id, "process:///i-%d", &n); err != nil {
				return "", fmt.Errorf("provider ID %s: %w", *id, err)
			}
		}
		last = max(last, n)
	}
	return fmt.Sprintf("process:///i-%06d", last+1), nil
}
