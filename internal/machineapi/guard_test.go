package machineapi

import (
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestGuardEndpoint: a guard pod asks the member of its own Node, as the others are asked.
func TestGuardEndpoint(t *testing.T) {
	for member, want := range map[string]string{
		"https://10.0.0.1:2379":        "https://$(NODE_IP):2379",
		"https://[fd00::1]:2379":       "https://[$(NODE_IP)]:2379",
		"https://etcd-0.example.com:1": "https://$(NODE_IP):1",
		"https://10.0.0.1":             "https://$(NODE_IP)",
	} {
		u, err := url.Parse(member)
		if err != nil {
			t.Fatal(err)
		}
		var d appsv1.Deployment
		GuardForm{ClientURL: *u}.Deployment(&d, 3)
		env := map[string]string{}
		for i, e := range d.Spec.Template.Spec.Containers[0].Env {
			env[e.Name] = e.Value
			if e.Name == "NODE_IP" && i != 0 {
				t.Error("NODE_IP comes after what is made of it, so it is not put in there")
			}
		}
		if env["ETCDCTL_ENDPOINTS"] != want {
			t.Errorf("%s: %q, want %q", member, env["ETCDCTL_ENDPOINTS"], want)
		}
	}
}

// TestGuardStaysOff: the pod that was taken from a cordoned Node does not come back there.
func TestGuardStaysOff(t *testing.T) {
	var d appsv1.Deployment
	GuardForm{}.Deployment(&d, 3)
	taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	for _, toleration := range d.Spec.Template.Spec.Tolerations {
		if toleration.Key == "" || toleration.Key == taint.Key {
			t.Errorf("%+v tolerates %+v", toleration, taint)
		}
	}
}

func TestGuard(t *testing.T) {
	budget := func(n intstr.IntOrString) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &n}}
	}
	deployment := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(3))}}
	pod := func(name string, status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}, Spec: corev1.PodSpec{NodeName: "n"}, Status: status}
	}
	ready := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	going := pod("going", ready)
	going.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		got, want quorum.DrainGuard
	}{
		"nothing":    {Guard(nil, nil, nil), quorum.DrainGuard{Managed: true, MinAvailable: -1, Replicas: -1}},
		"a share":    {Guard(budget(intstr.FromString("50%")), deployment, nil), quorum.DrainGuard{Managed: true, MinAvailable: -1, Replicas: 3}},
		"no numbers": {Guard(&policyv1.PodDisruptionBudget{}, &appsv1.Deployment{}, nil), quorum.DrainGuard{Managed: true, MinAvailable: -1, Replicas: -1}},
		"pods": {
			Guard(budget(intstr.FromInt(2)), deployment, []corev1.Pod{
				pod("a", ready), pod("b", corev1.PodStatus{}), going, pod("over", corev1.PodStatus{Phase: corev1.PodFailed}), pod("done", corev1.PodStatus{Phase: corev1.PodSucceeded}),
			}),
			quorum.DrainGuard{Managed: true, MinAvailable: 2, Replicas: 3, Pods: []quorum.GuardPod{
				{Name: "a", UID: "u", Node: "n", Ready: true}, {Name: "b", UID: "u", Node: "n"}, {Name: "going", UID: "u", Node: "n", Ready: true, Deleting: true},
			}},
		},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
