package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestThree tells one story after the other on one control plane of three. Each begins and ends with
// the control plane at rest.
func TestThree(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--learner-stall-timeout=10s", "--member-dead-timeout=3s"}})
	c.watch(t, 2)
	c.atRest(t)

	t.Run("create first", func(t *testing.T) {
		must(t, c.replacement(t.Context(), "master-0", "first-0"))
		c.becomes(t, "first-0", "learner")
		// Nobody leaves, so it stays a warm learner; with the deletion it is promoted at once.
		must(t, c.remove(t.Context(), "master-0"))
		c.becomes(t, "first-0", "voter")
		c.gone(t, slowly, "master-0")
		c.atRest(t)
		c.tells(t, "first-0", "LearnerAdded", "LearnerPromoted")
		c.tells(t, "master-0", "DeletionHeld", "MemberRemoved", "HookReleased")
	})

	t.Run("delete first", func(t *testing.T) {
		must(t, c.remove(t.Context(), "master-1"))
		c.refused(t, "master-2", "one-too-many")
		must(t, c.replacement(t.Context(), "master-1", "first-1"))
		c.gone(t, slowly, "master-1")
		c.atRest(t)
		c.tells(t, "master-2", "DeletionBlocked")
	})

	t.Run("a learner's Machine is deleted before it is promoted", func(t *testing.T) {
		must(t, c.replacement(t.Context(), "first-0", "spare"))
		c.becomes(t, "spare", "learner")
		must(t, c.remove(t.Context(), "spare"))
		c.becomes(t, "spare", "")
		c.gone(t, quickly, "spare")
		c.atRest(t)
		c.tells(t, "spare", "LearnerRemoved", "HookReleased")
	})

	t.Run("a Machine that never got an instance is deleted", func(t *testing.T) {
		m, err := broken("broken")
		must(t, err)
		must(t, c.as(sandbox.Alice).Create(t.Context(), m))
		eventually(t, quickly, "the provider to refuse it", func(ctx context.Context) error {
			seen, err := c.seen(ctx, "broken")
			if err == nil && (seen.Phase != "Failed" || !seen.Protected()) {
				err = fmt.Errorf("phase %q, protected %t", seen.Phase, seen.Protected())
			}
			return err
		})
		must(t, c.remove(t.Context(), "broken"))
		c.gone(t, quickly, "broken")
	})

	t.Run("Holdfast is killed and started again in the middle", func(t *testing.T) {
		must(t, c.remove(t.Context(), "master-2"))
		must(t, c.replacement(t.Context(), "master-2", "first-2"))
		eventually(t, slowly, "the replacement's learner", func(ctx context.Context) error {
			list, err := c.etcd.MemberList(ctx)
			if err == nil && len(list.Members) != 4 {
				err = fmt.Errorf("%d members", len(list.Members))
			}
			return err
		})
		must(t, c.Holdfast.Restart())
		must(t, c.WaitHoldfast(t.Context()))
		c.gone(t, slowly, "master-2")
		c.atRest(t)
	})

	t.Run("a learner that never starts gives way", func(t *testing.T) {
		must(t, c.remove(t.Context(), "first-0"))
		must(t, c.Holdfast.Stop())
		must(t, c.replacement(t.Context(), "first-1", "stuck"))
		c.nodeReady(t, "stuck")
		host, _ := c.Host("stuck")
		// Somebody else has the port, so that etcd never starts there.
		squatter, err := new(net.ListenConfig).Listen(t.Context(), "tcp", strings.TrimPrefix(host.PeerURL, "https://"))
		must(t, err)
		t.Cleanup(func() { _ = squatter.Close() })
		must(t, c.Holdfast.Start())
		must(t, c.WaitHoldfast(t.Context()))
		eventually(t, quickly, "a member at the stuck host", func(ctx context.Context) error { return c.lists(ctx, host.PeerURL) })
		must(t, c.replacement(t.Context(), "first-1", "next"))
		c.becomes(t, "next", "voter")
		c.gone(t, slowly, "first-0")
		c.tells(t, "stuck", "LearnerRemoved")
		must(t, squatter.Close())
		c.becomes(t, "stuck", "learner")
		must(t, c.remove(t.Context(), "stuck"))
		c.gone(t, slowly, "stuck")
		c.atRest(t)
	})

	t.Run("a dead voter is replaced", func(t *testing.T) {
		must(t, c.Power("first-1", false))
		eventually(t, quickly, "Holdfast to see it", func(ctx context.Context) error {
			err := c.tryRemove(ctx, "first-2")
			if err == nil {
				return errors.New("a healthy voter's Machine may still be deleted")
			}
			if !strings.Contains(err.Error(), "(degraded-delete)") {
				return err
			}
			return nil
		})
		must(t, c.remove(t.Context(), "first-1"))
		must(t, c.replacement(t.Context(), "first-1", "alive"))
		c.becomes(t, "alive", "voter")
		c.gone(t, slowly, "first-1")
		c.atRest(t)
	})

	t.Run("the escape hatch, and the host comes back at the same address and name", func(t *testing.T) {
		before, _ := c.Host("alive")
		members, err := c.members(t.Context())
		must(t, err)
		must(t, c.remove(t.Context(), "alive"))
		// Automation does not get the hook off, nor the operator while the member is listed.
		for _, who := range []sandbox.Identity{sandbox.GitOps, sandbox.EtcdOperator} {
			must(t, c.strip(t.Context(), who, "alive"))
			if m, err := c.seen(t.Context(), "alive"); err != nil || !m.Protected() {
				t.Fatalf("after %s stripped it: protected %t, %v", who, m.Protected(), err)
			}
		}
		must(t, c.strip(t.Context(), sandbox.Alice, "alive"))
		c.gone(t, quickly, "alive")
		c.tells(t, "alive", "HookRestored", "EscapeHatchUsed")
		// A dead voter is left behind, which no Machine has any more. The new host is reinstalled, with
		// the old one's address and name: the dead voter is not its member.
		must(t, c.replacement(t.Context(), "first-2", "alive"))
		eventually(t, slowly, "another member of that name to vote", func(ctx context.Context) error {
			now, err := c.members(ctx)
			for _, m := range now {
				known := slices.ContainsFunc(members, func(o *etcdserverpb.Member) bool { return o.GetID() == m.GetID() })
				if err == nil && m.GetName() == "alive" && !m.GetIsLearner() && !known {
					return nil
				}
			}
			return errors.Join(err, fmt.Errorf("%v", now))
		})
		c.atRest(t)
		if now, _ := c.Host("alive"); now.PeerURL != before.PeerURL {
			t.Errorf("the host came back at %s, not at %s", now.PeerURL, before.PeerURL)
		}
	})
}

// TestOne replaces the only member there is.
func TestOne(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 1})
	c.watch(t, 1)
	c.atRest(t)
	must(t, c.remove(t.Context(), "master-0"))
	must(t, c.replacement(t.Context(), "master-0", "next"))
	c.gone(t, slowly, "master-0")
	c.atRest(t)
}

// TestFive replaces two Machines at once, as many as etcd can lose, and no third.
func TestFive(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 5})
	c.watch(t, 5)
	c.atRest(t)
	must(t, c.remove(t.Context(), "master-0"))
	must(t, c.remove(t.Context(), "master-1"))
	c.refused(t, "master-2", "one-too-many")
	must(t, c.replacement(t.Context(), "master-2", "next-0"))
	must(t, c.replacement(t.Context(), "master-2", "next-1"))
	c.gone(t, slowly, "master-0")
	c.gone(t, slowly, "master-1")
	c.atRest(t)
}

// TestGuard runs beside an operator, played by its identity: Holdfast adds evidence and latch to what
// the operator hooks, holds what it must, and leaves etcd alone.
func TestGuard(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 1, Mode: "guard"})
	c.watch(t, 1)
	c.refused(t, "master-0", "unprotected-delete")
	must(t, c.hook(t.Context(), "master-0"))
	c.atRest(t)
	must(t, c.remove(t.Context(), "master-0"))
	must(t, c.strip(t.Context(), sandbox.EtcdOperator, "master-0"))
	if m, err := c.seen(t.Context(), "master-0"); err != nil || !m.Protected() || !m.Deleting() {
		t.Fatalf("deleting %t, protected %t, %v", m.Deleting(), m.Protected(), err)
	}
	must(t, c.replacement(t.Context(), "master-0", "next"))
	c.nodeReady(t, "next")
	// The operator adds the member and moves the ring; Holdfast only watches.
	host, _ := c.Host("next")
	var added uint64
	eventually(t, quickly, "etcd to take a learner", func(ctx context.Context) error {
		response, err := c.etcd.MemberAddAsLearner(ctx, []string{host.PeerURL})
		if err == nil {
			added = response.Member.GetID()
		}
		return err
	})
	c.becomes(t, "next", "learner")
	eventually(t, quickly, "the learner to catch up", func(ctx context.Context) error {
		_, err := c.etcd.MemberPromote(ctx, added)
		return err
	})
	eventually(t, quickly, "etcd to let the old member go", func(ctx context.Context) error { return c.removeMember(ctx, "master-0") })
	// The leader went with its member, so for a moment etcd does not answer and the hook is put back:
	// unknown never releases. An operator tries again.
	eventually(t, quickly, "the operator to release Machine master-0", func(ctx context.Context) error {
		if err := c.strip(ctx, sandbox.EtcdOperator, "master-0"); client.IgnoreNotFound(err) != nil {
			return err
		}
		m, err := c.seen(ctx, "master-0")
		if err == nil && m.Protected() {
			err = errors.New("Machine master-0 is held still")
		}
		return err
	})
	c.gone(t, quickly, "master-0")
	c.becomes(t, "next", "voter")
}

// tells waits until the Events on a Machine, or on the set, have these reasons.
func (c *cluster) tells(t *testing.T, name string, reasons ...string) {
	t.Helper()
	eventually(t, quickly, "Events on "+name, func(ctx context.Context) error {
		got, err := c.events(ctx, name)
		for _, want := range reasons {
			if err == nil && !slices.Contains(got, want) {
				err = fmt.Errorf("no Event %s on %s, only %q", want, name, got)
			}
		}
		return err
	})
}

// tryRemove asks for a deletion without making it.
func (c *cluster) tryRemove(ctx context.Context, name string) error {
	m, err := c.machine(ctx, name)
	if err != nil {
		return err
	}
	return c.as(sandbox.Alice).Delete(ctx, m, client.DryRunAll)
}

// refused wants a deletion to be refused by a rule, in words that say so.
func (c *cluster) refused(t *testing.T, name, rule string) {
	t.Helper()
	err := c.removeOnce(t.Context(), name)
	if err == nil || !strings.Contains(err.Error(), "("+rule+")") {
		t.Fatalf("deleting Machine %s: %v, want a refusal by %s", name, err, rule)
	}
}

// nodeReady waits for a Machine's Node.
func (c *cluster) nodeReady(t *testing.T, name string) {
	t.Helper()
	eventually(t, quickly, "Node "+name, func(ctx context.Context) error {
		var node corev1.Node
		if err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("Node %s is not ready", name)
		}
		m, err := c.seen(ctx, name)
		if err == nil && m.NodeName == "" {
			err = fmt.Errorf("Machine %s has no Node yet", name)
		}
		return err
	})
}

// lists says whether etcd lists a member at a peer URL.
func (c *cluster) lists(ctx context.Context, peer string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if slices.Contains(m.GetPeerURLs(), peer) {
			return nil
		}
	}
	return fmt.Errorf("no member at %s", peer)
}

// removeMember removes the member of that name from etcd.
func (c *cluster) removeMember(ctx context.Context, name string) error {
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, m := range list.Members {
		if m.GetName() == name {
			_, err = c.etcd.MemberRemove(ctx, m.GetID())
			return err
		}
	}
	return nil
}

// hook puts etcd's hook on a Machine, as cluster-etcd-operator.
func (c *cluster) hook(ctx context.Context, name string) error {
	m, err := c.machine(ctx, name)
	if err != nil {
		return err
	}
	template, err := broken(name)
	if err != nil {
		return err
	}
	before := m.DeepCopy()
	m.Spec.LifecycleHooks.PreDrain = template.Spec.LifecycleHooks.PreDrain
	return c.as(sandbox.EtcdOperator).Patch(ctx, m, client.MergeFrom(before))
}
