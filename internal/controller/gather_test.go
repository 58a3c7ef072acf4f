package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/etcd"
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
		"nobody":                              {api: with(), mode: quorum.ModeFull},
		"an operator scaled to 0":             {api: with(deployment, clusterOperator), mode: quorum.ModeFull, want: "Deployment openshift-etcd-operator/etcd-operator"},
		"its ClusterOperator alone":           {api: with(clusterOperator), mode: quorum.ModeFull, want: "ClusterOperator etcd"},
		"it cannot be read":                   {api: refusing{}, mode: quorum.ModeFull, want: "see whether cluster-etcd-operator is here (Deployment openshift-etcd-operator/etcd-operator): no"},
		"guard mode, where it is to be there": {api: with(clusterOperator), mode: quorum.ModeGuard},
		"allowed by a flag":                   {api: with(clusterOperator), mode: quorum.ModeFull, any: true},
	} {
		r := &Reconciler{Gatherer: &Gatherer{API: c.api, Mode: c.mode}, Alone: !c.any}
		if got := r.otherDriver(t.Context()); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// ownedBy is a ring whose membership lock somebody has.
type ownedBy struct {
	silent
	lock quorum.Lock
}

func (o *ownedBy) Read(context.Context) quorum.Ring { return quorum.Ring{} }

func (o *ownedBy) LockHolder(context.Context) (quorum.Lock, error) { return o.lock, nil }

func (o *ownedBy) Lock(context.Context) (*etcd.Held, error) { return nil, errors.New("taken") }

// TestLockHolder: how long the membership lock has been somebody's counts from when this process first saw that key.
func TestLockHolder(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	must(t, appsv1.AddToScheme(scheme))
	must(t, configv1.Install(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).Build()
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now, ring := clocktesting.NewFakePassiveClock(noon), &ownedBy{}
	r := &Reconciler{Etcd: ring, Gatherer: &Gatherer{API: api, Etcd: ring, Namespace: "n", Mode: quorum.ModeFull, Desired: 3, Clock: now}}
	one, two := quorum.Lock{Key: "/holdfast/membership/1", Leased: true}, quorum.Lock{Key: "/holdfast/membership/2", Leased: true}
	for i, step := range []struct {
		at   time.Duration
		has  quorum.Lock
		want time.Duration
	}{
		{0, one, 0}, {50 * time.Second, one, 0}, {61 * time.Second, one, 0},
		{62 * time.Second, two, 62 * time.Second}, {63 * time.Second, quorum.Lock{}, -1}, {64 * time.Second, two, 64 * time.Second},
	} {
		now.SetTime(noon.Add(step.at))
		ring.lock = step.has
		s, err := r.look(t.Context())
		must(t, err)
		want := step.has
		if step.want >= 0 {
			want.Since = noon.Add(step.want)
		}
		if s.Lock != want || s.ForeignLock() != (i == 2) {
			t.Errorf("step %d: %+v, somebody else's: %t", i, s.Lock, s.ForeignLock())
		}
	}
	r.Gatherer.Mode, ring.lock = quorum.ModeGuard, one
	if s, err := r.look(t.Context()); err != nil || s.Lock != (quorum.Lock{}) {
		t.Errorf("guard mode, which takes no lock: %+v, %v", s.Lock, err)
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
	must(t, g.records(t.Context(), s))
	if len(s.Records) != 1 || !s.Records[0].Names(0xa0) || !strings.Contains(s.RecordsWhy, "record zz") {
		t.Errorf("records %v, why %q", s.Records, s.RecordsWhy)
	}
	r := &Reconciler{Client: api, Gatherer: g}
	must(t, r.keepRecords(t.Context(), s, s.Records))
	if err := r.keepRecords(t.Context(), s, s.Records); !errors.As(err, new(notYet)) {
		t.Errorf("over what was written since: %v", err)
	}
	s = &quorum.Snapshot{}
	must(t, g.records(t.Context(), s))
	if len(s.Records) != 1 || s.RecordsWhy != "" {
		t.Errorf("afterwards records %v, why %q", s.Records, s.RecordsWhy)
	}
}
