package setcontroller

import (
	"context"
	"fmt"
	"time"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// startupLimit is how long a Machine may take to get a Node.
const startupLimit = 20 * time.Minute

// keepHealthCheck makes the set's MachineHealthCheck, or deletes it where the set keeps none. Of one that is there it puts right which
// Machines it is about, after how long they are unhealthy and how many may be; the rest is for people to change. One of that name that
// is not the set's is left alone. While the set is deleted, one without an owner is the set's: with orphan propagation the garbage collector takes
// the owner off.
func (c *Controller) keepHealthCheck(ctx context.Context, s *quorum.Snapshot, set *observe.Set) error {
	if set.Facts.OperatorWhy != "" {
		return nil // whose it is, is not known for the moment
	}
	var stored machinev1beta1.MachineHealthCheck
	err := c.Observer.API.Get(ctx, client.ObjectKey{Namespace: c.Observer.Namespace, Name: cpms.HealthCheckName}, &stored)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read MachineHealthCheck %s: %w", cpms.HealthCheckName, err)
	}
	exists := err == nil
	orphan := set.Facts.Deleting && set.Facts.Taken && metav1.GetControllerOf(&stored) == nil
	if exists && !metav1.IsControlledBy(&stored, set.Object) && !orphan {
		return nil
	}
	unhealthy, keeps := machineset.MaxUnhealthy(s, set.Facts)
	switch {
	case !keeps && exists:
		err = c.Client.Delete(ctx, &stored, client.Preconditions{UID: &stored.UID})
	case !keeps:
		return nil
	case !exists:
		err = c.Client.Create(ctx, healthCheck(set.Object, unhealthy))
	default:
		wanted, now := healthCheck(set.Object, unhealthy).Spec, &stored.Spec
		wanted.NodeStartupTimeout, wanted.RemediationTemplate = now.NodeStartupTimeout, now.RemediationTemplate
		if equality.Semantic.DeepEqual(*now, wanted) {
			return nil
		}
		*now = wanted
		err = c.Client.Update(ctx, &stored)
	}
	if err != nil {
		return fmt.Errorf("keep MachineHealthCheck %s: %w", cpms.HealthCheckName, err)
	}
	return nil
}

// healthCheck deletes the Machine of a host that died, while no more are unhealthy than etcd can lose.
func healthCheck(set *machinev1.ControlPlaneMachineSet, maxUnhealthy int) *machinev1beta1.MachineHealthCheck {
	most := intstr.FromInt(maxUnhealthy)
	var notReady []machinev1beta1.UnhealthyCondition
	for _, is := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown} {
		notReady = append(notReady, machinev1beta1.UnhealthyCondition{Type: corev1.NodeReady, Status: is, Timeout: metav1.Duration{Duration: cpms.RepairAfter(set)}})
	}
	return &machinev1beta1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: cpms.HealthCheckName,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, machinev1.GroupVersion.WithKind("ControlPlaneMachineSet"))},
		},
		Spec: machinev1beta1.MachineHealthCheckSpec{
			Selector: set.Spec.Selector, UnhealthyConditions: notReady, MaxUnhealthy: &most,
			NodeStartupTimeout: &metav1.Duration{Duration: startupLimit},
		},
	}
}
