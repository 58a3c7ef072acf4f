package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// QuorumGuard reads and writes the quorum guard's budget and pods; cluster-etcd-operator's it only reads. Make one with NewQuorumGuard.
type QuorumGuard struct {
	api    client.WithWatch // without a cache
	form   machineapi.QuorumGuardForm
	writes *rate.Limiter
}

// NewQuorumGuard keeps the quorum guard in that form. The client is one without a cache.
func NewQuorumGuard(api client.WithWatch, form machineapi.QuorumGuardForm) *QuorumGuard {
	return &QuorumGuard{
		api: api, form: form,
		// Who edits an object again and again is answered at this pace, not in a hot loop.
		writes: rate.NewLimiter(rate.Every(2*time.Second), 10),
	}
}

// readGuard reads the quorum guard, live. Only rounds call it, one after the other.
func (k *QuorumGuard) readGuard(ctx context.Context) (quorum.Guard, error) {
	ctx, cancel := context.WithTimeout(ctx, observe.APITimeout)
	defer cancel()
	var (
		namespace corev1.Namespace
		budget    = &policyv1.PodDisruptionBudget{}
		pods      corev1.PodList
	)
	var group errgroup.Group
	group.Go(func() error {
		if k.form.Platform {
			return nil // without its namespace there is no budget either
		}
		if err := k.api.Get(ctx, client.ObjectKey{Name: k.form.Namespace}, &namespace); err != nil {
			return fmt.Errorf("read Namespace %s: %w", k.form.Namespace, err)
		}
		return nil
	})
	group.Go(func() error {
		there, err := k.read(ctx, budget)
		if !there {
			budget = nil
		}
		return err
	})
	group.Go(func() error {
		if err := k.api.List(ctx, &pods, client.InNamespace(k.form.Namespace), client.MatchingLabels(k.form.Labels())); err != nil {
			return fmt.Errorf("list pods in namespace %s: %w", k.form.Namespace, err)
		}
		return nil
	})
	err := group.Wait()
	absent := func(format string, args ...any) (quorum.Guard, error) {
		return quorum.Guard{Managed: !k.form.Platform, Absent: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case apierrors.IsNotFound(err):
		return absent("namespace %s does not exist; create it, or set --quorum-guard=false", k.form.Namespace)
	case apierrors.IsForbidden(err):
		// Rights are bound in a namespace, so without the namespace this may be said first.
		return absent("Holdfast has no rights in namespace %s, or there is none: %v", k.form.Namespace, err)
	case err != nil && k.form.Platform:
		return quorum.Guard{}, nil // nothing is decided by it, so the round goes on
	case err != nil:
		return quorum.Guard{}, err
	case namespace.DeletionTimestamp != nil:
		return absent("namespace %s is being deleted", k.form.Namespace)
	}
	return k.form.Guard(budget, pods.Items), nil
}

// read gets the budget, if there is one.
func (k *QuorumGuard) read(ctx context.Context, budget *policyv1.PodDisruptionBudget) (there bool, err error) {
	err = k.api.Get(ctx, client.ObjectKey{Namespace: k.form.Namespace, Name: k.form.BudgetName()}, budget)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read PodDisruptionBudget %s/%s: %w", k.form.Namespace, k.form.BudgetName(), err)
	}
	return true, nil
}

// writeBudget writes the budget, if it is still the one of that version: whoever was elected after this replica had looked may have
// raised it since, and promoted a member on the strength of that.
func (k *QuorumGuard) writeBudget(ctx context.Context, minAvailable int, version string) error {
	if !k.writes.Allow() {
		return notYet{fmt.Errorf("the quorum guard was written often just now: is somebody else changing PodDisruptionBudget %s in namespace %s?", machineapi.GuardName, k.form.Namespace)}
	}
	budget := &policyv1.PodDisruptionBudget{}
	there, err := k.read(ctx, budget)
	if err != nil {
		return err
	}
	stands := ""
	if there {
		stands = machineapi.GuardVersion(budget)
	}
	if stands != version {
		return errChanged
	}
	k.form.Budget(budget, minAvailable)
	want := budget.Spec.DeepCopy()
	if there {
		err = k.api.Update(ctx, budget) // its resourceVersion keeps it from undoing what came between
	} else {
		budget.Namespace, budget.Name, budget.Labels = k.form.Namespace, machineapi.GuardName, k.form.Labels()
		err = k.api.Create(ctx, budget)
	}
	if err == nil && !equality.Semantic.DeepEqual(budget.Spec, *want) {
		return fmt.Errorf("the API server took PodDisruptionBudget %s/%s, and a webhook has changed it: see which change PodDisruptionBudgets (kubectl get mutatingwebhookconfigurations)",
			k.form.Namespace, machineapi.GuardName)
	}
	return written(err, fmt.Sprintf("write PodDisruptionBudget %s/%s", k.form.Namespace, machineapi.GuardName))
}

// createPod makes the guard pod of a Node, for the budget that stands.
func (k *QuorumGuard) createPod(ctx context.Context, node string, address netip.Addr) error {
	budget := &policyv1.PodDisruptionBudget{}
	there, err := k.read(ctx, budget)
	if err != nil {
		return err
	}
	if !there {
		return notYet{errors.New("the quorum guard has no budget yet")}
	}
	pod := k.form.Pod(node, address, budget)
	if err := k.api.Create(ctx, pod); err != nil {
		return fmt.Errorf("create pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// deletePod deletes a pod of the guard, if it is still that one.
func (k *QuorumGuard) deletePod(ctx context.Context, name, uid string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.form.Namespace, Name: name}}
	err := client.IgnoreNotFound(k.api.Delete(ctx, pod, client.Preconditions{UID: new(types.UID(uid))}))
	return written(err, fmt.Sprintf("delete pod %s/%s", k.form.Namespace, name))
}

// follow reports changes of the guard's budget and pods. It is not the manager's cache that watches, because that keeps the manager from
// starting where it has no rights yet.
func (k *QuorumGuard) follow(ctx context.Context, changed func()) {
	in, named := client.InNamespace(k.form.Namespace), client.MatchingFields{"metadata.name": machineapi.GuardName}
	go observe.Follow(ctx, k.api, policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudgetList"), changed, in, named)
	go observe.Follow(ctx, k.api, corev1.SchemeGroupVersion.WithKind("PodList"), changed, in, client.MatchingLabels(k.form.Labels()))
}
