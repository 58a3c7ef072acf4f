package observe

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
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
	g := &Observer{API: silent{}, Etcd: silent{}, Clock: clock.RealClock{}}
	for what, read := range map[string]func(context.Context) error{
		"Snapshot": func(ctx context.Context) error { _, err := g.Snapshot(ctx); return err },
		"Machines": func(ctx context.Context) error { _, err := g.Machines(ctx); return err },
		"Hosts": func(ctx context.Context) error {
			_, err := g.Hosts(ctx, &quorum.Machine{NodeName: "n"}, false, false)
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

// TestBegan: a Snapshot says when its look began and when it ended.
func TestBegan(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	o := &Observer{API: fake.NewClientBuilder().WithScheme(scheme).Build(), Etcd: silent{}, Namespace: "n", Mode: quorum.ModeGuard, Clock: clock.RealClock{}}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s, err := o.Snapshot(t.Context())
		must(t, err)
		if took := time.Since(began); !s.Began.Equal(began) || !s.Now.Equal(began.Add(took)) || took < EtcdTimeout {
			t.Errorf("a look that took %s is said to have begun after %s and ended after %s", took, s.Began.Sub(began), s.Now.Sub(began))
		}
	})
}

// TestGarbledRecords: one record that cannot be read hides no other.
func TestGarbledRecords(t *testing.T) {
	good := quorum.Evidence{MachineUID: "uid", Machine: "master-0", MemberIDs: []quorum.MemberID{0xa0}}
	data := machineapi.FormatRecords([]quorum.Evidence{good})
	data["zz"] = "garbage"
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: machineapi.RecordsName}, Data: data}).Build()
	g := &Observer{API: api, Namespace: "n"}
	s := &quorum.Snapshot{}
	must(t, g.records(t.Context(), s))
	if len(s.Records) != 1 || !s.Records[0].Names(0xa0) || !strings.Contains(s.RecordsWhy, "record zz") {
		t.Errorf("records %v, why %q", s.Records, s.RecordsWhy)
	}
}

// TestWanted: the install-config raises the number of voters wanted. A smaller number, a garbled one or none is ignored once a
// greater one is on record.
func TestWanted(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	for _, c := range []struct {
		installConfig, recorded string
		flag                    int
		want                    int
		why                     string
	}{
		{installConfig: "controlPlane: {replicas: 3}", want: 3},
		{installConfig: "controlPlane: {replicas: 3}", recorded: "3", want: 3},
		{installConfig: "controlPlane: {replicas: 5}", recorded: "3", want: 5},
		{installConfig: "controlPlane: {replicas: 1}", recorded: "3", want: 3, why: "asks for 1"},
		{installConfig: "{}", recorded: "3", want: 3, why: "no controlPlane.replicas"},
		{recorded: "3", want: 3, why: "does not exist"},
		{installConfig: "controlPlane: {replicas: 1}", recorded: "3", flag: 1, want: 1},
		{installConfig: "controlPlane: {replicas: 1}", recorded: "-3", want: 1},
		{installConfig: "controlPlane: {replicas: 1}", recorded: "4", want: 4, why: "asks for 1"},
		{installConfig: "{}", want: 0, why: "no controlPlane.replicas"},
	} {
		objects := []client.Object{&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: machineapi.RecordsName}, Data: map[string]string{"install-config": c.recorded},
		}}
		if c.installConfig != "" {
			objects = append(objects, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: installConfig().Namespace, Name: installConfig().Name}, Data: map[string]string{"install-config": c.installConfig},
			})
		}
		o := &Observer{API: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), Namespace: "n", Desired: c.flag}
		s := &quorum.Snapshot{}
		must(t, o.records(t.Context(), s))
		var err error
		s.Configured, s.DesiredWhy, err = o.configured(t.Context())
		must(t, err)
		o.want(s)
		if s.Desired != c.want || s.RecordsWhy != "" || (s.DesiredWhy == "") != (c.why == "") || !strings.Contains(s.DesiredWhy, c.why) {
			t.Errorf("%+v: %d wanted, %q; records %q", c, s.Desired, s.DesiredWhy, s.RecordsWhy)
		}
	}
}
