package scenario_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
)

// drains is how long a few Machines may take that are deleted at once. machine-api-operator drains
// one control-plane Node after the other, and looks every 20 s whether it is the next one's turn.
const drains = 6 * time.Minute

// TestGuardPods tells what becomes of the quorum guard on one control plane of three, with the real
// controllers of budgets and of owners, and real drains.
func TestGuardPods(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--max-deleting=0"}})
	c.watch(t, 3)
	c.atRest(t)
	c.guardAtRest(t)

	t.Run("a new member waits for the guard pod of its Node", func(t *testing.T) {
		allow := c.forbidPod(t, "first-0")
		must(t, c.remove(t.Context(), "master-0"))
		must(t, c.replacement(t.Context(), "master-0", "first-0"))
		c.nodeReady(t, "first-0")
		NewWithT(t).Consistently(t.Context(), func(ctx context.Context) (int, error) {
			list, err := c.members(ctx)
			return len(list), err
		}).WithTimeout(3*time.Second).WithPolling(glimpse).Should(Equal(3), "members, while the new Node has no guard pod")
		allow()
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
			"no budget": func(ctx context.Context) error {
				return c.as(sandbox.Alice).Delete(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
			},
			"no pod": func(ctx context.Context) error {
				return c.as(sandbox.Alice).Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name + "-master-1"}})
			},
		} {
			before, err := c.quorumGuard(t.Context())
			must(t, err)
			must(t, edit(t.Context()))
			began := time.Now()
			// Whoever edits often is answered once in two seconds.
			eventually(t, 15*time.Second, what+" restored", func(ctx context.Context) error {
				now, err := c.quorumGuard(ctx)
				if err == nil && (now.spec != before.spec || now.pods != before.pods) {
					err = errors.New("not as it was")
				}
				return err
			})
			t.Logf("%s: restored in %d ms", what, time.Since(began).Milliseconds())
		}
		c.guardAtRest(t)
	})

	t.Run("nobody else's pod counts", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.EtcdNamespace, Name: "forged", Labels: machineapi.QuorumGuardForm{}.Labels()}}
		pod.Spec.Containers = []corev1.Container{{Name: "pause", Image: "pause"}}
		if err := c.as(sandbox.GitOps).Create(t.Context(), pod); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Refused (own-records)") {
			t.Errorf("a forged guard pod: %v", err)
		}
	})

	t.Run("a Machine without a Node takes no drain away", func(t *testing.T) {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: sandbox.MachineNamespace, Name: "lost", Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master"},
		}}
		m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{}`)} // of which no instance can be made
		must(t, c.as(sandbox.Alice).Create(t.Context(), m))
		eventually(t, quickly, "the Machine to be seen", func(ctx context.Context) error {
			if m, err := c.seen(ctx, "lost"); err != nil || !m.Finalizer {
				return fmt.Errorf("finalizer %t: %w", m.Finalizer, err)
			}
			return nil
		})
		c.atRest(t)
		c.guardAtRest(t)
		must(t, c.remove(t.Context(), "lost"))
		c.gone(t, quickly, "lost")
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
	must(t, c.hook(t.Context(), "master-0"))
	c.atRest(t) // so it has looked, and written what it does write
	var now policyv1.PodDisruptionBudget
	must(t, c.as(sandbox.Admin).Get(t.Context(), client.ObjectKeyFromObject(budget), &now))
	if now.ResourceVersion != budget.ResourceVersion {
		t.Errorf("the budget was changed to %+v", now.Spec)
	}
	var pods corev1.PodList
	must(t, c.as(sandbox.Admin).List(t.Context(), &pods))
	if len(pods.Items) > 0 {
		t.Errorf("there is a pod %s", pods.Items[0].Name)
	}
}

// standing is the quorum guard as it stands.
type standing struct {
	budget, allowed int
	ready           []string // the Nodes of ready pods, in order
	pods            int      // that Holdfast made for the budget
	spec            string   // of the budget
}

func (c *cluster) quorumGuard(ctx context.Context) (standing, error) {
	var (
		budget policyv1.PodDisruptionBudget
		pods   corev1.PodList
	)
	key := client.ObjectKey{Namespace: sandbox.EtcdNamespace, Name: machineapi.GuardName}
	err := errors.Join(
		c.as(sandbox.Admin).Get(ctx, key, &budget),
		c.as(sandbox.Admin).List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingLabels(machineapi.QuorumGuardForm{}.Labels())),
	)
	if err != nil {
		return standing{}, err
	}
	g := machineapi.QuorumGuardForm{}.Guard(&budget, pods.Items)
	if g.MinAvailable == nil {
		return standing{}, errors.New("there is no budget")
	}
	out := standing{budget: *g.MinAvailable}
	spec, err := json.Marshal(budget.Spec)
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
		if p.Owner != quorum.PodOwnerGuard || p.Deleting {
			continue
		}
		out.pods++
		if p.Ready {
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
		if slices.Sort(names); !slices.Equal(names, g.ready) || g.pods != len(names) || g.budget != len(names)-1 || g.allowed != 1 {
			return fmt.Errorf("Nodes %q, ready pods on %q of %d, minAvailable %d, %d disruptions allowed", names, g.ready, g.pods, g.budget, g.allowed)
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

// forbidPod has the API server refuse the guard pod of a Node until allow is called.
func (c *cluster) forbidPod(t *testing.T, node string) (allow func()) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-pod"}}
	policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		},
	}}}
	policy.Spec.Validations = []admissionregistrationv1.Validation{{Expression: fmt.Sprintf("object.?spec.?nodeName.orValue('') != %q", node)}}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "no-pod"}}
	binding.Spec.PolicyName, binding.Spec.ValidationActions = policy.Name, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	admin := c.as(sandbox.Admin)
	must(t, admin.Create(t.Context(), policy))
	must(t, admin.Create(t.Context(), binding))
	eventually(t, quickly, "the pod to be refused", func(ctx context.Context) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Namespace: "default"}}
		pod.Spec.NodeName, pod.Spec.Containers = node, []corev1.Container{{Name: "c", Image: "i"}}
		if err := admin.Create(ctx, pod, client.DryRunAll); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no-pod") {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
	return func() {
		must(t, admin.Delete(t.Context(), binding))
		must(t, admin.Delete(t.Context(), policy))
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
