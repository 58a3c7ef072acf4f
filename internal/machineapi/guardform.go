package machineapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

const (
	GuardName  = "holdfast-quorum-guard"  // name of the quorum guard's PodDisruptionBudget, and what those of its pods begin with
	GuardLabel = "app.kubernetes.io/name" // of its pods; the value is GuardName

	PlatformGuardName = "etcd-guard-pdb" // name of the PodDisruptionBudget of cluster-etcd-operator's quorum guard
)

// Annotations of a guard pod.
const (
	guardAddress = "holdfast.dev/guard-address" // of its Node's etcd member
	guardForm    = "holdfast.dev/guard-form"    // hash of the spec as Holdfast wrote it
)

// Where the pods of the quorum guard find their client certificate for etcd.
const guardCerts = "/etc/holdfast/etcd"

// QuorumGuardForm is the quorum guard as Holdfast writes it, but for its size; or where cluster-etcd-operator's is.
type QuorumGuardForm struct {
	Namespace string
	Platform  bool    // it is cluster-etcd-operator's, and Holdfast only reads it: the fields below are not used
	Image     string  // that has holdfast in its PATH
	Secret    string  // with ca.crt, tls.crt and tls.key: a client certificate for etcd and the CA of its servers
	ClientURL url.URL // of any member: the scheme and the port of them all
}

// Labels are those of the guard's pods, and what its budget selects.
func (f QuorumGuardForm) Labels() map[string]string {
	if f.Platform {
		return map[string]string{"app": "guard"}
	}
	return map[string]string{GuardLabel: GuardName}
}

// BudgetName is the PodDisruptionBudget's.
func (f QuorumGuardForm) BudgetName() string {
	if f.Platform {
		return PlatformGuardName
	}
	return GuardName
}

// Budget gives the PodDisruptionBudget its spec.
func (f QuorumGuardForm) Budget(b *policyv1.PodDisruptionBudget, minAvailable int) {
	b.Spec = policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt(minAvailable)),
		Selector:     &metav1.LabelSelector{MatchLabels: f.Labels()},
		// The default eviction policy: a pod that is not ready may be evicted once minAvailable others are ready. Its member may be healthy.
	}
}

// Pod is the guard pod of a Node: it is ready while the etcd voter at that address of the Node serves a ring with quorum. It is
// the budget's: a pod without a controller would stop kubectl drain.
func (f QuorumGuardForm) Pod(node string, address netip.Addr, budget *policyv1.PodDisruptionBudget) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace, Name: guardPodName(node), Labels: f.Labels(),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget", Name: budget.Name, UID: budget.UID, Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, // the scheduler is not asked
			// Whether it counts is the probe's to say, not the Node's: the pod of a Node that comes back after minutes would
			// have been deleted meanwhile.
			Tolerations:       []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
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
				Env: []corev1.EnvVar{
					{Name: "ETCDCTL_ENDPOINTS", Value: f.endpoint(address)},
					{Name: "ETCDCTL_CACERT", Value: path.Join(guardCerts, "ca.crt")},
					{Name: "ETCDCTL_CERT", Value: path.Join(guardCerts, corev1.TLSCertKey)},
					{Name: "ETCDCTL_KEY", Value: path.Join(guardCerts, corev1.TLSPrivateKeyKey)},
				},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("20Mi"),
				}},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:   corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"holdfast", "verify", "health", "--timeout=3s"}}},
					PeriodSeconds:  5,
					TimeoutSeconds: 4,
					// One look may meet a leader election, to all members alike.
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
	}
	p.Annotations = map[string]string{guardAddress: address.String(), guardForm: hashOf(&p.Spec)}
	return p
}

// endpoint is the client URL of the member at an address.
func (f QuorumGuardForm) endpoint(address netip.Addr) string {
	u := url.URL{Scheme: f.ClientURL.Scheme, Host: address.String()}
	switch port := f.ClientURL.Port(); {
	case port != "":
		u.Host = net.JoinHostPort(u.Host, port)
	case address.Is6():
		u.Host = "[" + u.Host + "]"
	}
	return u.String()
}

func guardPodName(node string) string {
	if name := GuardName + "-" + node; len(name) <= 253 { // what Kubernetes takes
		return name
	}
	return fmt.Sprintf("%s-%x", GuardName, sha256.Sum256([]byte(node)))
}

func hashOf(spec *corev1.PodSpec) string {
	text, err := json.Marshal(spec)
	if err != nil {
		return "" // of plain data: cannot be
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))[:16]
}

// GuardVersion changes whenever somebody writes the budget's spec, and not with its status.
func GuardVersion(budget *policyv1.PodDisruptionBudget) string {
	return fmt.Sprintf("%s/%d", budget.UID, budget.Generation)
}

// Guard is the quorum guard as it stands; nil is a budget that does not exist.
func (f QuorumGuardForm) Guard(budget *policyv1.PodDisruptionBudget, pods []corev1.Pod) quorum.Guard {
	g := quorum.Guard{Managed: !f.Platform}
	if budget == nil {
		budget = &policyv1.PodDisruptionBudget{}
	} else {
		g.Version = GuardVersion(budget)
	}
	if budget.Spec.MinAvailable != nil && budget.Spec.MinAvailable.Type == intstr.Int {
		g.MinAvailable = new(budget.Spec.MinAvailable.IntValue())
		want := budget.DeepCopy()
		f.Budget(want, *g.MinAvailable)
		g.Intact = g.Managed && equality.Semantic.DeepEqual(budget.Spec, want.Spec)
	}
	for i := range pods {
		p := &pods[i]
		ended := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
		pod := quorum.GuardPod{
			Name: p.Name, UID: string(p.UID), Node: p.Spec.NodeName, Owner: quorum.PodOwnerOther, Deleting: p.DeletionTimestamp != nil,
			Ready: !ended && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}),
		}
		if owner := metav1.GetControllerOf(p); f.Platform { // that operator's pods have no owner: their label makes them what they are
			pod.Owner = quorum.PodOwnerGuard
		} else if owner != nil && owner.Kind == "PodDisruptionBudget" && owner.Name == GuardName {
			pod.Owner = quorum.PodOwnerOldGuard
			if owner.UID == budget.UID {
				pod.Owner = quorum.PodOwnerGuard
			}
			pod.Address, _ = netip.ParseAddr(p.Annotations[guardAddress])
			want := f.Pod(p.Spec.NodeName, pod.Address, budget)
			// Of a pod that runs, only the image can be changed.
			pod.Outdated = ended || p.Annotations[guardForm] != want.Annotations[guardForm] || len(p.Spec.Containers) != 1 || p.Spec.Containers[0].Image != f.Image
		}
		if ended && (f.Platform || pod.Owner == quorum.PodOwnerOther) {
			continue // the budget does not count it any more
		}
		g.Pods = append(g.Pods, pod)
	}
	return g
}
