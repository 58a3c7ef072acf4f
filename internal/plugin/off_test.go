package plugin

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestOff: what off says and does where pods do not end and other tools act. test/install switches a whole installation off.
func TestOff(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	pod := func(node string) *corev1.Pod { // one that does not end
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: holdfastNamespace, Name: "holdfast-1", Labels: map[string]string{"app": "holdfast"},
				DeletionTimestamp: ptr.To(metav1.NewTime(noon())), Finalizers: []string{"test/kubelet"},
			},
			Spec: corev1.PodSpec{NodeName: node},
		}
	}
	dead := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "dead"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
	}}
	// A GitOps tool puts its number of replicas back at once.
	synced := func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
		if err := c.Patch(ctx, o, patch, options...); err != nil {
			return err
		}
		d := o.DeepCopyObject().(*appsv1.Deployment)
		d.Spec.Replicas, d.Labels = ptr.To[int32](2), map[string]string{"kustomize.toolkit.fluxcd.io/name": "guard", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
		return c.Update(ctx, d, client.FieldOwner("kustomize-controller"))
	}
	// A replica on a host that is cut off still runs, and puts a registration back.
	returns := func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		if o.GetObjectKind().GroupVersionKind().Kind == "MutatingWebhookConfiguration" {
			return nil
		}
		return c.Delete(ctx, o, options...)
	}
	forbidden := func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "validatingwebhookconfigurations"}, "holdfast", errors.New("no"))
	}
	for name, c := range map[string]struct {
		args    string
		objects []client.Object
		funcs   interceptor.Funcs
		status  int
	}{
		"off":          {args: " --yes"},
		"off-policies": {args: " --yes --policies"},
		"off-dry-run":  {args: " --dry-run"},
		"off-guard":    {args: " --yes --mode guard"},
		// Nothing is stopped then.
		"off-forbidden": {args: " --yes", funcs: interceptor.Funcs{Delete: forbidden}, status: 1},
		"off-lingers":   {args: " --yes --timeout 500ms", objects: []client.Object{pod("node-2")}, status: 1},
		"off-dead":      {args: " --yes", objects: []client.Object{dead, pod("dead")}},
		"off-returns":   {args: " --yes --timeout 2s", objects: []client.Object{dead, pod("dead")}, funcs: interceptor.Funcs{Delete: returns}, status: 1},
		"off-synced":    {args: " --yes", funcs: interceptor.Funcs{Patch: synced}, status: 1},
	} {
		t.Run(name, func(t *testing.T) {
			api := memory(t, "alice", c.funcs, append(append(installation(3), controlPlane()...), c.objects...)...)
			var out, errs bytes.Buffer
			status := execute(t.Context(), strings.Fields("off"+c.args), terminal{strings.NewReader(""), &out, &errs, noon, fakes{api, "rest"}})
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			golden(t, name+".txt", "$ kubectl holdfast off"+c.args+"\n"+out.String()+errs.String())
		})
	}
}

// TestEtcdOperatorSays: what ClusterOperator etcd says is wrong is told, and nothing where nothing is.
func TestEtcdOperatorSays(t *testing.T) {
	operator := func(kind configv1.ClusterStatusConditionType, status configv1.ConditionStatus) *configv1.ClusterOperator {
		return &configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: "etcd"}, Status: configv1.ClusterOperatorStatus{
			Conditions: []configv1.ClusterOperatorStatusCondition{{Type: kind, Status: status, LastTransitionTime: metav1.NewTime(noon()), Message: "EtcdMembersDegraded: 2 of 3\nmembers"}},
		}}
	}
	for want, objects := range map[string][]client.Object{
		"": {operator(configv1.OperatorDegraded, configv1.ConditionFalse)},
		"ClusterOperator etcd is Degraded=True since 2026-03-01T12:00:00Z: EtcdMembersDegraded: 2 of 3 members":   {operator(configv1.OperatorDegraded, configv1.ConditionTrue)},
		"ClusterOperator etcd is Available=False since 2026-03-01T12:00:00Z: EtcdMembersDegraded: 2 of 3 members": {operator(configv1.OperatorAvailable, configv1.ConditionFalse)},
	} {
		c := &cluster{Client: memory(t, "alice", interceptor.Funcs{}, objects...)}
		if got := c.etcdOperatorSays(t.Context()); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
