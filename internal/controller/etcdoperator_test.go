package controller

import (
	"context"
	"errors"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestOtherDriver: whoever may change etcd's members besides Holdfast is in the Snapshot, and so is not
// knowing.
func TestOtherDriver(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, appsv1.AddToScheme(scheme))
	must(t, configv1.Install(scheme))
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd-operator", Name: "etcd-operator"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}}
	clusterOperator := &configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: "etcd"}}
	with := func(objects ...client.Object) client.Reader {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	}
	for name, c := range map[string]struct {
		api  client.Reader
		mode quorum.Mode
		any  bool // with --allow-cluster-etcd-operator
		want string
	}{
		"nobody":                              {api: with(), mode: quorum.ModeFull},
		"an operator scaled to 0":             {api: with(deployment, clusterOperator), mode: quorum.ModeFull, want: "Deployment openshift-etcd-operator/etcd-operator"},
		"its ClusterOperator alone":           {api: with(clusterOperator), mode: quorum.ModeFull, want: "ClusterOperator etcd"},
		"it cannot be read":                   {api: refusing{}, mode: quorum.ModeFull, want: "see whether cluster-etcd-operator is here (Deployment openshift-etcd-operator/etcd-operator): no"},
		"guard mode, where it is to be there": {api: with(clusterOperator), mode: quorum.ModeGuard},
		"allowed by a flag":                   {api: with(clusterOperator), mode: quorum.ModeFull, any: true},
	} {
		r := &Reconciler{Observer: &observe.Observer{API: c.api, Mode: c.mode}, StandDown: !c.any}
		if got := r.otherDriver(t.Context()); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

func (refusing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no")
}

// refusing is an API server that answers every read with an error.
type refusing struct{ client.Reader }
