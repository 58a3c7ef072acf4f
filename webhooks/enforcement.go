package webhooks

import (
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
)

// enforcing is a handler that answers as the enforcement has it.
type enforcing struct {
	ctrladmission.HandlerFunc
	enforcement admission.Enforcement
}

// handler answers with what decide says and the enforcement has it. The time that it takes is measured under that name.
func (g *Handlers) handler(name string, decide ctrladmission.HandlerFunc) ctrladmission.Handler {
	return enforcing{func(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
		defer g.Metrics.timed(name, req.Operation, time.Now())
		return enforced(g.Enforcement, decide(ctx, req))
	}, g.Enforcement}
}

// enforced is what the API server is answered: unless Holdfast enforces, every request passes as it is, but for Holdfast's own call to see
// whether the API server reaches it.
func enforced(e admission.Enforcement, r ctrladmission.Response) ctrladmission.Response {
	if e == admission.Enforce || r.Result != nil && r.Result.Details != nil && slices.ContainsFunc(r.Result.Details.Causes, func(c metav1.StatusCause) bool { return c.Type == selfCallCause }) {
		return r
	}
	passes := ctrladmission.Allowed("")
	passes.UID, passes.AuditAnnotations = r.UID, r.AuditAnnotations
	if passes.AuditAnnotations != nil {
		passes.AuditAnnotations["enforcement"] = e.String()
	}
	said := r.Warnings
	if !r.Allowed {
		said = append(said, strings.Split(r.Result.Message, "\n")...)
	}
	if e == admission.Warn && len(said) > 0 {
		passes.Warnings = append([]string{"Holdfast enforces nothing here (--enforcement=warn), and the request passes as it is. Otherwise it would answer:"}, lines(said)...)
	}
	return passes
}
