package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/holdfast-dev/holdfast/internal/cpms"
)

// ownSet is the ControlPlaneMachineSet that Holdfast keeps, nil if it keeps none.
func (u *uninstalling) ownSet(ctx context.Context) (*machinev1.ControlPlaneMachineSet, error) {
	set := &machinev1.ControlPlaneMachineSet{}
	switch err := u.Get(ctx, client.ObjectKey{Namespace: u.machines, Name: cpms.Name}, set); {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read ControlPlaneMachineSet %s: %w", cpms.Name, err)
	case !controllerutil.ContainsFinalizer(set, cpms.Finalizer):
		return nil, nil
	}
	return set, nil
}

// setStays refuses while the set is being deleted: without its finalizer it would be gone, and the garbage collector would delete the
// Machines that it owns.
func (u *uninstalling) setStays(ctx context.Context) error {
	set, err := u.ownSet(ctx)
	if err == nil && set != nil && set.DeletionTimestamp != nil {
		err = fmt.Errorf("ControlPlaneMachineSet %s is being deleted, and Holdfast first takes it off its Machines: wait until it is gone (kubectl -n %s get controlplanemachineset %s)", set.Name, u.machines, set.Name)
	}
	return err
}

// leaveSet leaves the set to whoever keeps it next. Its MachineHealthCheck goes first: nothing holds what it deletes. Then the
// Machines are owned by nobody, so that deleting the set deletes none of them, and at last it may be deleted.
func (u *uninstalling) leaveSet(ctx context.Context) error {
	if err := u.remove(ctx, healthCheck(u.machines)); err != nil {
		return err
	}
	set, err := u.ownSet(ctx)
	if err != nil || set == nil {
		return err
	}
	if err := u.setStays(ctx); err != nil {
		return err
	}
	all, err := u.list(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if !ownedBy(&all[i], set.UID) {
			continue
		}
		u.say("Machine %s: owner ControlPlaneMachineSet %s", all[i].Name, set.Name)
		if err := u.edit(ctx, &all[i], func(o client.Object) {
			o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == set.UID }))
		}); err != nil {
			return err
		}
	}
	u.say("ControlPlaneMachineSet %s: finalizer %s", set.Name, cpms.Finalizer)
	return u.edit(ctx, set, func(o client.Object) { controllerutil.RemoveFinalizer(o, cpms.Finalizer) })
}

func ownedBy(m *machinev1beta1.Machine, uid types.UID) bool {
	return slices.ContainsFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == uid })
}

// edit changes an object as it stands, again where somebody else was quicker. One that is gone needs no change, and one that is being
// deleted meanwhile gets none.
func (u *uninstalling) edit(ctx context.Context, o client.Object, change func(client.Object)) error {
	if u.dryRun {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return u.until(ctx, o.GetName()+" keeps changing, or may not be changed", func(ctx context.Context) (bool, error) {
		if err := u.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		if o.GetDeletionTimestamp() != nil {
			return false, fmt.Errorf("%s is being deleted; it was not changed", o.GetName())
		}
		before, is := o.DeepCopyObject().(client.Object)
		if !is {
			return false, fmt.Errorf("%T is no object", o)
		}
		change(o)
		err := u.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldManager)
		if apierrors.IsConflict(err) || apierrors.IsForbidden(err) { // API servers hear a moment later that the policies are gone
			return false, nil
		}
		return err == nil, client.IgnoreNotFound(err)
	})
}
