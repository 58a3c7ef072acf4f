package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestDrains: whoever drains Nodes takes one voter at a time, at rest, in the middle of a replacement, and in an upgrade that restarts
// one Node after the other.
func TestDrains(t *testing.T) {
	tier.Long(t)
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

	// None may be drained from the creation of the replacement until it votes, and one once that votes: never two.
	t.Run("in the middle of a replacement no second one passes", func(t *testing.T) {
		allow := c.forbidPod(t, "next") // so that it gets no member yet
		must(t, c.remove(t.Context(), "master-0"))
		must(t, c.replacement(t.Context(), "master-0", "next"))
		c.drainsNone(t, "while a Machine is created")
		c.nodeReady(t, "next")
		c.drainsNone(t, "while a Node waits for its member")
		allow()
		c.reaches(t, added, "master-0", "next")
		var learner *process.Process
		eventually(t, quickly, "the learner's process", func(context.Context) error {
			host, _ := c.Host("next")
			if learner = host.Etcd; learner == nil {
				return errors.New("none runs")
			}
			return nil
		})
		must(t, learner.Signal(syscall.SIGSTOP)) // so that it does not vote yet
		t.Cleanup(func() { _ = learner.Signal(syscall.SIGCONT) })
		c.drainsNone(t, "while a learner is about to vote")
		must(t, learner.Signal(syscall.SIGCONT))
		for _, step := range []stage{promoted, removed} {
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

// drainsNone wants the budget of three voters to let none be drained.
func (c *cluster) drainsNone(t *testing.T, when string) {
	t.Helper()
	eventually(t, quickly, "a budget that holds all drains "+when, func(ctx context.Context) error {
		g, err := c.quorumGuard(ctx)
		if err == nil && (g.budget != 3 || g.allowed != 0) {
			err = fmt.Errorf("minAvailable %d, %d disruptions allowed", g.budget, g.allowed)
		}
		return err
	})
	for _, node := range []string{"master-1", "master-2"} {
		if err := c.evict(t.Context(), node); !apierrors.IsTooManyRequests(err) {
			t.Errorf("an eviction on Node %s %s: %v, want 429", node, when, err)
		}
	}
}
