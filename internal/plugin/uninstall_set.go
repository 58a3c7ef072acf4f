package plugin

import (
	"context"
	"fmt"
	"slices"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/holdfast-dev/holdfast/internal/cpms"
)

// ownSet is the ControlPlaneMachineSet that Holdfast keeps, nil if it keeps none.
func (u *uninstalling) ownSet(ctx context.Context) (*machinev1.ControlPlaneMachineSet, error) {
	set := &machinev1.ControlPlaneMachineSet{}
	switch err := u.Get(ctx, client.ObjectKey{Namespace: u.namespace, Name: cpms.Name}, set); {
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
	if err != nil || set == nil {
		return err
	}
	return stays(set)
}

func stays(set *machinev1.ControlPlaneMachineSet) error {
	if set.DeletionTimestamp == nil {
		return nil
	}
	return fmt.Errorf("ControlPlaneMachineSet %s is being deleted, and Holdfast first takes it off its Machines: wait until it is gone (kubectl -n %s get controlplanemachineset %s)", set.Name, set.Namespace, set.Name)
}

// leaveSet leaves the set to whoever keeps it next. Its MachineHealthCheck goes first: nothing holds what it deletes. Then the
// Machines get no owner, so that deleting the set deletes none of them, and at last it may be deleted.
func (u *uninstalling) leaveSet(ctx context.Context) error {
	if err := u.remove(ctx, healthCheck(u.namespace)); err != nil {
		return err
	}
	set, err := u.ownSet(ctx)
	if err != nil || set == nil {
		return err
	}
	if err := stays(set); err != nil {
		return err
	}
	isSet := func(r metav1.OwnerReference) bool { return r.UID == set.UID }
	if err := u.eachMachine(ctx, func(m *machinev1beta1.Machine) error {
		if !slices.ContainsFunc(m.OwnerReferences, isSet) {
			return nil
		}
		u.say("Machine %s: owner ControlPlaneMachineSet %s", m.Name, set.Name)
		return edit(ctx, u, client.ObjectKeyFromObject(m), func(m *machinev1beta1.Machine) error {
			m.OwnerReferences = slices.DeleteFunc(m.OwnerReferences, isSet)
			return nil
		})
	}); err != nil {
		return err
	}
	u.say("ControlPlaneMachineSet %s: finalizer %s", set.Name, cpms.Finalizer)
	return edit(ctx, u, client.ObjectKeyFromObject(set), func(set *machinev1.ControlPlaneMachineSet) error {
		controllerutil.RemoveFinalizer(set, cpms.Finalizer)
		return stays(set)
	})
}
