package machineapi

import (
	"net/url"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// GuardName is the name of the quorum guard's PodDisruptionBudget and Deployment.
const GuardName = "holdfast-quorum-guard"

// Where the pods of the quorum guard find their client certificate for etcd.
const guardCerts = "/etc/holdfast/etcd"

// GuardForm is the quorum guard as Holdfast writes it, but for its size.
type GuardForm struct {
	Namespace string
	Image     string  // that has holdfast in its PATH
	Secret    string  // with ca.crt, tls.crt and tls.key: a client certificate for etcd and the CA of its servers
	ClientURL url.URL // of any member: the scheme and the port of them all
}

// Labels are those of the guard's pods, and what its budget and its Deployment select.
func (GuardForm) Labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": GuardName}
}

// Budget gives the PodDisruptionBudget the spec for that many control-plane Machines.
func (f GuardForm) Budget(b *policyv1.PodDisruptionBudget, machines int) {
	b.Spec = policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt(machines - 1)),
		Selector:     &metav1.LabelSelector{MatchLabels: f.Labels()},
		// The pod of a member that is gone or dead protects nothing, and must not keep its Node from being drained.
		UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow),
	}
}

// Deployment gives the Deployment behind the budget the spec for that many control-plane Machines: a
// pod on each of their Nodes, which is ready while the Node's etcd member serves a ring with quorum.
func (f GuardForm) Deployment(d *appsv1.Deployment, machines int) {
	onControlPlane := func(role string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "node-role.kubernetes.io/" + role, Operator: corev1.NodeSelectorOpExists},
		}}
	}
	tolerated := func(key string, effect corev1.TaintEffect) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
	}
	selector := &metav1.LabelSelector{MatchLabels: f.Labels()}
	d.Spec = appsv1.DeploymentSpec{
		Replicas: ptr.To(int32(machines)),
		Selector: selector,
		Strategy: appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType,
			// A second pod has no place on a Node, so the new one can only come after the old one has gone.
			RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt(0)), MaxUnavailable: ptr.To(intstr.FromInt(1))},
		},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: f.Labels()},
			Spec: corev1.PodSpec{
				Affinity: &corev1.Affinity{
					NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{onControlPlane("master"), onControlPlane("control-plane"), onControlPlane("arbiter")},
					}},
					PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
						{LabelSelector: selector, TopologyKey: corev1.LabelHostname},
					}},
				},
				// Not the taint of a cordoned Node: the pod that was taken from there must not come back.
				Tolerations: []corev1.Toleration{
					tolerated("node-role.kubernetes.io/master", corev1.TaintEffectNoSchedule),
					tolerated("node-role.kubernetes.io/control-plane", corev1.TaintEffectNoSchedule),
					tolerated("node-role.kubernetes.io/arbiter", corev1.TaintEffectNoSchedule),
					// Whether it counts is the probe's to say, not the Node's. Without these two the pod of a
					// Node that comes back after minutes would have been deleted meanwhile.
					tolerated(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute),
					tolerated(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
					tolerated(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
					tolerated(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule),
				},
				PriorityClassName: "system-cluster-critical",
				// etcd listens on the Node's own network, which a network policy or a broken overlay may hide.
				HostNetwork:                   true,
				ServiceAccountName:            GuardName,
				AutomountServiceAccountToken:  ptr.To(false),
				EnableServiceLinks:            ptr.To(false),
				TerminationGracePeriodSeconds: ptr.To(int64(3)),
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot:   ptr.To(true),
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				Containers: []corev1.Container{{
					Name:    "guard",
					Image:   f.Image,
					Command: []string{"holdfast", "pause"},
					Env:     f.environment(),
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("20Mi"),
					}},
					ReadinessProbe: &corev1.Probe{
						ProbeHandler:   corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"holdfast", "verify", "health", "--timeout=3s"}}},
						PeriodSeconds:  5,
						TimeoutSeconds: 4,
						// One look may meet a leader election, to all members alike, and a pod that is not
						// ready may always be evicted.
						FailureThreshold: 2,
					},
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: ptr.To(false),
						ReadOnlyRootFilesystem:   ptr.To(true),
						Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					},
					VolumeMounts: []corev1.VolumeMount{{Name: "etcd-client", MountPath: guardCerts, ReadOnly: true}},
				}},
				Volumes: []corev1.Volume{{Name: "etcd-client", VolumeSource: corev1.VolumeSource{
					Secret: &corev1.SecretVolumeSource{SecretName: f.Secret},
				}}},
			},
		},
	}
}

// environment is what holdfast verify health reads: the kubelet puts the Node's address into the
// variables of a container, but not into the command of its probe.
func (f GuardForm) environment() []corev1.EnvVar {
	host := "$(NODE_IP)"
	if strings.Contains(f.ClientURL.Hostname(), ":") { // IPv6
		host = "[" + host + "]"
	}
	if port := f.ClientURL.Port(); port != "" {
		host += ":" + port
	}
	return []corev1.EnvVar{
		{Name: "NODE_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}},
		{Name: "ETCDCTL_ENDPOINTS", Value: f.ClientURL.Scheme + "://" + host},
		{Name: "ETCDCTL_CACERT", Value: path.Join(guardCerts, "ca.crt")},
		{Name: "ETCDCTL_CERT", Value: path.Join(guardCerts, corev1.TLSCertKey)},
		{Name: "ETCDCTL_KEY", Value: path.Join(guardCerts, corev1.TLSPrivateKeyKey)},
	}
}

// Guard is the quorum guard as it stands, but for whether it is intact; nil is an object that does not exist.
func Guard(budget *policyv1.PodDisruptionBudget, deployment *appsv1.Deployment, pods []corev1.Pod) quorum.DrainGuard {
	g := quorum.DrainGuard{Managed: true, MinAvailable: -1, Replicas: -1}
	if budget != nil && budget.Spec.MinAvailable != nil && budget.Spec.MinAvailable.Type == intstr.Int {
		g.MinAvailable = budget.Spec.MinAvailable.IntValue()
	}
	if deployment != nil && deployment.Spec.Replicas != nil {
		g.Replicas = int(*deployment.Spec.Replicas)
	}
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
			continue // it holds no place any more
		}
		g.Pods = append(g.Pods, quorum.GuardPod{
			Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Deleting: p.DeletionTimestamp != nil,
			Ready: slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}),
		})
	}
	return g
}
