package webhooks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
)

// Handler serves a handler over HTTP, and refuses what it cannot read.
//
// An answer without the request's UID is none to the API server: the call has failed, and where the
// failure policy is Ignore the request passes. controller-runtime gives such answers to bodies that
// are too large or nested too deep for it, and both are in the hands of whoever writes a Machine:
// padding in an unguarded field would switch the guard off for it. So bodies are read here, and
// once (controller-runtime reads each twice, for its version first); a refusal has the UID that
// stands at the front of the body, where the API server writes it.
func Handler(h ctrladmission.Handler) http.Handler {
	of, _ := h.(enforcing)
	return &handler{enforcement: of.enforcement, webhook: ctrladmission.Webhook{Handler: h, LogConstructor: func(base logr.Logger, _ *ctrladmission.Request) logr.Logger { return base }}}
}

// logger names the request in what is logged. Made only where something is: it costs as much as a decision.
func logger(ctx context.Context, req *ctrladmission.Request) logr.Logger {
	return ctrladmission.DefaultLogConstructor(log.FromContext(ctx), req)
}

type handler struct {
	enforcement admission.Enforcement // what becomes of what cannot be read
	webhook     ctrladmission.Webhook
}

const (
	// limit is how long a body may be, as controller-runtime has it: two Machines of the largest size that
	// the API server takes, and what comes with them.
	limit = 7 << 20
	// front is how much of a body is searched for the UID. It stands before all that a user can write.
	front = 1 << 10
	// room is made for a body as long as it says it is, but not for more than this.
	room = 64 << 10
)

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var buffer bytes.Buffer
	code, err := read(&buffer, r)
	var review admissionv1.AdmissionReview
	if err == nil {
		err = machineapi.ReadJSON(buffer.Bytes(), &review)
	}
	var answer ctrladmission.Response
	switch {
	case err != nil:
		answer = enforced(h.enforcement, refusal(buffer.Bytes(), code, err))
		log.FromContext(r.Context()).WithName("admission").Error(err, "refusing what cannot be read", "path", r.URL.Path, "requestID", answer.UID)
	case review.Request == nil:
		answer = h.webhook.Handle(r.Context(), ctrladmission.Request{}) // about nothing, and refused as that
	default:
		answer = h.webhook.Handle(r.Context(), ctrladmission.Request{AdmissionRequest: *review.Request})
	}
	review = admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: &answer.AdmissionResponse}
	review.Kind = cmp.Or(review.Kind, "AdmissionReview")
	review.APIVersion = cmp.Or(review.APIVersion, admissionv1.SchemeGroupVersion.String())
	w.Header().Set("Content-Type", "application/json")
	// The API server may have hung up.
	_ = json.NewEncoder(w).Encode(review)
}

// read reads a body into the buffer. With an error comes its code, and what was read until then.
func read(buffer *bytes.Buffer, r *http.Request) (code int32, err error) {
	buffer.Grow(int(min(max(r.ContentLength, 0), room-bytes.MinRead)) + bytes.MinRead)
	_, err = buffer.ReadFrom(io.LimitReader(r.Body, limit+1))
	kind := r.Header.Get("Content-Type")
	switch {
	case err != nil:
	case buffer.Len() > limit:
		return http.StatusRequestEntityTooLarge, fmt.Errorf("it is too large, %d bytes are the most", limit)
	case buffer.Len() == 0:
		err = fmt.Errorf("it is empty")
	case kind != "application/json":
		err = fmt.Errorf("its Content-Type is %q, not application/json", kind)
	}
	return http.StatusBadRequest, err
}

// firstUID finds request.uid: the API server writes it first, and a UID has no character that JSON would escape.
var firstUID = regexp.MustCompile(`"uid":\s*"([^"\\]+)"`)

// refusal is the answer to a request that could not be read.
func refusal(body []byte, code int32, why error) ctrladmission.Response {
	var uid types.UID
	if found := firstUID.FindSubmatch(body[:min(len(body), front)]); found != nil {
		uid = types.UID(found[1])
	}
	return ctrladmission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		UID: uid,
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReasonForbidden,
			Message: "Holdfast cannot read this request, so it refuses it: " + why.Error() +
				". If the Machine itself is too large or nested too deep, mend that first: it is not guarded, and passes.",
		},
	}}
}
