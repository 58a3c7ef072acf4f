package plugin

import (
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// webhooksOf are those of both registrations, by name; of the mutating one, what they have in common.
func webhooksOf(mutating *admissionregistrationv1.MutatingWebhookConfiguration, validating *admissionregistrationv1.ValidatingWebhookConfiguration) map[string]admissionregistrationv1.ValidatingWebhook {
	out := map[string]admissionregistrationv1.ValidatingWebhook{}
	for i := range validating.Webhooks {
		out[validating.Webhooks[i].Name] = validating.Webhooks[i]
	}
	for i := range mutating.Webhooks {
		w := &mutating.Webhooks[i]
		out[w.Name] = admissionregistrationv1.ValidatingWebhook{
			ClientConfig: w.ClientConfig, FailurePolicy: w.FailurePolicy, Rules: w.Rules,
			NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, MatchConditions: w.MatchConditions,
		}
	}
	return out
}

// narrowed is which part differs of those that say for which requests the API server calls the webhook, "" for none. Of the matchConditions it compares the names: what they say depends on Holdfast's flags.
func narrowed(w, want *admissionregistrationv1.ValidatingWebhook) string {
	differ := func(a, b any) bool { return !equality.Semantic.DeepEqual(a, b) }
	names := func(conditions []admissionregistrationv1.MatchCondition) string {
		var out []string
		for _, c := range conditions {
			out = append(out, c.Name)
		}
		return strings.Join(out, ", ")
	}
	switch {
	case differ(w.Rules, want.Rules):
		return "rules"
	case differ(w.NamespaceSelector, want.NamespaceSelector):
		return "namespaceSelector"
	case differ(w.ObjectSelector, want.ObjectSelector):
		return "objectSelector"
	case names(w.MatchConditions) != names(want.MatchConditions):
		return fmt.Sprintf("matchConditions (%s)", names(w.MatchConditions))
	}
	return ""
}

// weakened reports whether a policy or its binding refuses less than is wanted, as far as that can be known: what a policy's expressions say depends
// on Holdfast's flags.
func weakened(got, want client.Object) bool {
	if want, ok := want.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding); ok {
		return !equality.Semantic.DeepEqual(got.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec, want.Spec)
	}
	is, to := got.(*admissionregistrationv1.ValidatingAdmissionPolicy).Spec, want.(*admissionregistrationv1.ValidatingAdmissionPolicy).Spec
	return !equality.Semantic.DeepEqual(is.FailurePolicy, to.FailurePolicy) || len(is.Validations) != len(to.Validations)
}

// caEnds is when the last of a caBundle's certificates ends, the zero value without one that can be read.
func caEnds(bundle []byte) (ends time.Time) {
	certificates, _ := cert.ParseCertsPEM(bundle) // none then
	for _, c := range certificates {
		if c.NotAfter.After(ends) {
			ends = c.NotAfter
		}
	}
	return ends
}
