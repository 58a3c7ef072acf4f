package plugin

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// webhook is what its registration says of one: whom the API server trusts, for which requests it calls it, and what happens if there is
// no answer.
type webhook struct {
	ca                  []byte
	policy              admissionregistrationv1.FailurePolicyType
	rules               []admissionregistrationv1.RuleWithOperations
	namespaces, objects *metav1.LabelSelector
	conditions          []string // names of the matchConditions
}

// webhooksOf are those of both registrations, by name.
func webhooksOf(mutating *admissionregistrationv1.MutatingWebhookConfiguration, validating *admissionregistrationv1.ValidatingWebhookConfiguration) map[string]webhook {
	names := func(conditions []admissionregistrationv1.MatchCondition) (out []string) {
		for _, c := range conditions {
			out = append(out, c.Name)
		}
		return out
	}
	out := map[string]webhook{}
	for i := range mutating.Webhooks {
		w := &mutating.Webhooks[i]
		out[w.Name] = webhook{w.ClientConfig.CABundle, ptr.Deref(w.FailurePolicy, ""), w.Rules, w.NamespaceSelector, w.ObjectSelector, names(w.MatchConditions)}
	}
	for i := range validating.Webhooks {
		w := &validating.Webhooks[i]
		out[w.Name] = webhook{w.ClientConfig.CABundle, ptr.Deref(w.FailurePolicy, ""), w.Rules, w.NamespaceSelector, w.ObjectSelector, names(w.MatchConditions)}
	}
	return out
}

// narrowed is which part differs of those that say for which requests the API server calls the webhook, "" for none. Of the matchConditions it compares the names: what they say depends on Holdfast's flags.
func (w *webhook) narrowed(want *webhook) string {
	selects := func(s *metav1.LabelSelector) metav1.LabelSelector { return ptr.Deref(s, metav1.LabelSelector{}) }
	switch {
	case !equality.Semantic.DeepEqual(w.rules, want.rules):
		return "rules"
	case !equality.Semantic.DeepEqual(selects(w.namespaces), selects(want.namespaces)):
		return "namespaceSelector"
	case !equality.Semantic.DeepEqual(selects(w.objects), selects(want.objects)):
		return "objectSelector"
	case !equality.Semantic.DeepEqual(w.conditions, want.conditions):
		return fmt.Sprintf("matchConditions (%s)", strings.Join(w.conditions, ", "))
	}
	return ""
}

// caEnds is when the last of a caBundle's certificates ends, the zero value without one that can be read.
func caEnds(bundle []byte) (ends time.Time) {
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return ends
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.NotAfter.After(ends) {
			ends = cert.NotAfter
		}
	}
}
