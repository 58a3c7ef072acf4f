package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// silent is an API server and an etcd that never answer.
type silent struct{}

func (silent) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (silent) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (silent) Read(ctx context.Context) quorum.Ring {
	<-ctx.Done()
	return quorum.Ring{Why: "silence"}
}

// TestReadsEnd: every read behind an admission answer ends before the API server, which waits for 3 s, hangs
// up: past that an open rule lets everything pass.
func TestReadsEnd(t *testing.T) {
	const wait = 3 * time.Second
	g := &Gatherer{API: silent{}, Etcd: silent{}, Clock: clock.RealClock{}}
	for what, read := range map[string]func(context.Context) error{
		"Snapshot": func(ctx context.Context) error { _, err := g.Snapshot(ctx); return err },
		"Machines": func(ctx context.Context) error { _, err := g.Machines(ctx); return err },
		"Hosts": func(ctx context.Context) error {
			_, err := g.Hosts(ctx, &quorum.Machine{NodeName: "n"})
			return err
		},
		"Selected": func(ctx context.Context) error { _, err := g.Selected(ctx, labels.Everything()); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			err := read(ctx)
			if took := time.Since(began); took > wait-500*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v after %v", what, err, took)
			}
		})
	}
}

// refusing is an API server that answers every read with an error.
type refusing struct{ silent }

func (refusing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no")
}

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
		"nobody":                              {api: with(), mode: quorum.Full},
		"an operator scaled to 0":             {api: with(deployment, clusterOperator), mode: quorum.Full, want: "Deployment openshift-etcd-operator/etcd-operator"},
		"its ClusterOperator alone":           {api: with(clusterOperator), mode: quorum.Full, want: "ClusterOperator etcd"},
		"it cannot be read":                   {api: refusing{}, mode: quorum.Full, want: "see whether cluster-etcd-operator is here (Deployment openshift-etcd-operator/etcd-operator): no"},
		"guard mode, where it is to be there": {api: with(clusterOperator), mode: quorum.Guard},
		"allowed by a flag":                   {api: with(clusterOperator), mode: quorum.Full, any: true},
	} {
		r := &Reconciler{Gatherer: &Gatherer{API: c.api, Mode: c.mode}, Alone: !c.any}
		if got := r.otherDriver(t.Context()); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// TestGarbledRecords: one record that cannot be read hides no other, and is written away.
func TestGarbledRecords(t *testing.T) {
	good := quorum.Evidence{MachineUID: "uid", Machine: "master-0", MemberIDs: []uint64{0xa0}}
	data := machineapi.FormatRecords([]quorum.Evidence{good})
	data["zz"] = "garbage"
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: machineapi.RecordsName}, Data: data}).Build()
	g := &Gatherer{API: api, Namespace: "n"}
	s := &quorum.Snapshot{}
	var err error
	s.Records, s.RecordsWhy, err = g.records(t.Context())
	must(t, err)
	if len(s.Records) != 1 || !s.Records[0].Names(0xa0) || !strings.Contains(s.RecordsWhy, "record zz") {
		t.Errorf("records %v, why %q", s.Records, s.RecordsWhy)
	}
	r := &Reconciler{Client: api, Gatherer: g}
	must(t, r.keepRecords(t.Context(), s, s.Records))
	s.Records, s.RecordsWhy, err = g.records(t.Context())
	must(t, err)
	if len(s.Records) != 1 || s.RecordsWhy != "" {
		t.Errorf("afterwards records %v, why %q", s.Records, s.RecordsWhy)
	}
}
