package main

import (
	"context"
	"fmt"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/openshift/machine-api-operator/pkg/controller/machine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Annotations of bare metal on a Machine.
const (
	remediationAnnotation = "host.metal3.io/external-remediation"
	poweredOffAnnotation  = "remediation.metal3.io/powered-off-for-remediation"
)

// remediate restarts the host of a Machine that carries the annotation, as bare metal's actuator does: power off, whatever runs there; then the Node is
// deleted; then power on; and once the Node is back the annotations go. No hook holds that. Each call takes one step. The order is
// as openshift/cluster-api-provider-baremetal has it at f2b0db19 (pkg/cloud/baremetal/actuators/machine). Left out are the Node's own labels, and its time-out.
func (a *actuator) remediate(ctx context.Context, m *machinev1beta1.Machine, of *instance) error {
	if _, wanted := m.Annotations[remediationAnnotation]; !wanted {
		return nil
	}
	node := &corev1.Node{}
	err := a.client.Get(ctx, client.ObjectKey{Name: m.Name}, node)
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return fmt.Errorf("looking for the Node of Machine %s: %w", m.Name, err)
	}
	_, wasOff := m.Annotations[poweredOffAnnotation]
	off := of.State == "Stopped"
	before := m.DeepCopy()
	switch {
	case !wasOff && !off:
		err = a.cloud.power(ctx, of.Name, false)
	case !wasOff && !gone:
		err = a.client.Delete(ctx, node)
	case !wasOff:
		setEntry(&m.Annotations, poweredOffAnnotation, "")
		err = a.client.Patch(ctx, m, client.MergeFrom(before))
	case off:
		err = a.cloud.power(ctx, of.Name, true)
	case !gone:
		delete(m.Annotations, remediationAnnotation)
		delete(m.Annotations, poweredOffAnnotation)
		return a.client.Patch(ctx, m, client.MergeFrom(before))
	default:
		err = nil // the host is starting
	}
	if err != nil {
		return fmt.Errorf("restarting the host of Machine %s: %w", m.Name, err)
	}
	return &machine.RequeueAfterError{RequeueAfter: time.Second}
}
