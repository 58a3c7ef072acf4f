package setcontroller

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"strings"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/observe"
)

// apply makes one action happen. A conflict, or an object that is there already or is gone, means: look again.
func (c *Controller) apply(ctx context.Context, set *observe.Set, a machineset.Action) error {
	switch change := a.Change.(type) {
	case machineset.TakeSet:
		return c.change(ctx, set.Object, func(o client.Object) {
			controllerutil.AddFinalizer(o, cpms.Finalizer)
			controllerutil.RemoveFinalizer(o, cpms.PlatformFinalizer)
		})
	case machineset.LeaveSet:
		return c.change(ctx, set.Object, func(o client.Object) {
			controllerutil.RemoveFinalizer(o, cpms.Finalizer)
			if o.GetDeletionTimestamp() == nil {
				controllerutil.AddFinalizer(o, cpms.PlatformFinalizer)
			} else if set.Facts.OtherOperator == "" {
				controllerutil.RemoveFinalizer(o, cpms.PlatformFinalizer)
			}
		})
	case machineset.Create:
		m, err := cpms.NewMachine(set.Object, set.Infrastructure, set.Trial, change, random(set.Object, change.Index))
		if err != nil {
			return fmt.Errorf("make a Machine from the set's template: %w", err)
		}
		if err := c.Client.Create(ctx, m); err != nil {
			return err
		}
		c.creations.created(m.Name, c.Observer.Clock.Now())
		return nil
	case machineset.Delete:
		m, err := c.machine(ctx, a)
		if err != nil {
			return err
		}
		seen := set.MachineVersions[m.UID] // the Machine that was decided on
		return c.Client.Delete(ctx, m, client.Preconditions{UID: &m.UID, ResourceVersion: &seen})
	case machineset.Adopt:
		return c.changeOwners(ctx, a, func(owners []metav1.OwnerReference) []metav1.OwnerReference {
			return append(owners, *metav1.NewControllerRef(set.Object, machinev1.GroupVersion.WithKind("ControlPlaneMachineSet")))
		})
	case machineset.Disown:
		return c.changeOwners(ctx, a, func(owners []metav1.OwnerReference) []metav1.OwnerReference {
			return slices.DeleteFunc(owners, func(o metav1.OwnerReference) bool { return o.UID == set.Object.UID })
		})
	}
	return fmt.Errorf("%s is not an action that can be applied", a.Describe())
}

// random is the random part of a new Machine's name. It depends only on the index and the state of the set, so that two replicas that
// both believe they are elected create one Machine, not two.
func random(set *machinev1.ControlPlaneMachineSet, index int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", set.UID, set.ResourceVersion, index))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:5]
}

// errNothingChanged: an action that changes nothing is planned again and again. As an error it is retried at longer and longer intervals.
var errNothingChanged = errors.New("the planned action changes nothing")

// change changes an object's metadata, if it is still as it was read.
func (c *Controller) change(ctx context.Context, read client.Object, change func(client.Object)) error {
	changed := read.DeepCopyObject().(client.Object)
	if change(changed); equality.Semantic.DeepEqual(changed, read) {
		return errNothingChanged
	}
	return c.Client.Patch(ctx, changed, client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{}))
}

// changeOwners changes a Machine's owner references, unless the Machine changes meanwhile.
func (c *Controller) changeOwners(ctx context.Context, a machineset.Action, change func([]metav1.OwnerReference) []metav1.OwnerReference) error {
	m, err := c.machine(ctx, a)
	if err != nil {
		return err
	}
	return c.change(ctx, m, func(o client.Object) { o.SetOwnerReferences(change(o.GetOwnerReferences())) })
}

// machine reads the Machine that an action is about, live. NotFound if another has its name now, or a Conflict if the
// action is Adopt and somebody controls the Machine.
func (c *Controller) machine(ctx context.Context, a machineset.Action) (*machinev1beta1.Machine, error) {
	var m machinev1beta1.Machine
	if err := c.Observer.API.Get(ctx, client.ObjectKey{Namespace: c.Observer.Namespace, Name: a.Machine}, &m); err != nil {
		return nil, err
	}
	resource := machinev1beta1.GroupVersion.WithResource("machines").GroupResource()
	if string(m.UID) != a.UID {
		return nil, apierrors.NewNotFound(resource, a.Machine)
	}
	if _, adopts := a.Change.(machineset.Adopt); adopts && (metav1.GetControllerOf(&m) != nil || m.DeletionTimestamp != nil) {
		return nil, apierrors.NewConflict(resource, a.Machine, fmt.Errorf("it has a controller, or is being deleted"))
	}
	return &m, nil
}
