package scenario_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// drains is how long a few Machines may take that are deleted at once. machine-api-operator drains
// one control-plane Node after the other, and looks every 20 s whether it is the next one's turn.
const drains = 150 * time.Second

// TestGuardPods tells what becomes of the quorum guard on one control plane of three, with the real
// controllers of Deployments and budgets, and real drains.
func TestGuardPods(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--max-deleting=0"}})
	c.watch(t, 3)
	c.atRest(t)
	c.guardAtRest(t)

	t.Run("a new member waits for the guard pod of its Node", func(t *testing.T) {
		must(t, c.Scheduler.Stop())
		t.Cleanup(func() { must(t, c.Scheduler.Start()) })
		must(t, c.remove(t.Context(), "master-0"))
		must(t, c.replacement(t.Context(), "master-0", "first-0"))
		c.nodeReady(t, "first-0")
		eventually(t, quickly, "a budget of 3", func(ctx context.Context) error {
			g, err := c.quorumGuard(ctx)
			if err == nil && (g.budget != 3 || g.replicas != 4) {
				err = fmt.Errorf("minAvailable %d, replicas %d", g.budget, g.replicas)
			}
			return err
		})
		NewWithT(t).Consistently(t.Context(), func(ctx context.Context) (int, error) {
			list, err := c.members(ctx)
			return len(list), err
		}).WithTimeout(3*time.Second).WithPolling(glimpse).Should(Equal(3), "members, while the new Node has no guard pod")
		must(t, c.Scheduler.Start())
		c.becomes(t, "first-0", "voter")
		began := time.Now()
		c.gone(t, slowly, "master-0")
		t.Logf("drained and gone %.1f s after its replacement voted", time.Since(began).Seconds())
		c.atRest(t)
		c.guardAtRest(t)
	})

	t.Run("edited and deleted", func(t *testing.T) {
		key := client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: machineapi.GuardName}
		for what, edit := range map[string]func(context.Context) error{
			"the budget's number": c.edit(key, &policyv1.PodDisruptionBudget{}, `{"spec":{"minAvailable":1}}`),
			"the budget's sense":  c.edit(key, &policyv1.PodDisruptionBudget{}, `{"spec":{"minAvailable":null,"maxUnavailable":"100%"}}`),
			"the budget's pods":   c.edit(key, &policyv1.PodDisruptionBudget{}, `{"spec":{"selector":{"matchLabels":{"app.kubernetes.io/name":"nobody"}}}}`),
			"the number of pods":  c.edit(key, &appsv1.Deployment{}, `{"spec":{"replicas":0}}`),
			"where the pods go":   c.edit(key, &appsv1.Deployment{}, `{"spec":{"template":{"spec":{"nodeSelector":{"no":"where"}}}}}`),
			"the probe":           c.edit(key, &appsv1.Deployment{}, `{"spec":{"template":{"spec":{"containers":[{"name":"guard","readinessProbe":{"exec":{"command":["true"]}}}]}}}}`),
			"no budget": func(ctx context.Context) error {
				return c.as(sandbox.Alice).Delete(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
			},
			"no Deployment": func(ctx context.Context) error {
				return c.as(sandbox.Alice).Delete(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
			},
		} {
			before, err := c.quorumGuard(t.Context())
			must(t, err)
			must(t, edit(t.Context()))
			began := time.Now()
			// Whoever edits often is answered once in five seconds.
			eventually(t, 15*time.Second, what+" restored", func(ctx context.Context) error {
				now, err := c.quorumGuard(ctx)
				if err == nil && now.spec != before.spec {
					err = errors.New("not as it was")
				}
				return err
			})
			t.Logf("%s: restored in %d ms", what, time.Since(began).Milliseconds())
		}
		c.guardAtRest(t)
	})

	t.Run("with a dead member nothing else may be drained", func(t *testing.T) {
		must(t, c.Power("master-2", false))
		var ready []string
		eventually(t, slowly, "the budget to be used up", func(ctx context.Context) error {
			g, err := c.quorumGuard(ctx)
			if ready = g.ready; err == nil && (g.allowed != 0 || len(ready) != 2) {
				err = fmt.Errorf("%d disruptions are allowed, pods are ready on %q", g.allowed, ready)
			}
			return err
		})
		for _, node := range ready {
			if err := c.evict(t.Context(), node); !apierrors.IsTooManyRequests(err) {
				t.Errorf("the eviction of the guard pod on %s: %v, want 429", node, err)
			}
		}
		must(t, c.Power("master-2", true))
		c.guardAtRest(t)
	})

	// Each of these drains would wait for the budget: two or three Nodes' pods at once are one too many.
	for _, story := range [][2][]string{
		{{"master-1", "master-2"}, {"first-1", "first-2"}},
		{{"first-0", "first-1", "first-2"}, {"second-0", "second-1", "second-2"}},
	} {
		t.Run(fmt.Sprintf("%d Machines deleted at once", len(story[0])), func(t *testing.T) {
			for _, name := range story[0] {
				must(t, c.remove(t.Context(), name))
			}
			for i, name := range story[1] {
				must(t, c.replacement(t.Context(), story[0][i], name))
			}
			began := time.Now()
			for _, name := range story[0] {
				c.gone(t, drains, name)
				t.Logf("Machine %s gone after %.1f s", name, time.Since(began).Seconds())
			}
			c.atRest(t)
			c.guardAtRest(t)
		})
	}
}

// TestGuardPodsLeftAlone: guard mode neither makes a quorum guard nor mends one that is there.
func TestGuardPodsLeftAlone(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 1, Mode: "guard"})
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.EtcdNamespace, Name: machineapi.GuardName}}
	must(t, c.as(sandbox.Alice).Create(t.Context(), budget))
	must(t, c.hook(t.Context(), sandbox.EtcdOperator, "master-0"))
	c.atRest(t) // so it has looked, and written what it does write
	var now policyv1.PodDisruptionBudget
	must(t, c.as(sandbox.Admin).Get(t.Context(), client.ObjectKeyFromObject(budget), &now))
	if now.ResourceVersion != budget.ResourceVersion {
		t.Errorf("the budget was changed to %+v", now.Spec)
	}
	var deployments appsv1.DeploymentList
	must(t, c.as(sandbox.Admin).List(t.Context(), &deployments))
	if len(deployments.Items) > 0 {
		t.Errorf("there is a Deployment %s", deployments.Items[0].Name)
	}
}

// standing is the quorum guard as it stands.
type standing struct {
	budget, replicas, allowed int
	ready                     []string // the Nodes of ready pods, in order
	pods                      int
	spec                      string // of both objects
}

func (c *cluster) quorumGuard(ctx context.Context) (standing, error) {
	var (
		budget     policyv1.PodDisruptionBudget
		deployment appsv1.Deployment
		pods       corev1.PodList
	)
	key := client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: machineapi.GuardName}
	err := errors.Join(
		c.as(sandbox.Admin).Get(ctx, key, &budget), c.as(sandbox.Admin).Get(ctx, key, &deployment),
		c.as(sandbox.Admin).List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingLabels(machineapi.GuardForm{}.Labels())),
	)
	if err != nil {
		return standing{}, err
	}
	g := machineapi.Guard(&budget, &deployment, pods.Items)
	out := standing{
		budget: g.MinAvailable, replicas: g.Replicas, pods: len(g.Pods),
	}
	spec, err := json.Marshal([]any{budget.Spec, deployment.Spec})
	if err != nil {
		return standing{}, err
	}
	out.spec = string(spec)
	if budget.Status.ObservedGeneration == budget.Generation {
		out.allowed = int(budget.Status.DisruptionsAllowed)
	} else {
		out.allowed = -1
	}
	for _, p := range g.Pods {
		if p.Ready && !p.Deleting {
			out.ready = append(out.ready, p.Node)
		}
	}
	slices.Sort(out.ready)
	return out, nil
}

// guardAtRest waits until there is a ready guard pod on each Node, and the budget can spare one.
func (c *cluster) guardAtRest(t *testing.T) {
	t.Helper()
	eventually(t, slowly, "the quorum guard at rest", func(ctx context.Context) error {
		g, err := c.quorumGuard(ctx)
		if err != nil {
			return err
		}
		var nodes corev1.NodeList
		if err := c.as(sandbox.Admin).List(ctx, &nodes); err != nil {
			return err
		}
		var names []string
		for _, n := range nodes.Items {
			names = append(names, n.Name)
		}
		if slices.Sort(names); !slices.Equal(names, g.ready) || g.pods != len(names) || g.budget != len(names)-1 || g.replicas != len(names) || g.allowed != 1 {
			return fmt.Errorf("Nodes %q, ready pods on %q of %d, minAvailable %d, replicas %d, %d disruptions allowed", names, g.ready, g.pods, g.budget, g.replicas, g.allowed)
		}
		return nil
	})
}

// edit is a patch by a person.
func (c *cluster) edit(key client.ObjectKey, o client.Object, patch string) func(context.Context) error {
	return func(ctx context.Context) error {
		o.SetNamespace(key.Namespace)
		o.SetName(key.Name)
		return c.as(sandbox.Alice).Patch(ctx, o, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	}
}

// evict asks for the eviction of the guard pod on a Node, as a drain does.
func (c *cluster) evict(ctx context.Context, node string) error {
	var pods corev1.PodList
	if err := c.as(sandbox.Admin).List(ctx, &pods, client.InNamespace(sandbox.EtcdNamespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			return c.as(sandbox.Alice).SubResource("eviction").Create(ctx, p, &policyv1.Eviction{})
		}
	}
	return fmt.Errorf("no guard pod on Node %s", node)
}
