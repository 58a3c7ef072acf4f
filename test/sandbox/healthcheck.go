package sandbox

import (
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// HealthCheck is a MachineHealthCheck of the control plane, which deletes a Machine whose Node has not been ready for that long, one at a time.
func HealthCheck(name string, after time.Duration) *machinev1beta1.MachineHealthCheck {
	one := intstr.FromInt32(1)
	check := &machinev1beta1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Namespace: MachineNamespace, Name: name}}
	check.Spec.MaxUnhealthy = &one
	check.Spec.Selector.MatchLabels = map[string]string{quorum.RoleLabel: "master"}
	for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown} {
		check.Spec.UnhealthyConditions = append(check.Spec.UnhealthyConditions, machinev1beta1.UnhealthyCondition{
			Type: corev1.NodeReady, Status: status, Timeout: metav1.Duration{Duration: after},
		})
	}
	return check
}
