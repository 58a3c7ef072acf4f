package webhooks_test

import (
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/holdfast-dev/holdfast/webhooks"
)

// TestSelfCall: the validating handler answers a custodian's dry run that asks, and nothing else.
func TestSelfCall(t *testing.T) {
	asked := func(value string) string {
		return strings.Replace(stored, `"metadata":{`, `"metadata":{"annotations":{"`+webhooks.SelfCallAnnotation+`":"`+value+`"},`, 1)
	}
	mutating, validating, registry := local(t, &guard{calls: map[string]int{}})
	for _, c := range []struct {
		name      string
		handler   http.Handler
		user      string
		dryRun    bool
		old, next string
		want      bool
	}{
		{"a custodian asks", validating, holdfast, true, stored, asked("w0rd"), true},
		{"and asks again", validating, holdfast, true, asked("before"), asked("w0rd"), true},
		{"the mutating handler is asked", mutating, holdfast, true, stored, asked("w0rd"), false},
		{"to be stored", validating, holdfast, false, stored, asked("w0rd"), false},
		{"by a person", validating, person, true, stored, asked("w0rd"), false},
		{"by a tool", validating, gitops, true, stored, asked("w0rd"), false},
		{"it stays as it was", validating, holdfast, true, asked("w0rd"), asked("w0rd"), false},
		{"it is taken off", validating, holdfast, true, asked("w0rd"), stored, false},
		{"endlessly", validating, holdfast, true, stored, asked(strings.Repeat("w0rd", 100)), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := ask(t, c.handler, "application/json", review(t, admissionv1.Update, c.old, c.next, func(r *admissionv1.AdmissionRequest) {
				r.UserInfo.Username, r.DryRun = c.user, &c.dryRun
			}))
			if answer.Allowed == c.want {
				t.Errorf("allowed: %t", answer.Allowed)
			}
			if c.want && !webhooks.AnswersSelfCall(*answer.Result, "w0rd") {
				t.Errorf("the answer does not have the word: %+v", answer.Result)
			}
			if c.want && webhooks.AnswersSelfCall(*answer.Result, "other") {
				t.Error("it counts as the answer to another call")
			}
		})
	}
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "holdfast_admission_decisions_total" && m.GetCounter().GetValue() > 0 {
				t.Errorf("it counts as a decision: %v", m)
			}
		}
	}
}
