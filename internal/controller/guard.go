package controller

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// GuardKeeper reads and writes the quorum guard's objects. Make one with NewGuardKeeper.
type GuardKeeper struct {
	api    client.WithWatch // without a cache
	form   machineapi.GuardForm
	writes *rate.Limiter
	judged map[types.UID]judgement
}

// judgement is whether an object is as Holdfast writes it, at that generation of its spec.
type judgement struct {
	generation int64
	intact     bool
}

// NewGuardKeeper keeps the quorum guard in that form. The client is one without a cache.
func NewGuardKeeper(api client.WithWatch, form machineapi.GuardForm) *GuardKeeper {
	return &GuardKeeper{
		api: api, form: form, judged: map[types.UID]judgement{},
		// Who edits an object again and again is answered at this pace, not in a hot loop.
		writes: rate.NewLimiter(rate.Every(5*time.Second), 10),
	}
}

// snapshot reads the cluster, with what is remembered of etcd's members.
func (r *Reconciler) snapshot(ctx context.Context) (*quorum.Snapshot, error) {
	s, err := r.Gatherer.Snapshot(ctx)
	if err == nil {
		r.memory.Recall(s)
	}
	return s, err
}

// look reads the cluster, and what the webhooks have no use for: the quorum guard, and whether somebody else
// changes etcd's members or has the lock for that.
func (r *Reconciler) look(ctx context.Context) (*quorum.Snapshot, error) {
	var (
		s      *quorum.Snapshot
		guard  quorum.DrainGuard
		driver string
		lock   quorum.Lock
	)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s, err = r.snapshot(ctx)
		return err
	})
	group.Go(func() error {
		driver = r.otherDriver(ctx)
		return nil
	})
	if r.Gatherer.Mode == quorum.Full {
		group.Go(func() error {
			var err error
			if lock, err = r.Etcd.LockHolder(ctx); err != nil {
				r.Log.V(1).Info("not known", "reason", err.Error()) // who wants the lock finds out
			}
			return nil
		})
	}
	if r.Guard != nil {
		group.Go(func() (err error) {
			guard, err = r.Guard.gather(ctx)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	s.Guard, s.OtherDriver = guard, driver
	if lock.Key != r.lock.Key {
		r.lock = lock
		r.lock.Since = s.Now
	}
	if lock.Key != "" {
		s.Lock = r.lock
	}
	return s, nil
}

// gather reads the quorum guard, live. Only rounds call it, one after the other.
func (k *GuardKeeper) gather(ctx context.Context) (quorum.DrainGuard, error) {
	ctx, cancel := context.WithTimeout(ctx, apiBound)
	defer cancel()
	var (
		namespace  corev1.Namespace
		budget     = &policyv1.PodDisruptionBudget{}
		deployment = &appsv1.Deployment{}
		pods       corev1.PodList
	)
	var group errgroup.Group
	group.Go(func() error {
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
		there, err := k.read(ctx, deployment)
		if !there {
			deployment = nil
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
	absent := func(format string, args ...any) (quorum.DrainGuard, error) {
		return quorum.DrainGuard{Managed: true, Absent: fmt.Sprintf(format, args...)}, nil
	}
	switch {
	case apierrors.IsNotFound(err):
		return absent("namespace %s does not exist; create it, or set --quorum-guard=false", k.form.Namespace)
	case apierrors.IsForbidden(err):
		// Rights are bound in a namespace, so without the namespace this may be said first.
		return absent("Holdfast has no rights in namespace %s, or there is none: %v", k.form.Namespace, err)
	case err != nil:
		return quorum.DrainGuard{}, err
	case namespace.DeletionTimestamp != nil:
		return absent("namespace %s is being deleted", k.form.Namespace)
	}
	g := machineapi.Guard(budget, deployment, pods.Items)
	if g.MinAvailable >= 0 && g.Replicas >= 0 {
		as := *budget.DeepCopy()
		k.form.Budget(&as, g.MinAvailable+1)
		would := *deployment.DeepCopy()
		k.form.Deployment(&would, g.Replicas)
		g.Intact = k.intact(ctx, &as) && k.intact(ctx, &would)
	}
	return g, nil
}

// read gets the guard's object of that type, if there is one.
func (k *GuardKeeper) read(ctx context.Context, o client.Object) (there bool, err error) {
	err = k.api.Get(ctx, client.ObjectKey{Namespace: k.form.Namespace, Name: machineapi.GuardName}, o)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s/%s: %w", o, k.form.Namespace, machineapi.GuardName, err)
	}
	return true, nil
}

// intact says whether writing the object would change nothing. Only the API server knows, which fills
// in defaults and asks webhooks that change objects: what they add is no edit to fight. It is asked once for
// each generation.
func (k *GuardKeeper) intact(ctx context.Context, would client.Object) bool {
	uid, generation := would.GetUID(), would.GetGeneration()
	if was, ok := k.judged[uid]; ok && was.generation == generation {
		return was.intact
	}
	switch err := k.api.Update(ctx, would, client.DryRunAll); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return true // it changed since it was read, which is a reason to look again
	case err != nil:
		return false // the write proper meets the same, and says so
	}
	intact := would.GetGeneration() == generation
	if len(k.judged) > 100 {
		clear(k.judged) // each object that was deleted left one
	}
	k.judged[uid] = judgement{generation, intact}
	return intact
}

// size writes both objects for that many control-plane Machines.
func (k *GuardKeeper) size(ctx context.Context, machines int) error {
	if !k.writes.Allow() {
		return notYet{fmt.Errorf("the quorum guard was written often just now: is somebody else changing %s in namespace %s?", machineapi.GuardName, k.form.Namespace)}
	}
	budget, deployment := &policyv1.PodDisruptionBudget{}, &appsv1.Deployment{}
	if err := k.write(ctx, budget, func() { k.form.Budget(budget, machines) }); err != nil {
		return err
	}
	return k.write(ctx, deployment, func() { k.form.Deployment(deployment, machines) })
}

// write creates the object, or changes the one that is there as it was read.
func (k *GuardKeeper) write(ctx context.Context, o client.Object, change func()) error {
	there, err := k.read(ctx, o)
	if err != nil {
		return err
	}
	change()
	if there {
		err = k.api.Update(ctx, o) // its resourceVersion keeps it from undoing what came between
	} else {
		o.SetNamespace(k.form.Namespace)
		o.SetName(machineapi.GuardName)
		o.SetLabels(k.form.Labels())
		err = k.api.Create(ctx, o)
	}
	switch {
	case there && apierrors.IsInvalid(err):
		// A Deployment's selector is for ever: one that somebody made with another has to go first.
		uid, version := o.GetUID(), o.GetResourceVersion()
		err = k.api.Delete(ctx, o, client.Preconditions{UID: &uid, ResourceVersion: &version}, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if err == nil {
			err = errChanged
		}
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		err = notYet{err}
	}
	if err != nil {
		return fmt.Errorf("write %T %s/%s: %w", o, k.form.Namespace, machineapi.GuardName, err)
	}
	return nil
}

// deletePod deletes a pod of the guard, if it is still that one.
func (k *GuardKeeper) deletePod(ctx context.Context, name, uid string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.form.Namespace, Name: name}}
	id := types.UID(uid)
	err := k.api.Delete(ctx, pod, client.Preconditions{UID: &id})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return notYet{err}
	}
	if err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", k.form.Namespace, name, err)
	}
	return nil
}

// watch wakes the reconciler whenever one of the guard's objects or pods changes. It is not the manager's
// cache that watches, because that keeps the manager from starting where it has no rights yet.
func (k *GuardKeeper) watch(wake func(queue) func()) func(context.Context, queue) error {
	return func(ctx context.Context, q queue) error {
		named := client.MatchingFields{"metadata.name": machineapi.GuardName}
		for kind, which := range map[schema.GroupVersionKind]client.ListOption{
			policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudgetList"): named,
			appsv1.SchemeGroupVersion.WithKind("DeploymentList"):            named,
			corev1.SchemeGroupVersion.WithKind("PodList"):                   client.MatchingLabels(k.form.Labels()),
		} {
			go follow(ctx, k.api, kind, wake(q), client.InNamespace(k.form.Namespace), which)
		}
		return nil
	}
}

// follow calls changed for each change until the context ends. Whatever it misses between two watches,
// the next one's beginning or the next round finds.
func follow(ctx context.Context, api client.WithWatch, kind schema.GroupVersionKind, changed func(), which ...client.ListOption) {
	again := time.NewTicker(2 * time.Second)
	defer again.Stop()
	for {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if watcher, err := api.Watch(ctx, list, which...); err == nil {
			for range watcher.ResultChan() {
				changed()
			}
			watcher.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}
