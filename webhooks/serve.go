package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// Handler serves a handler over HTTP, and refuses what it cannot read.
//
// An answer without the request's UID is none to the API server: the call has failed, and where the
// failure policy is Ignore the request passes. controller-runtime gives such answers to bodies that
// are too large or nested too deep for it, and both are in the hands of whoever writes a Machine:
// padding in a field that nobody guards would switch the guard off for it. So the UID is read from
// the front of the body, where the API server writes it, and put into the refusal.
func Handler(h admission.Handler) http.Handler {
	return &closed{&admission.Webhook{Handler: h, LogConstructor: func(base logr.Logger, _ *admission.Request) logr.Logger { return base }}}
}

// logger names the request in what is logged. Made only where something is: it costs as much as a decision.
func logger(ctx context.Context, req *admission.Request) logr.Logger {
	return admission.DefaultLogConstructor(log.FromContext(ctx), req)
}

type closed struct{ next http.Handler }

// front is how much of a body is searched for the UID. It stands before all that a user can write.
const front = 1 << 10

func (c *closed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := make([]byte, front)
	n, err := io.ReadFull(r.Body, begin)
	if n == 0 && err != nil {
		c.next.ServeHTTP(w, r)
		return
	}
	begin = begin[:n]
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(begin), r.Body), r.Body}
	answer := &answer{header: w.Header()}
	c.next.ServeHTTP(answer, r)
	// Warnings and patches cannot hold these bytes: quotes are escaped in them.
	if text := answer.body.Bytes(); bytes.Contains(text, []byte(`"uid":""`)) {
		if uid := uidOf(begin); uid != "" {
			answer.body = *bytes.NewBuffer(refusal(uid, text))
		}
	}
	if answer.code != 0 {
		w.WriteHeader(answer.code)
	}
	// The API server may have hung up; there is nobody to tell.
	_, _ = w.Write(answer.body.Bytes())
}

// answer is a response that is not on its way yet.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }

// refusal is the answer to a request that could not be read, with the reason of an answer that the API
// server would not take.
func refusal(uid types.UID, text []byte) []byte {
	result := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest, Reason: metav1.StatusReasonForbidden, Message: "the request could not be read"}
	var was admissionv1.AdmissionReview
	if err := json.Unmarshal(text, &was); err == nil && was.Response != nil && was.Response.Result != nil {
		result.Code, result.Message = was.Response.Result.Code, was.Response.Result.Message
	}
	result.Message = "Holdfast cannot read this request, so it refuses it: " + result.Message +
		". If the Machine itself is too large or nested too deep, mend that first: it is not guarded, and passes."
	raw, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: &admissionv1.AdmissionResponse{UID: uid, Result: result},
	})
	if err != nil {
		return text // cannot be: these are plain strings
	}
	return raw
}

// uidOf finds request.uid in the beginning of an AdmissionReview, "" if it is not there.
func uidOf(begin []byte) types.UID {
	d := json.NewDecoder(bytes.NewReader(begin))
	if !enter(d, "request") {
		return ""
	}
	if !enter(d, "") || !seek(d, "uid") {
		return ""
	}
	var uid types.UID
	if err := d.Decode(&uid); err != nil {
		return ""
	}
	return uid
}

// enter goes into an object, and to the value of a key in it; of no key, to the first one.
func enter(d *json.Decoder, key string) bool {
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return false
	}
	return key == "" || seek(d, key)
}

// seek goes to the value of a key in the object that d is in.
func seek(d *json.Decoder, key string) bool {
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return false
		}
		if token == key {
			return true
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			return false
		}
	}
	return false
}
