package custodian

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const guardNamespace = "openshift-etcd"

func guardLabels() map[string]string { return map[string]string{"app": "guard"} }

// guard keeps the operator's quorum guard: a budget for one less than the control-plane Nodes, whatever etcd has, and a pod on each that is
// not cordoned. A pod is ready while the member of its Node answers a read that needs no quorum: a learner's does.
func (o *Operator) guard(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := o.client.List(ctx, &nodes, client.HasLabels{nodeLabel}); err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	if err := o.budget(ctx, max(len(nodes.Items)-1, 0)); err != nil {
		return err
	}
	var errs []error
	for i := range nodes.Items {
		if node := &nodes.Items[i]; !node.Spec.Unschedulable {
			errs = append(errs, o.guardPod(ctx, node))
		}
	}
	return errors.Join(errs...)
}

// budget writes the budget where there is none, or one with another number. It does not see another selector.
func (o *Operator) budget(ctx context.Context, least int) error {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: guardNamespace, Name: "etcd-guard-pdb"}}
	_, err := controllerutil.CreateOrUpdate(ctx, o.client, b, func() error {
		want := ptr.To(intstr.FromInt(least))
		if !ptr.Equal(b.Spec.MinAvailable, want) || b.Spec.UnhealthyPodEvictionPolicy != nil {
			b.Spec = policyv1.PodDisruptionBudgetSpec{MinAvailable: want, Selector: &metav1.LabelSelector{MatchLabels: guardLabels()}}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keeping the budget: %w", err)
	}
	return nil
}

// guardPod makes the pod of a Node. On a Node that is not ready none is made: no etcd has been put there yet.
func (o *Operator) guardPod(ctx context.Context, node *corev1.Node) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: guardNamespace, Name: "etcd-guard-" + node.Name, Labels: guardLabels()}}
	ips := addresses(node.Status.Addresses)
	if err := o.client.Get(ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{}); !apierrors.IsNotFound(err) || !nodeReady(node) || len(ips) == 0 {
		return client.IgnoreNotFound(err)
	}
	const certs = "/certs"
	pod.Spec = corev1.PodSpec{
		NodeName:                      node.Name,
		PriorityClassName:             "system-cluster-critical",
		Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		TerminationGracePeriodSeconds: ptr.To(int64(3)),
		Containers: []corev1.Container{{
			Name: "guard", Image: "guard",
			Env: []corev1.EnvVar{
				{Name: "ETCDCTL_ENDPOINTS", Value: "https://" + net.JoinHostPort(ips[0], strconv.Itoa(o.options.GuardPort))},
				{Name: "ETCDCTL_CACERT", Value: certs + "/ca.crt"}, {Name: "ETCDCTL_CERT", Value: certs + "/tls.crt"}, {Name: "ETCDCTL_KEY", Value: certs + "/tls.key"},
			},
			// The operator's asks a server beside the member, which does this.
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"etcdctl", "get", "health", "--consistency=s", "--dial-timeout=2s"}}},
				FailureThreshold: 3, PeriodSeconds: 5, TimeoutSeconds: 5,
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "certs", MountPath: certs}},
		}},
		Volumes: []corev1.Volume{{Name: "certs", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "etcd-client"}}}},
	}
	if err := o.client.Create(ctx, pod); err != nil {
		return fmt.Errorf("creating pod %s: %w", pod.Name, err)
	}
	return nil
}

// guarded are the Nodes and the pods, which the guard's controller watches. It does not watch the budget.
func (o *Operator) guarded(ctx context.Context) (map[string]string, error) {
	var (
		nodes corev1.NodeList
		pods  corev1.PodList
	)
	if err := errors.Join(o.client.List(ctx, &nodes, client.HasLabels{nodeLabel}), o.client.List(ctx, &pods, client.InNamespace(guardNamespace))); err != nil {
		return nil, fmt.Errorf("listing Nodes and pods: %w", err)
	}
	out := map[string]string{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		out["Node "+n.Name] = fmt.Sprint(nodeReady(n), n.Spec.Unschedulable)
	}
	for i := range pods.Items {
		out["pod "+pods.Items[i].Name] = pods.Items[i].ResourceVersion
	}
	return out, nil
}
