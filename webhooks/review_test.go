package webhooks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// local is the handlers without an API server.
func local(t testing.TB, g *guard) (mutating, validating http.Handler, registry *prometheus.Registry) {
	t.Helper()
	registry = prometheus.NewRegistry()
	guard := &webhooks.Handlers{Identities: identities(), MachineNamespace: namespace, Observer: g, Recorder: g, Metrics: webhooks.NewMetrics(registry)}
	return webhooks.Handler(guard.Mutating()), webhooks.Handler(guard.Validating()), registry
}

// ask posts a body, and returns the answer.
func ask(t testing.TB, h http.Handler, contentType string, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	return askFor(t.Context(), t, h, contentType, body)
}

// askFor is asked by somebody who waits no longer than the context.
func askFor(ctx context.Context, t testing.TB, h http.Handler, contentType string, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || review.Response == nil {
		t.Fatalf("answered %d with %s: %v", w.Code, w.Body, err)
	}
	return review.Response
}

// review is an AdmissionReview of a person's request.
func review(t testing.TB, operation admissionv1.Operation, old, next string, changes ...func(*admissionv1.AdmissionRequest)) []byte {
	t.Helper()
	req := &admissionv1.AdmissionRequest{
		UID:       "r-1",
		Kind:      metav1.GroupVersionKind{Group: machinev1beta1.GroupName, Version: "v1beta1", Kind: "Machine"},
		Resource:  metav1.GroupVersionResource{Group: machinev1beta1.GroupName, Version: "v1beta1", Resource: "machines"},
		Namespace: namespace, Operation: operation, UserInfo: authenticationv1.UserInfo{Username: person},
		Object: runtime.RawExtension{Raw: []byte(next)}, OldObject: runtime.RawExtension{Raw: []byte(old)},
	}
	for _, change := range changes {
		change(req)
	}
	raw, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req,
	})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

const (
	stored = `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"m","labels":{"machine.openshift.io/cluster-api-machine-role":"master"},
		"finalizers":["machine.machine.openshift.io"]},"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}],
		"preTerminate":[{"name":"EtcdQuorumLatch","owner":"holdfast"}]}}}`
	stripped = `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"m","labels":{"machine.openshift.io/cluster-api-machine-role":"master"},
		"finalizers":["machine.machine.openshift.io"]},"spec":{}}`
)

// TestBadReviews has what no API server sends, and what a user's object can bring: each is refused
// with a code below 500 and a sentence.
func TestBadReviews(t *testing.T) {
	valid := string(review(t, admissionv1.Update, stored, stored))
	for _, c := range []struct {
		name, contentType string
		body              []byte
		code              int32
		says              string
	}{
		{"empty", "application/json", nil, 400, ""},
		{"no JSON", "application/json", []byte("{"), 400, ""},
		{"null", "application/json", []byte("null"), 400, "about nothing"},
		{"a list", "application/json", []byte("[]"), 400, ""},
		{"no fields", "application/json", []byte("{}"), 400, "about nothing"},
		{"no request", "application/json", []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`), 400, "about nothing"},
		{"an empty request", "application/json", []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`), 400, "about nothing"},
		{"another kind", "application/json", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}`), 400, "about nothing"},
		{"huge", "application/json", []byte(strings.Replace(valid, `"uid"`, `"padding":"`+strings.Repeat("x", 7<<20)+`","uid"`, 1)), 413, "too large"},
		{"another content type", "application/yaml", []byte(valid), 400, "application/yaml"},
		{"a Node", "application/json", review(t, admissionv1.Update, stored, stored, func(r *admissionv1.AdmissionRequest) {
			r.Kind = metav1.GroupVersionKind{Version: "v1", Kind: "Node"}
		}), 400, "about Node"},
		{"another API's Machine", "application/json", review(t, admissionv1.Update, stored, stored, func(r *admissionv1.AdmissionRequest) {
			r.Kind.Group = "cluster.x-k8s.io"
		}), 400, "about Machine.cluster.x-k8s.io"},
		{"another operation", "application/json", review(t, admissionv1.Connect, stored, stored), 400, `operation "CONNECT"`},
		{"an update without an object", "application/json", review(t, admissionv1.Update, stored, "null"), 400, "new Machine is missing"},
		{"an update without an old object", "application/json", review(t, admissionv1.Update, "null", stored), 400, "stored Machine is missing"},
		{"a create without an object", "application/json", review(t, admissionv1.Create, "null", "null"), 400, "new Machine is missing"},
		{"a delete without an old object", "application/json", review(t, admissionv1.Delete, "null", "null"), 400, "stored Machine is missing"},
		{"hooks that are no list", "application/json", review(t, admissionv1.Update, stored, `{"spec":{"lifecycleHooks":{"preDrain":"all"}}}`), 400, "new Machine cannot be read"},
		{"an object that is a list", "application/json", review(t, admissionv1.Create, "null", `[]`), 400, "new Machine cannot be read"},
		{"labels that are no map", "application/json", review(t, admissionv1.Delete, `{"metadata":{"labels":7}}`, "null"), 400, "stored Machine cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mutating, validating, _ := local(t, &guard{calls: map[string]int{}, snapshot: ring()})
			for _, h := range []http.Handler{mutating, validating} {
				got := ask(t, h, c.contentType, c.body)
				if got.Allowed || got.Result == nil || got.Result.Code != c.code || got.Result.Message == "" || !strings.Contains(got.Result.Message, c.says) {
					t.Errorf("answered %+v", got)
				}
			}
		})
	}
}

// TestUnreadable has what a user can make of a Machine that Holdfast then cannot read. The refusal has
// the request's UID: without it the call has failed to the API server, and the request may pass.
func TestUnreadable(t *testing.T) {
	padded := func(pad string) string {
		return strings.Replace(stripped, `"spec":{}`, `"spec":{"providerSpec":{"value":{"pad":`+pad+`}}}`, 1)
	}
	deep := padded(strings.Repeat("[", 9996) + strings.Repeat("]", 9996))
	for name, body := range map[string][]byte{
		"too large":                 review(t, admissionv1.Update, stored, padded(`"`+strings.Repeat("<", 2_500_000)+`"`)),
		"too deep, the new Machine": []byte(strings.Replace(string(review(t, admissionv1.Update, stored, `"NEW"`)), `"NEW"`, deep, 1)),
		"too deep, the stored one":  []byte(strings.Replace(string(review(t, admissionv1.Delete, `"OLD"`, "null")), `"OLD"`, deep, 1)),
		"cut off":                   review(t, admissionv1.Update, stored, stored)[:300],
	} {
		t.Run(name, func(t *testing.T) {
			mutating, validating, _ := local(t, &guard{calls: map[string]int{}, snapshot: ring()})
			for _, h := range []http.Handler{mutating, validating} {
				got := ask(t, h, "application/json", body)
				if got.Allowed || got.UID != "r-1" || got.Result == nil || !strings.Contains(got.Result.Message, "refuses it") {
					t.Errorf("answered %+v", got)
				}
			}
		})
	}
}

// TestOddText: an API server passes on some text that is not UTF-8, and after it made that UTF-8 some keys are the same.
func TestOddText(t *testing.T) {
	for name, odd := range map[string]string{
		"no UTF-8":    "{\"f:\xff\":{}}",
		"a key twice": `{"f:a":{},"f:a":{}}`,
	} {
		next := strings.Replace(stripped, `"name":"m"`, `"name":"m","managedFields":[{"manager":"m","fieldsV1":"ODD"}]`, 1)
		body := bytes.Replace(review(t, admissionv1.Update, stored, next), []byte(`"ODD"`), []byte(odd), 1)
		mutating, _, _ := local(t, &guard{calls: map[string]int{}, snapshot: ring()})
		if got := ask(t, mutating, "application/json", body); !got.Allowed || len(got.Patch) == 0 || got.UID != "r-1" {
			t.Errorf("%s: answered %+v", name, got)
		}
	}
}

// TestBodies: what a handler keeps of a request stays as it is when the next ones are read.
func TestBodies(t *testing.T) {
	var kept []ctrladmission.Request
	h := webhooks.Handler(ctrladmission.HandlerFunc(func(_ context.Context, req ctrladmission.Request) ctrladmission.Response {
		kept = append(kept, req)
		return ctrladmission.Allowed("")
	}))
	want := func(i int) (name, old, next string) {
		return fmt.Sprintf("user-%d", i), fmt.Sprintf(`{"metadata":{"name":"old-%d"}}`, i), fmt.Sprintf(`{"metadata":{"name":"new-%d"}}`, i)
	}
	for i := range 9 {
		name, old, next := want(i)
		ask(t, h, "application/json", review(t, admissionv1.Update, old, next, func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = name }))
	}
	for i, req := range kept {
		if name, old, next := want(i); req.UserInfo.Username != name || string(req.OldObject.Raw) != old || string(req.Object.Raw) != next {
			t.Errorf("request %d became %s: %s to %s", i, req.UserInfo.Username, req.OldObject.Raw, req.Object.Raw)
		}
	}
}

// TestReviewVersion: a review of a version that does not exist is read as v1 and decided all the same.
func TestReviewVersion(t *testing.T) {
	mutating, _, _ := local(t, &guard{calls: map[string]int{}, snapshot: ring()})
	body := bytes.Replace(review(t, admissionv1.Update, stored, stripped), []byte("admission.k8s.io/v1"), []byte("admission.k8s.io/v7"), 1)
	if got := ask(t, mutating, "application/json", body); !got.Allowed || len(got.Patch) == 0 || got.UID != "r-1" {
		t.Errorf("answered %+v", got)
	}
}

// TestPassedBy has requests that are not registered and are let through without a look.
func TestPassedBy(t *testing.T) {
	mutating, validating, _ := local(t, &guard{calls: map[string]int{}})
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"status":          func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" },
		"scale":           func(r *admissionv1.AdmissionRequest) { r.SubResource = "scale" },
		"other namespace": func(r *admissionv1.AdmissionRequest) { r.Namespace = "elsewhere" },
	} {
		for _, h := range []http.Handler{mutating, validating} {
			if got := ask(t, h, "application/json", review(t, admissionv1.Update, stored, stripped, change)); !got.Allowed || len(got.Patch) > 0 {
				t.Errorf("%s: answered %+v", name, got)
			}
		}
	}
}

func TestAnswer(t *testing.T) {
	g := &guard{calls: map[string]int{}, snapshot: ring()}
	mutating, validating, registry := local(t, g)
	got := ask(t, mutating, "application/json", review(t, admissionv1.Update, stored, stripped))
	if diff := cmp.Diff(map[string]string{"rule": "keep-hook", "verdict": "repaired", "request-uid": "r-1"}, got.AuditAnnotations); diff != "" {
		t.Error(diff)
	}
	got = ask(t, validating, "application/json", review(t, admissionv1.Update, stored, stripped))
	if got.Allowed || got.Result.Code != http.StatusForbidden || got.Result.Reason != metav1.StatusReasonForbidden || got.AuditAnnotations["verdict"] != "denied" {
		t.Errorf("the validating handler answered %+v", got)
	}
	ask(t, mutating, "application/json", review(t, admissionv1.Update, stored, stripped, func(r *admissionv1.AdmissionRequest) { r.DryRun = new(true) }))
	ask(t, mutating, "application/json", review(t, admissionv1.Operation("\xff"), stored, stripped))
	hungUp, hangUp := context.WithCancel(t.Context())
	hangUp()
	askFor(hungUp, t, mutating, "application/json", review(t, admissionv1.Update, stored, stripped)) // recorded, and not counted

	const want = `
# HELP holdfast_admission_decisions_total Findings of the admission rules, dry runs left out. A request without a finding touched nothing guarded and is not counted.
# TYPE holdfast_admission_decisions_total counter
holdfast_admission_decisions_total{operation="UPDATE",rule="escape-hatch",verdict="allowed"} 0
holdfast_admission_decisions_total{operation="UPDATE",rule="escape-hatch",verdict="overridden"} 0
holdfast_admission_decisions_total{operation="UPDATE",rule="keep-hook",verdict="denied"} 1
holdfast_admission_decisions_total{operation="UPDATE",rule="keep-hook",verdict="repaired"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "holdfast_admission_decisions_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(registry, "holdfast_admission_duration_seconds"); err != nil || n != 3 {
		t.Errorf("%d latency series, %v", n, err)
	}
}

// TestWarningLines: a control character in a name or reason must not cost the user the Warning.
func TestWarningLines(t *testing.T) {
	_, validating, _ := local(t, &guard{calls: map[string]int{}, snapshot: ring(unknown)})
	old := strings.Replace(stored, `"labels"`, `"annotations":{"holdfast.dev/override":"unprotected-delete: two\nlines","holdfast.dev/override-by":"`+quorum.Stamp(`\u0007bell`, time.Now())+`"},"labels"`, 1)
	old = strings.Replace(old, quorum.LatchName, "Nothing", 1)
	got := ask(t, validating, "application/json", review(t, admissionv1.Delete, old, "null"))
	if !got.Allowed || len(got.Warnings) == 0 || !strings.Contains(got.Warnings[0], "two lines") || strings.ContainsAny(fmt.Sprint(got.Warnings), "\n\a") {
		t.Errorf("answered %+v", got)
	}
}

// TestStale: a request with an older resourceVersion ends in a conflict and leaves no record. The API server compares numbers, and only
// what it refuses for certain leaves none.
func TestStale(t *testing.T) {
	at := func(version, object string) string {
		return strings.Replace(object, `"name":"m"`, `"name":"m","resourceVersion":"`+version+`"`, 1)
	}
	for version, recorded := range map[string]int{"12": 1, "0012": 1, "": 1, "0": 1, "twelve": 1, "99999999999999999999": 1, "11": 0, "0011": 0, "13": 0} {
		g := &guard{calls: map[string]int{}, snapshot: ring()}
		mutating, _, _ := local(t, g)
		got := ask(t, mutating, "application/json", review(t, admissionv1.Update, at("12", stored), at(version, stripped)))
		if !got.Allowed || len(got.Patch) == 0 || len(g.records()) != recorded || len(got.Warnings) > 0 != (recorded > 0) {
			t.Errorf("version %q: answered %+v, recorded %v", version, got, g.findings())
		}
	}
}
