package webhooks_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// FuzzReview: whatever is posted is answered with an AdmissionReview, and what is allowed has the
// request's UID: an answer without it is none to the API server.
func FuzzReview(f *testing.F) {
	log.SetLogger(logr.Discard())
	for _, seed := range [][]byte{
		nil, []byte("null"), []byte("{}"), []byte("["), []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`),
		review(f, admissionv1.Update, stored, stripped), review(f, admissionv1.Update, stored, stored), review(f, admissionv1.Create, "null", stored),
		review(f, admissionv1.Delete, stored, "null"), review(f, admissionv1.Update, stored, `{"spec":7}`), review(f, admissionv1.Connect, stored, "null"),
	} {
		f.Add(seed)
	}
	g := &guard{calls: map[string]int{}}
	mutating, validating, _ := local(f, g)
	f.Fuzz(func(t *testing.T, body []byte) {
		g.set(ring())
		var sent admissionv1.AdmissionReview
		readable := json.Unmarshal(body, &sent) == nil && sent.Request != nil
		answer := ask(t, mutating, "application/json", body)
		for _, got := range []*admissionv1.AdmissionResponse{answer, ask(t, validating, "application/json", body)} {
			switch {
			case !got.Allowed && (got.Result == nil || got.Result.Message == "" || got.Result.Code < 400 || got.Result.Code >= 500):
				t.Errorf("refused with %+v", got.Result)
			case got.Allowed && (!readable || got.UID != sent.Request.UID):
				t.Errorf("allowed as %q what came as %q", got.UID, sent.Request)
			}
		}
	})
}

// FuzzStripped: a tool updates a live, guarded Machine to whatever it likes. What passes both webhooks
// still has hook and latch.
func FuzzStripped(f *testing.F) {
	log.SetLogger(logr.Discard())
	for _, seed := range []string{
		stored, stripped, `{}`, `{"spec":null}`, `{"metadata":null}`, `{"metadata":{"labels":{"machine.openshift.io/cluster-api-machine-role":"worker"}}}`,
		`{"metadata":{"name":"m","labels":{"machine.openshift.io/cluster-api-machine-role":"master"},"finalizers":["machine.machine.openshift.io"]},"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"x"}]}}}`,
	} {
		f.Add(seed)
	}
	g := &guard{calls: map[string]int{}}
	mutating, validating, _ := local(f, g)
	f.Fuzz(func(t *testing.T, next string) {
		g.set(ring())
		var object map[string]any // as the API server has it: an object, and no key twice
		if json.Unmarshal([]byte(next), &object) != nil || object == nil {
			return
		}
		raw, err := json.Marshal(object)
		if err != nil {
			return
		}
		tool := func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = gitops }
		got := ask(t, mutating, "application/json", review(t, admissionv1.Update, stored, string(raw), tool))
		if !got.Allowed {
			return
		}
		if len(got.Patch) > 0 {
			patch, err := jsonpatch.DecodePatch(got.Patch)
			if err != nil {
				t.Fatal(err)
			}
			if raw, err = patch.Apply(raw); err != nil {
				t.Fatalf("%s does not apply: %v", got.Patch, err)
			}
		}
		if got = ask(t, validating, "application/json", review(t, admissionv1.Update, stored, string(raw), tool)); !got.Allowed {
			t.Fatalf("what was repaired is refused: %s", got.Result.Message)
		}
		m, err := machineapi.Decode(raw)
		if err != nil {
			t.Fatal(err)
		}
		if seen := machineapi.Machine(&m.Machine); seen.Hook != quorum.EntryOurs || seen.Latch != quorum.EntryOurs || !seen.Finalizer {
			t.Errorf("passed: %s", raw)
		}
	})
}

// FuzzUID: a body that cannot be read is refused under its own UID, wherever the damage is behind it.
func FuzzUID(f *testing.F) {
	log.SetLogger(logr.Discard())
	f.Add([]byte(`"object":{"spec":`))
	f.Add([]byte(`"uid":"forged"}`))
	f.Add([]byte(`}}`))
	g := &guard{calls: map[string]int{}}
	mutating, _, _ := local(f, g)
	f.Fuzz(func(t *testing.T, rest []byte) {
		g.set(ring())
		body := append([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"r-1","kind":{"group":"machine.openshift.io","version":"v1beta1","kind":"Machine"},`), rest...)
		if json.Valid(body) {
			return // read as a whole, where the last of two keys counts
		}
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		mutating.ServeHTTP(w, r)
		var answer admissionv1.AdmissionReview
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Response == nil {
			t.Fatalf("answered %s: %v", w.Body, err)
		}
		if answer.Response.Allowed || answer.Response.UID == "" {
			t.Errorf("answered %s", w.Body)
		}
	})
}
