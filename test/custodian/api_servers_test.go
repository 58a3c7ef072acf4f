package custodian_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/metrics"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestAPIServersBeside: in guard mode beside the stand-in and its quorum guard, with an API server on each host that knows that host's
// member alone, all hosts are drained and restarted in turn, as the machine config operator does, while one is replaced. The next drain begins
// while a host is down, and its host goes down as soon as it ends.
func TestAPIServersBeside(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Mode: "guard", APIServers: true, GuardPods: true})
	host, _ := c.Host("master-0")
	at, err := url.Parse(host.ClientURL)
	must(t, err)
	port, err := strconv.Atoi(at.Port())
	must(t, err)
	right := c.custodian(t, dial(t, c.Sandbox), custodian.Options{GuardPort: port})
	goOn(t, right, "the operator's hook, and latch and evidence with it, on every Machine", c.restless)
	c.watch(t, desired)
	operate := func() (stop func()) {
		running, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var work sync.WaitGroup
		work.Go(func() { _ = right.Run(running, glimpse) }) // what it could not do, it does later
		return func() { cancel(); work.Wait() }
	}
	stop := operate()
	defer func() { stop() }()
	c.guardAtRest(t)

	asks := func(what string, ask func(context.Context) error) {
		t.Helper()
		eventually(t, what, func(ctx context.Context) error { // a connection ends with the API server that it leads to
			if err := ask(ctx); !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
				return err
			}
			return nil
		})
	}
	asks("Machine master-0 deleted", func(ctx context.Context) error { return c.alice.Delete(ctx, named("master-0")) })
	c.replace(t, "master-1", "next")
	nodes := []string{"master-1", "master-2", "next"}
	down := &atomic.Int32{}
	drain := c.drains(t, nodes[0], down)
	for i, node := range nodes {
		eventually(t, "Node "+node+" drained and without power", func(ctx context.Context) error {
			if drain.over() != nil && c.blocked(ctx) {
				return nil
			}
			return drain.over()
		})
		if drain.over() != nil {
			// The machine controller drains no control-plane Node while another is cordoned, and the operator's budget counts the Node of the
			// deleted Machine. The machine config operator goes on when a person has paused it and uncordoned the Node, as Holdfast says.
			drain.stop()
			asks("Node "+node+" uncordoned", func(ctx context.Context) error {
				_, err := c.kubectl(ctx, "uncordon", node)
				return err
			})
			eventually(t, "Machine master-0 to go", func(ctx context.Context) error { return c.gone(ctx, "master-0") })
			drain = c.drains(t, node, down)
			eventually(t, "Node "+node+" drained and without power", func(context.Context) error { return drain.over() })
		}
		eventually(t, "no API server on "+node, func(context.Context) error {
			if host, _ := c.Host(node); host.Etcd != nil || host.APIServer != nil {
				return errors.New("it runs")
			}
			return nil
		})
		if i+1 < len(nodes) {
			drain = c.drains(t, nodes[i+1], down)
			eventually(t, "the budget to hold the drain of Node "+nodes[i+1], func(context.Context) error { return drain.waits() })
			c.guardSeen(t)
			if drain.over() == nil {
				t.Fatalf("Nodes %s and %s are down at once", node, nodes[i+1])
			}
		}
		down.Add(-1)
		must(t, c.Power(node, true))
		eventually(t, "an API server on "+node, func(context.Context) error {
			if host, _ := c.Host(node); !host.Serves {
				return errors.New("it does not serve")
			}
			return nil
		})
		asks("Node "+node+" uncordoned", func(ctx context.Context) error {
			_, err := c.kubectl(ctx, "uncordon", node)
			return err
		})
	}
	eventually(t, "Machine master-0 replaced", func(ctx context.Context) error { return errors.Join(c.gone(ctx, "master-0"), c.restless(ctx)) })
	c.guardAtRest(t)

	// With the operator away, nobody puts its budget right.
	stop()
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.EtcdNamespace, Name: machineapi.PlatformGuardName}}
	asks("no budget", func(ctx context.Context) error { return c.alice.Delete(ctx, budget) })
	c.reports(t, "QuorumGuardAbsent", -1)
	for least, reason := range map[int]string{desired - 2: "QuorumGuardTooSmall", desired: "QuorumGuardTooLarge"} {
		b := budget.DeepCopy()
		b.ResourceVersion, b.UID = "", ""
		machineapi.QuorumGuardForm{Platform: true}.Budget(b, least)
		asks(fmt.Sprintf("a budget for %d", least), func(ctx context.Context) error { return c.alice.Create(ctx, b) })
		c.reports(t, reason, least)
		asks("no budget", func(ctx context.Context) error { return c.alice.Delete(ctx, budget) })
	}
	stop = operate()
	c.guardAtRest(t)
	c.reports(t, "", desired-1)
}

func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	path, err := assets.Path("kubectl")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(sandbox.Alice))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return string(out), err
}

// drained is a drain under way, after which the host loses its power.
type drained struct {
	mu   sync.Mutex
	node string
	said string
	off  bool
	stop func()
}

// drains drains a Node, again and again until that succeeds, as the machine config operator does, and takes its host's power at once. The other
// voters have to answer then, and no other host may be down: down counts them.
func (c *cluster) drains(t *testing.T, node string, down *atomic.Int32) *drained {
	t.Helper()
	d := &drained{node: node}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			out, err := c.kubectl(ctx, "drain", node, "--force", "--timeout=5s")
			d.mu.Lock()
			d.said += out
			d.mu.Unlock()
			if err == nil {
				break
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err := c.othersAnswer(ctx, node); err != nil {
			t.Errorf("Node %s is drained: %v", node, err)
		}
		if n := down.Add(1); n > 1 {
			t.Errorf("%d hosts are down at once, %s the last of them", n, node)
		}
		err := c.Power(node, false)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.off = err == nil; err != nil {
			t.Errorf("host %s: %v", node, err)
		}
	})
	d.stop = func() {
		cancel()
		work.Wait()
	}
	t.Cleanup(d.stop)
	return d
}

// over says what is missing for the host to be down.
func (d *drained) over() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.off {
		return fmt.Errorf("the drain of Node %s has not ended: %s", d.node, d.said)
	}
	return nil
}

// blocked says whether Holdfast reports that a released Machine is not drained.
func (c *cluster) blocked(ctx context.Context) bool {
	series, err := metrics.Read(ctx, http.DefaultClient, c.MetricsURL())
	for key, n := range series {
		if err == nil && n > 0 && strings.Contains(key, `reason="DrainBlocked"`) {
			return true
		}
	}
	return false
}

// waits says what is missing for the budget to have held the drain.
func (d *drained) waits() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !strings.Contains(d.said, "violate the pod's disruption budget") && !d.off {
		return fmt.Errorf("no budget held it: %s", d.said)
	}
	return nil
}

// othersAnswer wants every voter but one to answer.
func (c *cluster) othersAnswer(ctx context.Context, but string) error {
	silent := map[string]error{}
	members, err := c.members(ctx)
	for name, m := range members {
		if m.GetIsLearner() || name == but {
			continue
		}
		call, cancel := context.WithTimeout(ctx, attempt)
		if _, err := c.etcd.Status(call, m.GetClientURLs()[0]); err != nil {
			silent[name] = err
		}
		cancel()
	}
	now, unread := c.members(ctx)
	errs := []error{err, unread}
	for name, err := range silent {
		if now[name] != nil { // else it left etcd meanwhile
			errs = append(errs, fmt.Errorf("voter %s does not answer: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// budget is the operator's.
func (c *cluster) budget(ctx context.Context) (*policyv1.PodDisruptionBudget, error) {
	b := &policyv1.PodDisruptionBudget{}
	err := c.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: machineapi.PlatformGuardName}, b)
	if err == nil && (b.Spec.MinAvailable == nil || b.Status.ObservedGeneration != b.Generation) {
		err = errors.New("the budget is not ready")
	}
	return b, err
}

// guardSeen wants Holdfast's series to have the operator's budget and its pods as they are, and no reason for the alert: its expression does
// not hold.
func (c *cluster) guardSeen(t *testing.T) {
	t.Helper()
	eventually(t, "Holdfast's series of the operator's quorum guard to be true", func(ctx context.Context) error {
		b, err := c.budget(ctx)
		if err != nil {
			return err
		}
		series, err := metrics.Read(ctx, http.DefaultClient, c.MetricsURL())
		if err != nil {
			return err
		}
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		voters := 0.0
		for _, m := range members {
			if !m.GetIsLearner() {
				voters++
			}
		}
		least, pods, wanted := series["holdfast_quorum_guard_min_available"], series["holdfast_quorum_guard_pods"], series["holdfast_quorum_guard_pods_wanted"]
		if least != float64(b.Spec.MinAvailable.IntValue()) || pods != wanted || least < voters-1 || least > max(voters, wanted) {
			return fmt.Errorf("minAvailable %v, %v pods, %v wanted; the budget has %s, and etcd %v voters", least, pods, wanted, b.Spec.MinAvailable, voters)
		}
		return reasons(series)
	})
}

// reasons wants the reasons of holdfast_condition that are about the quorum guard to be these.
func reasons(series metrics.Page, want ...string) error {
	var is []string
	for key, n := range series {
		if at := strings.Index(key, `reason="QuorumGuard`); at >= 0 && n > 0 {
			reason, _, _ := strings.Cut(key[at+len(`reason="`):], `"`)
			if !slices.Contains(is, reason) {
				is = append(is, reason)
			}
		}
	}
	if !slices.Equal(is, want) {
		return fmt.Errorf("Holdfast reports %q of the quorum guard, want %q", is, want)
	}
	return nil
}

// reports waits until Holdfast's condition has the reason, "" for none about the quorum guard, and its series the budget's number, -1 for
// no budget.
func (c *cluster) reports(t *testing.T, reason string, least int) {
	t.Helper()
	eventually(t, fmt.Sprintf("Holdfast to report %q with a budget of %d", reason, least), func(ctx context.Context) error {
		series, err := metrics.Read(ctx, http.DefaultClient, c.MetricsURL())
		if err != nil {
			return err
		}
		if n, ok := series["holdfast_quorum_guard_min_available"]; ok != (least >= 0) || ok && n != float64(least) {
			return fmt.Errorf("the series is %v", n)
		}
		if reason == "" {
			return reasons(series)
		}
		return reasons(series, reason)
	})
}

// guardAtRest waits until the operator's quorum guard has a ready pod on each Node, and one of them may be evicted.
func (c *cluster) guardAtRest(t *testing.T) {
	t.Helper()
	eventually(t, "the operator's quorum guard at rest", func(ctx context.Context) error {
		b, err := c.budget(ctx)
		if err != nil {
			return err
		}
		var nodes corev1.NodeList
		if err := c.admin.List(ctx, &nodes); err != nil {
			return err
		}
		n := len(nodes.Items)
		if b.Spec.MinAvailable.IntValue() != n-1 || int(b.Status.CurrentHealthy) != n || b.Status.DisruptionsAllowed != 1 {
			err := fmt.Errorf("%d Nodes, minAvailable %s, %d pods ready, %d disruptions allowed", n, b.Spec.MinAvailable, b.Status.CurrentHealthy, b.Status.DisruptionsAllowed)
			var pods corev1.PodList
			if unread := c.admin.List(ctx, &pods, client.InNamespace(sandbox.EtcdNamespace)); unread != nil {
				return errors.Join(err, unread)
			}
			for i := range pods.Items {
				err = errors.Join(err, fmt.Errorf("%s: %s %v", pods.Items[i].Name, pods.Items[i].Status.Phase, pods.Items[i].Status.Conditions))
			}
			return err
		}
		return nil
	})
	c.guardSeen(t)
}
