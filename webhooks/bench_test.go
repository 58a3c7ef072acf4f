package webhooks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// written is a control-plane Machine as an API server has it: of some kilobytes, half of them managedFields.
func written() *machinev1beta1.Machine {
	at := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	m := manifest("cp-1")
	m.UID, m.ResourceVersion, m.Generation, m.CreationTimestamp = "81900970-1292-40fb-9d74-8c9e94065cc1", "4711", 4, at
	m.Annotations = map[string]string{quorum.EvidenceAnnotation: evidenceOf(m), "machine.openshift.io/instance-state": "Running"}
	m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{
		PreDrain: []machinev1beta1.LifecycleHook{hookEntry()}, PreTerminate: []machinev1beta1.LifecycleHook{latchEntry()},
	}
	m.Spec.ProviderID = new("aws:///us-east-1a/i-0a1b2c3d4e5f60718")
	m.Status = machinev1beta1.MachineStatus{
		Phase: new("Running"), NodeRef: &corev1.ObjectReference{Kind: "Node", Name: "cp-1", UID: "1b4e28ba-2fa1-11d2-883f-0016d3cca427"},
		Addresses: addresses(), LastUpdated: &at,
		ProviderStatus: &runtime.RawExtension{Raw: []byte(`{"conditions":[{"type":"MachineCreation","status":"True"}],"instanceId":"i-0a1b2c3d4e5f60718","instanceState":"running"}`)},
	}
	for i, manager := range []string{"openshift-installer", "machine-api-controllers", "nodelink-controller", "holdfast", "argocd-application-controller"} {
		var fields strings.Builder
		for k := range 8 {
			fmt.Fprintf(&fields, `"f:field-%d-%d":{"f:some":{},"f:more":{".":{}}},`, i, k)
		}
		m.ManagedFields = append(m.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "machine.openshift.io/v1beta1", Time: &at, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{` + fields.String() + `".":{}}}`),
		})
	}
	return m
}

// nobody is a Recorder that records nothing.
type nobody struct{}

func (nobody) Decided(context.Context, webhooks.Record) {}

// BenchmarkReview is what a request costs the webhook's process without TLS and HTTP/2, beside controller-runtime's own
// handling of the same AdmissionReview.
func BenchmarkReview(b *testing.B) {
	log.SetLogger(zap.New(zap.WriteTo(io.Discard))) // whose loggers cost what they cost in holdfast run
	text := func(change func(*machinev1beta1.Machine)) string {
		m := written()
		change(m)
		raw, err := json.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		return string(raw)
	}
	strip := func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks.PreDrain = nil }
	later := func(m *machinev1beta1.Machine) {
		at := metav1.NewTime(m.CreationTimestamp.Add(time.Hour))
		m.ManagedFields[4].Time = &at
	}
	metrics := webhooks.NewMetrics(prometheus.NewRegistry())
	guard := &webhooks.Handlers{Identities: identities(), MachineNamespace: namespace, Observer: &guard{}, Recorder: nobody{}, Metrics: metrics}
	mutating, validating := webhooks.Handler(guard.Mutating()), webhooks.Handler(guard.Validating())
	nothing := http.Handler(&ctrladmission.Webhook{Handler: ctrladmission.HandlerFunc(func(context.Context, ctrladmission.Request) ctrladmission.Response { return ctrladmission.Allowed("") })})
	before := text(func(*machinev1beta1.Machine) {})
	for _, c := range []struct {
		name string
		h    http.Handler
		next string
	}{
		{"nothing", nothing, text(strip)},
		{"restore", mutating, text(func(m *machinev1beta1.Machine) { strip(m); m.ManagedFields = m.ManagedFields[1:] })},
		{"restore-again", mutating, text(func(m *machinev1beta1.Machine) { strip(m); later(m) })},
		{"validate", validating, text(later)},
		{"denial", mutating, text(func(m *machinev1beta1.Machine) { m.Finalizers = nil })},
	} {
		b.Run(c.name, func(b *testing.B) {
			body := review(b, admissionv1.Update, before, c.next, func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = gitops })
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
				r.Header.Set("Content-Type", "application/json")
				c.h.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
