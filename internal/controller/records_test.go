package controller

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestKeepRecords: a record that cannot be read is written away, and nothing is written over what was written since.
func TestKeepRecords(t *testing.T) {
	good := quorum.Evidence{MachineUID: "uid", Machine: "master-0", MemberIDs: []quorum.MemberID{0xa0}}
	data := machineapi.FormatRecords([]quorum.Evidence{good})
	data["zz"] = "garbage"
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: machineapi.RecordsName}, Data: data}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build()
	key := client.ObjectKeyFromObject(object)
	must(t, api.Get(t.Context(), key, object))
	s := &quorum.Snapshot{RecordsVersion: object.ResourceVersion, RecordsWhy: "record zz is garbage", Records: []quorum.Evidence{good}}
	r := &Reconciler{Client: api, Observer: &observe.Observer{API: api, Namespace: "n"}}
	must(t, r.keepRecords(t.Context(), s, s.Records))
	if err := r.keepRecords(t.Context(), s, s.Records); !errors.As(err, new(notYet)) {
		t.Errorf("over what was written since: %v", err)
	}
	must(t, api.Get(t.Context(), key, object))
	if len(object.Data) != 1 || object.Data["zz"] != "" {
		t.Errorf("afterwards the records are %v", object.Data)
	}
}

// TestImmutableRecords: records that somebody made immutable are made anew, with what they are to say.
func TestImmutableRecords(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: machineapi.RecordsName, UID: "old"}, Immutable: ptr.To(true)}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).WithInterceptorFuncs(interceptor.Funcs{
		Update: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.UpdateOption) error { // as the API server answers
			return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind(), o.GetName(), nil)
		},
	}).Build()
	key := client.ObjectKeyFromObject(object)
	must(t, api.Get(t.Context(), key, object))
	r := &Reconciler{Client: api, Observer: &observe.Observer{API: api, Namespace: "n"}, Log: logr.Discard()}
	must(t, r.keepRecords(t.Context(), &quorum.Snapshot{RecordsVersion: object.ResourceVersion}, []quorum.Evidence{{MachineUID: "uid", Machine: "master-0", MemberIDs: []quorum.MemberID{0xa0}}}))
	now := &corev1.ConfigMap{}
	must(t, api.Get(t.Context(), key, now))
	if len(now.Data) != 1 || now.Immutable != nil {
		t.Errorf("afterwards the records are %v, immutable %v", now.Data, now.Immutable)
	}
}

// TestRecordInstalled: the greatest number of voters that the install-config asked for stays on record.
func TestRecordInstalled(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).Build()
	r := &Reconciler{Client: api, Observer: &observe.Observer{API: api, Namespace: "n"}}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: machineapi.RecordsName}}
	s := &quorum.Snapshot{}
	for _, c := range []struct{ configured, want int }{{0, 0}, {3, 3}, {5, 5}, {1, 5}, {0, 5}} {
		s.Configured = c.configured
		must(t, r.keepRecords(t.Context(), s, []quorum.Evidence{}))
		_ = api.Get(t.Context(), client.ObjectKeyFromObject(object), object) // there is none before there is anything to keep
		s.RecordsVersion, s.Installed = object.ResourceVersion, machineapi.Installed(object.Data)
		if s.Installed != c.want {
			t.Errorf("install-config asks for %d: %d on record", c.configured, s.Installed)
		}
	}
}
