package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestEscapes deletes Machines and takes hooks and latches off by hand where that could cost an instance or quorum: at once, two at
// once, and with Holdfast hung.
func TestEscapes(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 2)
	c.atRest(t)

	t.Run("deleted as soon as it is created, a Machine leaves no instance behind", func(t *testing.T) {
		for i := range 5 {
			name := fmt.Sprintf("brief-%d", i)
			must(t, c.replacement(t.Context(), "master-0", name))
			eventually(t, quickly, "Machine "+name+" deleted", func(ctx context.Context) error { return client.IgnoreNotFound(c.remove(ctx, name)) })
			c.gone(t, slowly, name)
			eventually(t, quickly, "instance "+name+" gone", func(context.Context) error {
				if _, runs := c.Host(name); runs {
					return errors.New("it runs")
				}
				return nil
			})
		}
		c.atRest(t)
	})

	t.Run("Holdfast is hung, and one voter is down", func(t *testing.T) {
		must(t, c.Power("master-1", false))
		must(t, c.Holdfast.Pause())
		t.Cleanup(func() { must(t, c.Holdfast.Resume()) })
		must(t, patiently(t, func(ctx context.Context) error { return c.remove(ctx, "master-0") }))
		err := patiently(t, func(ctx context.Context) error { return c.stripAll(ctx, "master-0") })
		if err == nil || !strings.Contains(err.Error(), "(escape-hatch)") {
			t.Errorf("hook and latch off, with nobody to count: %v", err)
		}
		must(t, patiently(t, func(ctx context.Context) error { return c.strip(ctx, sandbox.Alice, "master-0") }))
		must(t, c.Holdfast.Resume())
		c.tells(t, "master-0", "ReleaseHeld")
		c.heldBack(t, "master-0")
		must(t, c.Power("master-1", true))
		c.gone(t, slowly, "master-0")
		must(t, c.replacement(t.Context(), "master-1", "next"))
		c.atRest(t)
	})

	t.Run("two at once: one is let go, the other once a replacement votes", func(t *testing.T) {
		must(t, c.remove(t.Context(), "master-1"))
		must(t, c.patch(t.Context(), "master-2", `{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: both at once"}}}`))
		must(t, c.remove(t.Context(), "master-2"))
		names := []string{"master-1", "master-2"}
		var errs [2]error
		var both sync.WaitGroup
		for i, name := range names {
			both.Go(func() { errs[i] = c.stripAll(t.Context(), name) })
		}
		both.Wait()
		must(t, errors.Join(errs[:]...))
		var held string
		// The ledger is new: for a minute, who lost the hook counts as lost, too.
		eventually(t, slowly, "one of the two gone", func(ctx context.Context) error {
			for i, name := range names {
				m, err := c.machine(ctx, name)
				if err == nil && m == nil {
					held = names[1-i]
					return nil
				}
			}
			return errors.New("both are there")
		})
		c.tells(t, held, "ReleaseHeld")
		c.heldBack(t, held)
		must(t, c.replacement(t.Context(), "next", "next-0"))
		must(t, c.replacement(t.Context(), "next", "next-1"))
		c.gone(t, slowly, held)
		c.atRest(t)
	})
}

// patiently gives a request all the time that hung webhooks take.
func patiently(t *testing.T, send func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), slowly)
	defer cancel()
	return send(ctx)
}

// stripAll takes hook and latch off a Machine, as a person.
func (c *cluster) stripAll(ctx context.Context, name string) error {
	return c.patch(ctx, name, `{"spec":{"lifecycleHooks":null}}`)
}

// patch changes a Machine, as a person.
func (c *cluster) patch(ctx context.Context, name, patch string) error {
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, name
	return c.as(sandbox.Alice).Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// heldBack wants a Machine that lost its hook to stay, with its latch and its instance.
func (c *cluster) heldBack(t *testing.T, name string) {
	t.Helper()
	m, err := c.seen(t.Context(), name)
	must(t, err)
	if m.Hook != quorum.EntryAbsent || m.Latch != quorum.EntryOurs || !m.Finalizer {
		t.Errorf("Machine %s: %s", name, fmt.Sprint(m.Hook, m.Latch, m.Finalizer))
	}
	if h, ok := c.Host(name); !ok || h.Etcd == nil {
		t.Errorf("instance %s does not run", name)
	}
}
