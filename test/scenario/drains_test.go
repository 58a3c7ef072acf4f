package scenario_test

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// TestDrains: whoever drains Nodes takes one voter at a time, at rest, in the middle of a replacement, and in an upgrade that restarts
// one Node after the other.
func TestDrains(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 3)
	c.atRest(t)
	c.guardAtRest(t)

	t.Run("at rest one eviction passes and the second does not", func(t *testing.T) {
		c.typed(t, "kubectl cordon master-0") // else the pod is made anew, and may be ready before the second is asked for
		must(t, c.evict(t.Context(), "master-0"))
		if err := c.evict(t.Context(), "master-1"); !apierrors.IsTooManyRequests(err) {
			t.Errorf("the second eviction: %v, want 429", err)
		}
		c.typed(t, "kubectl uncordon master-0")
		c.guardAtRest(t)
	})

	// One voter may be drained, or none while the budget is sized for one more: never two.
	t.Run("in the middle of a replacement no second one passes", func(t *testing.T) {
		must(t, c.remove(t.Context(), "master-0"))
		must(t, c.replacement(t.Context(), "master-0", "next"))
		for _, step := range []stage{added, promoted, removed} {
			c.reaches(t, step, "master-0", "next")
			c.typed(t, "kubectl cordon master-1")
			first, second := c.evict(t.Context(), "master-1"), c.evict(t.Context(), "master-2")
			t.Logf("first: %v; second: %v", first, second)
			if first == nil && second == nil {
				t.Error("two voters may be drained at once")
			}
			c.typed(t, "kubectl uncordon master-1")
		}
		c.gone(t, slowly, "master-0")
		c.atRest(t)
		c.guardAtRest(t)
	})

	t.Run("an upgrade restarts one Node after the other, and a Machine is replaced meanwhile", func(t *testing.T) {
		nodes := []string{"next", "master-1", "master-2"}
		for i, node := range nodes {
			c.typed(t, "kubectl drain "+node+" --force --timeout=120s")
			c.off(t, node)
			eventually(t, quickly, node+" in maintenance", func(ctx context.Context) error {
				n, err := c.metric(ctx, "holdfast_etcd_voters_in_maintenance")
				if err == nil && n != 1 {
					err = fmt.Errorf("%v voters are", n)
				}
				return err
			})
			if i == 1 { // not while a voter is down
				c.refused(t, nodes[0], "degraded-delete")
			}
			must(t, c.Power(node, true))
			c.nodeReady(t, node)
			c.typed(t, "kubectl uncordon "+node)
			if i == 1 {
				c.recovers(t)
				must(t, c.remove(t.Context(), nodes[0]))
				must(t, c.replacement(t.Context(), nodes[0], "late"))
			}
		}
		c.gone(t, drains, nodes[0])
		c.atRest(t)
		c.guardAtRest(t)
	})
}
