package controller

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
)

// TestQuorumGuard keeps the quorum guard on a real API server, which alone knows what a spec becomes.
func TestQuorumGuard(t *testing.T) {
	t.Parallel()
	config := apiserver.Start(t).Config
	form := machineapi.QuorumGuardForm{Namespace: "openshift-etcd", Image: "holdfast", Secret: "etcd-client", ClientURL: url.URL{Scheme: "https", Host: "10.0.0.1:2379"}}
	keeper := func(as string) (*QuorumGuard, client.WithWatch) {
		config := rest.CopyConfig(config)
		config.Impersonate.UserName, config.WarningHandler = as, rest.NoWarnings{}
		if as == "" {
			config.Impersonate = rest.ImpersonationConfig{}
		}
		api, err := client.NewWithWatch(config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return NewQuorumGuard(api, form), api
	}
	k, api := keeper("")
	look := func(k *QuorumGuard) quorum.Guard {
		t.Helper()
		g, err := k.readGuard(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	is := func(when string, min int, intact bool) {
		t.Helper()
		if g := look(k); g.MinAvailable == nil || *g.MinAvailable != min || g.Intact != intact || g.Absent != "" {
			t.Errorf("%s: %+v", when, g)
		}
	}

	if g := look(k); !g.Managed || !strings.Contains(g.Absent, "namespace openshift-etcd does not exist") {
		t.Errorf("without a namespace: %+v", g)
	}
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: form.Namespace}}))
	stranger, _ := keeper("stranger")
	if g := look(stranger); !strings.Contains(g.Absent, "no rights in namespace openshift-etcd") {
		t.Errorf("without rights: %+v", g)
	}

	if g := look(k); g.MinAvailable != nil || g.Intact || g.Absent != "" {
		t.Errorf("at first: %+v", g)
	}
	address := netip.MustParseAddr("10.0.0.1")
	if err := k.createPod(t.Context(), "n", address); !errors.As(err, new(notYet)) {
		t.Errorf("a pod without a budget: %v", err)
	}
	must(t, k.writeBudget(t.Context(), 3, look(k).Version))
	is("made", 3, true)
	must(t, k.writeBudget(t.Context(), 1, look(k).Version))
	is("sized", 1, true)

	// One that wakes up after another replica has raised it does not lower it.
	seen := look(k).Version
	must(t, k.writeBudget(t.Context(), 4, seen))
	if err := k.writeBudget(t.Context(), 1, seen); !errors.As(err, new(notYet)) {
		t.Errorf("sized as it was before: %v", err)
	}
	is("raised by another", 4, true)
	must(t, k.writeBudget(t.Context(), 1, look(k).Version))

	var budget policyv1.PodDisruptionBudget
	key := client.ObjectKey{Namespace: form.Namespace, Name: machineapi.GuardName}
	must(t, api.Get(t.Context(), key, &budget))
	budget.Annotations = map[string]string{"somebody": "else"}
	budget.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
	must(t, api.Update(t.Context(), &budget))
	is("edited", 1, false)
	must(t, k.writeBudget(t.Context(), 1, look(k).Version))
	is("restored", 1, true)

	// A webhook that adds to what is written.
	adds := NewQuorumGuard(interceptor.NewClient(api, interceptor.Funcs{Update: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.UpdateOption) error {
		o.(*policyv1.PodDisruptionBudget).Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
		return api.Update(ctx, o, options...)
	}}), form)
	if err := adds.writeBudget(t.Context(), 1, look(k).Version); err == nil || !strings.Contains(err.Error(), "a webhook has changed it") {
		t.Errorf("written, and changed by a webhook: %v", err)
	}
	is("changed by a webhook", 1, false)
	must(t, k.writeBudget(t.Context(), 1, look(k).Version))

	must(t, api.Get(t.Context(), key, &budget))
	if budget.Annotations["somebody"] == "" {
		t.Errorf("annotations %v", budget.Annotations)
	}

	// A pod is the budget's, and as it was written: what the API server fills in makes it no other.
	pods := func(when string, want ...quorum.GuardPod) {
		t.Helper()
		got := look(k).Pods
		for i := range got {
			got[i].UID = ""
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	must(t, api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: form.Namespace, Name: machineapi.GuardName}}))
	must(t, k.createPod(t.Context(), "n", address))
	mine := quorum.GuardPod{Name: machineapi.GuardName + "-n", Node: "n", Owner: quorum.PodOwnerGuard, Address: address}
	pods("made", mine)
	var pod corev1.Pod
	must(t, api.Get(t.Context(), client.ObjectKey{Namespace: form.Namespace, Name: mine.Name}, &pod))

	// A pod that runs and is not ready is no proof that its member is lost: while another is lost it stays.
	pod.Status.Phase = corev1.PodRunning
	must(t, api.Status().Update(t.Context(), &pod))
	must(t, api.Get(t.Context(), key, &budget))
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, ExpectedPods: 3, DesiredHealthy: 2, CurrentHealthy: 1}
	must(t, api.Status().Update(t.Context(), &budget))
	if err := api.SubResource("eviction").Create(t.Context(), &pod, &policyv1.Eviction{}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the eviction of a pod that is not ready, while the budget is short of others: %v, want 429", err)
	}
	pod.Spec.Containers[0].Image = "other"
	must(t, api.Update(t.Context(), &pod))
	edited := mine
	edited.Outdated = true
	pods("edited", edited)
	must(t, api.Delete(t.Context(), &budget))
	must(t, k.writeBudget(t.Context(), 1, look(k).Version))
	edited.Owner = quorum.PodOwnerOldGuard
	pods("of a budget that is gone", edited)

	// A pod of that name under another UID is another pod.
	if err := k.deletePod(t.Context(), mine.Name, "other"); !errors.As(err, new(notYet)) {
		t.Errorf("another pod: %v", err)
	}
	must(t, k.deletePod(t.Context(), mine.Name, string(pod.UID)))
	// There is no kubelet to say that its containers are stopped.
	must(t, client.IgnoreNotFound(api.Delete(t.Context(), &pod, client.GracePeriodSeconds(0))))
	pods("deleted")

	another := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: form.Namespace, Name: "p", Labels: form.Labels()}}
	another.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	another.Spec.ServiceAccountName = machineapi.GuardName
	must(t, api.Create(t.Context(), another))
	pods("another's", quorum.GuardPod{Name: "p", Owner: quorum.PodOwnerOther})

	// Whoever edits again and again is not answered again and again.
	var err error
	for range 20 {
		var budget policyv1.PodDisruptionBudget
		must(t, api.Get(t.Context(), key, &budget))
		must(t, api.Delete(t.Context(), &budget))
		if err = k.writeBudget(t.Context(), 1, look(k).Version); err != nil {
			break
		}
	}
	if !errors.As(err, new(notYet)) || !strings.Contains(err.Error(), "is somebody else changing") {
		t.Errorf("a fight: %v", err)
	}
}

// TestPlatformGuard reads cluster-etcd-operator's quorum guard in guard mode. That Holdfast may not, or that the API server does not answer,
// does not stop a round.
func TestPlatformGuard(t *testing.T) {
	t.Parallel()
	config := apiserver.Start(t).Config
	api, err := client.NewWithWatch(config, client.Options{})
	must(t, err)
	form := machineapi.QuorumGuardForm{Namespace: "openshift-etcd", Platform: true}
	as := func(who string) *QuorumGuard {
		config := rest.CopyConfig(config)
		config.Impersonate.UserName = who
		api, err := client.NewWithWatch(config, client.Options{})
		must(t, err)
		return NewQuorumGuard(api, form)
	}
	is := func(when string, k *QuorumGuard, want quorum.Guard) {
		t.Helper()
		got, err := k.readGuard(t.Context())
		must(t, err)
		got.Version = ""
		for i := range got.Pods {
			got.Pods[i].UID = ""
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	k := NewQuorumGuard(api, form)
	is("nobody keeps one", k, quorum.Guard{})
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: form.Namespace}}))
	must(t, api.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: form.Namespace, Name: "guard-sa"}}))
	// As that operator writes them: the budget keeps all but one, and the pods have no owner.
	must(t, api.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: form.Namespace, Name: "etcd-guard-pdb"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guard"}}},
	}))
	var want []quorum.GuardPod
	for _, node := range []string{"m-0", "m-1"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: form.Namespace, Name: "etcd-guard-" + node, Labels: map[string]string{"app": "guard"}}}
		pod.Spec = corev1.PodSpec{NodeName: node, ServiceAccountName: "guard-sa", Containers: []corev1.Container{{Name: "guard", Image: "i"}}}
		must(t, api.Create(t.Context(), pod))
		pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		must(t, api.Status().Update(t.Context(), pod))
		want = append(want, quorum.GuardPod{Name: pod.Name, Node: node, Owner: quorum.PodOwnerGuard, Ready: true})
	}
	is("it stands", k, quorum.Guard{MinAvailable: new(2), Pods: want})
	got, err := as("stranger").readGuard(t.Context())
	if err != nil || !strings.Contains(got.Absent, "no rights in namespace openshift-etcd") {
		t.Errorf("without rights: %+v, %v", got, err)
	}
	away := rest.CopyConfig(config)
	away.Host = "https://127.0.0.1:1"
	nowhere, err := client.NewWithWatch(away, client.Options{Scheme: api.Scheme(), Mapper: api.RESTMapper()})
	must(t, err)
	is("the API server does not answer", NewQuorumGuard(nowhere, form), quorum.Guard{})
}
