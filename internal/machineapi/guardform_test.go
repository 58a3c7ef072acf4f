package machineapi

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestGuardEndpoint: a guard pod asks the member of its own Node, at the address that it was made for, whatever family the
// other members' are of.
func TestGuardEndpoint(t *testing.T) {
	for _, c := range []struct{ member, address, want string }{
		{"https://10.0.0.1:2379", "10.0.0.2", "https://10.0.0.2:2379"},
		{"https://[fd00::1]:2379", "fd00::2", "https://[fd00::2]:2379"},
		{"https://10.0.0.1:2379", "fd00::2", "https://[fd00::2]:2379"},
		{"https://etcd-0.example.com:1", "10.0.0.2", "https://10.0.0.2:1"},
		{"https://10.0.0.1", "10.0.0.2", "https://10.0.0.2"},
		{"https://10.0.0.1", "fd00::2", "https://[fd00::2]"},
	} {
		u, err := url.Parse(c.member)
		if err != nil {
			t.Fatal(err)
		}
		pod := QuorumGuardForm{ClientURL: *u}.Pod("n", netip.MustParseAddr(c.address), &policyv1.PodDisruptionBudget{})
		if env := pod.Spec.Containers[0].Env[0]; env.Name != "ETCDCTL_ENDPOINTS" || env.Value != c.want {
			t.Errorf("%s at %s: %+v, want %q", c.member, c.address, env, c.want)
		}
	}
}

func TestGuardPodName(t *testing.T) {
	if name := guardPodName("master-0.example.com"); name != "holdfast-quorum-guard-master-0.example.com" {
		t.Error(name)
	}
	long := strings.Repeat("a", 250)
	if a, b := guardPodName(long+"a"), guardPodName(long+"b"); a == b || len(a) > 253 {
		t.Errorf("%q, %q", a, b)
	}
}

func TestGuard(t *testing.T) {
	form := QuorumGuardForm{Namespace: "openshift-etcd", Image: "holdfast", ClientURL: url.URL{Scheme: "https", Host: "10.0.0.1:2379"}}
	budget := func(n intstr.IntOrString) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: GuardName, UID: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &n},
		}
	}
	at := netip.MustParseAddr("10.0.0.1")
	pod := func(uid string, changes ...func(*corev1.Pod)) corev1.Pod {
		p := form.Pod("n", at, budget(intstr.FromInt(2)))
		p.UID = types.UID(uid)
		for _, change := range changes {
			change(p)
		}
		return *p
	}
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	going := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	phase := func(phase corev1.PodPhase) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Phase = phase }
	}
	ofOthers := func(p *corev1.Pod) { p.OwnerReferences = nil }
	is := func(uid string, changes ...func(*quorum.GuardPod)) quorum.GuardPod {
		p := quorum.GuardPod{Name: GuardName + "-n", UID: uid, Node: "n", Owner: quorum.PodOwnerGuard, Address: at}
		for _, change := range changes {
			change(&p)
		}
		return p
	}
	outdated := func(p *quorum.GuardPod) { p.Outdated = true }
	for name, c := range map[string]struct {
		got, want quorum.Guard
	}{
		"nothing":    {form.Guard(nil, nil), quorum.Guard{Managed: true}},
		"a share":    {form.Guard(budget(intstr.FromString("50%")), nil), quorum.Guard{Managed: true, Version: "b/0"}},
		"no numbers": {form.Guard(&policyv1.PodDisruptionBudget{}, nil), quorum.Guard{Managed: true, Version: "/0"}},
		"pods": {
			form.Guard(budget(intstr.FromInt(2)), []corev1.Pod{
				pod("ready", ready), pod("not", func(*corev1.Pod) {}), pod("going", ready, going),
				pod("over", ready, phase(corev1.PodFailed)), pod("done", phase(corev1.PodSucceeded)),
				pod("image", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }),
				pod("form", func(p *corev1.Pod) { p.Annotations[guardForm] = "other" }),
				pod("address", func(p *corev1.Pod) { p.Annotations[guardAddress] = "10.0.0.9" }),
				pod("old", ready, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }),
				pod("another's", ready, ofOthers), pod("another's, over", ofOthers, phase(corev1.PodFailed)),
				pod("another's, with a controller", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }),
			}),
			quorum.Guard{Managed: true, Version: "b/0", MinAvailable: new(2), Pods: []quorum.GuardPod{
				is("ready", func(p *quorum.GuardPod) { p.Ready = true }), is("not"), is("going", func(p *quorum.GuardPod) { p.Ready, p.Deleting = true, true }),
				is("over", outdated), is("done", outdated), is("image", outdated), is("form", outdated),
				is("address", outdated, func(p *quorum.GuardPod) { p.Address = netip.MustParseAddr("10.0.0.9") }),
				is("old", func(p *quorum.GuardPod) { p.Owner, p.Ready = quorum.PodOwnerOldGuard, true }),
				is("another's", func(p *quorum.GuardPod) { p.Owner, p.Address, p.Ready = quorum.PodOwnerOther, netip.Addr{}, true }),
				is("another's, with a controller", func(p *quorum.GuardPod) { p.Owner, p.Address = quorum.PodOwnerOther, netip.Addr{} }),
			}},
		},
	} {
		if diff := cmp.Diff(c.want, c.got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
