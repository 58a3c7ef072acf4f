package webhooks

import (
	"net/http"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
)

// SelfCallAnnotation is how a custodian asks, in a dry run, whether the API server reaches the validating
// webhook: a change that puts it on a Machine is refused, with its value in the refusal. Stored, it means
// nothing.
const SelfCallAnnotation = "holdfast.dev/self-call"

// selfCallCause is the type of the cause that holds the value.
const selfCallCause metav1.CauseType = "HoldfastSelfCall"

// selfCall answers a self-call; nil if a request is none.
func (g *Handlers) selfCall(r *review) *ctrladmission.Response {
	if r.Operation != admissionv1.Update || !dryRun(&r.AdmissionRequest) || g.Identities.Classify(r.request.User) != admission.ClassCustodian {
		return nil
	}
	asked := r.next.Annotations[SelfCallAnnotation]
	if asked == "" || asked == r.old.Annotations[SelfCallAnnotation] || len(asked) > 128 {
		return nil
	}
	response := ctrladmission.Denied("This is Holdfast's own call to see that the API server reaches it, and it does. Nothing was to be changed.")
	response.Result.Code = http.StatusForbidden
	response.Result.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: selfCallCause, Message: asked}}}
	return &response
}

// AnswersSelfCall reports whether an API server's status is the answer to the self-call with that value.
func AnswersSelfCall(s metav1.Status, asked string) bool {
	return s.Details != nil && slices.Contains(s.Details.Causes, metav1.StatusCause{Type: selfCallCause, Message: asked})
}
