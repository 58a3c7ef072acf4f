package webhooks_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// TestEnforcement: what a rule repairs or denies, and what cannot be read, passes as it is unless Holdfast enforces. It is recorded once either way, and
// with warn the requester is told.
func TestEnforcement(t *testing.T) {
	twice := []byte(strings.Replace(string(review(t, admissionv1.Update, stored, stored)), `"object":`, `"object":"CUT`, 1))
	for name, c := range map[string]struct {
		body     []byte
		enforced bool     // it passes as it is, enforced
		says     string   // what the requester is told
		findings []string // that are recorded
		reported string   // the rule instead, where hook and latch are only assumed
	}{
		"a repair":            {review(t, admissionv1.Update, stored, stripped), false, "keep-hook", []string{"keep-hook repaired"}, ""},
		"a denial":            {review(t, admissionv1.Update, stored, strings.Replace(stored, "master", "worker", 1)), false, "keep-role", []string{"keep-role denied"}, ""},
		"a denial by etcd":    {review(t, admissionv1.Delete, strings.Replace(strings.Replace(stripped, `"name":"m"`, `"name":"cp-1"`, 1), `"spec":{}`, `"spec":{},"status":{"phase":"Running","addresses":[{"type":"InternalIP","address":"`+address+`"}]}`, 1), "null"), false, "unprotected-delete", []string{"unprotected-delete denied"}, "held"},
		"nothing guarded":     {review(t, admissionv1.Update, stored, stored), true, "", nil, ""},
		"what cannot be read": {twice, false, "cannot read", nil, ""},
	} {
		for _, e := range []admission.Enforcement{admission.Enforce, admission.Warn, admission.Audit} {
			t.Run(name+"/"+e.String(), func(t *testing.T) {
				g := &guard{calls: map[string]int{}, snapshot: ring()}
				metrics := webhooks.NewMetrics(prometheus.NewRegistry())
				h := &webhooks.Handlers{Identities: identities(), Enforcement: e, MachineNamespace: namespace, Observer: g, Recorder: g, Metrics: metrics}
				passes, told := true, ""
				for _, handler := range []http.Handler{webhooks.Handler(h.Mutating()), webhooks.Handler(h.Validating())} {
					answer := ask(t, handler, "application/json", c.body)
					passes = passes && answer.Allowed && len(answer.Patch) == 0
					told += strings.Join(answer.Warnings, "\n")
					if !answer.Allowed {
						told += answer.Result.Message
						break // the API server asks no more
					}
					if len(answer.Patch) > 0 {
						break // the object is another one now
					}
					if as := answer.AuditAnnotations; as != nil && as["enforcement"] != e.String() {
						t.Errorf("audit annotations %v", as)
					}
				}
				if e != admission.Enforce && c.reported != "" {
					c.says, c.findings = "("+c.reported+")", []string{c.reported + " allowed"}
				}
				if want := c.enforced || e != admission.Enforce; passes != want {
					t.Errorf("passes as it is: %t, want %t", passes, want)
				}
				if diff := cmp.Diff(c.findings, g.findings()); diff != "" {
					t.Errorf("recorded: %s", diff)
				}
				want := c.says
				if e == admission.Audit {
					want = ""
				}
				if want == "" && told != "" || !strings.Contains(told, want) {
					t.Errorf("told %q, want %q", told, want)
				}
				if says := strings.Contains(told, "--enforcement=warn"); says != (e == admission.Warn && c.says != "") {
					t.Errorf("told %q", told)
				}
			})
		}
	}
	if !slices.Equal([]string{"enforce", "warn", "audit"}, []string{admission.Enforce.String(), admission.Warn.String(), admission.Audit.String()}) {
		t.Error("the words are not those of Pod Security admission")
	}
}
