package controller

import (
	"context"
	"strings"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Recorder makes admission's decisions Events on their Machines and lines in the log.
type Recorder struct {
	Events events.EventRecorder
	Log    logr.Logger
}

// eventReason is what people look for with kubectl get events. A rule without one makes no Event:
// its finding changes nothing that lasts.
func eventReason(f quorum.Finding) string {
	switch f.Rule {
	case quorum.OneTooMany, quorum.DegradedDelete, quorum.UnprotectedDelete:
		if f.Verdict == quorum.Denied {
			return "DeletionBlocked"
		}
		return "OverrideUsed"
	case quorum.Held:
		return "DeletionHeld"
	case quorum.KeepHook, quorum.EarlyRelease, quorum.AutomationRelease:
		return "HookRestored"
	case quorum.NoRegain:
		return "HookRegainPrevented"
	case quorum.EscapeHatch:
		if f.Verdict == quorum.Denied {
			return "ReleaseBlocked"
		}
		return "EscapeHatchUsed"
	case quorum.KeepFinalizer, quorum.KeepRole, quorum.Claim:
		return "ChangeBlocked"
	case quorum.OverrideRule, quorum.Home: // the one lasts only until it is used, the other is about no Machine
	}
	return ""
}

// Decided records a decision; a dry run leaves no trace.
func (r *Recorder) Decided(_ context.Context, req quorum.Request, d quorum.Decision, dryRun bool) {
	if dryRun {
		return
	}
	m := req.Old
	if m == nil {
		m = req.New
	}
	for _, f := range d.Findings {
		r.Log.Info("admission", "rule", f.Rule, "verdict", f.Verdict.String(), "operation", req.Operation.String(),
			"machine", m.Name, "user", req.User.Name, "said", strings.Join(f.Lines, " "))
		reason := eventReason(f)
		if reason == "" || m.UID == "" {
			continue // a Machine that is being created has no UID for an Event to hang on
		}
		kind := corev1.EventTypeNormal
		if f.Verdict != quorum.Allowed || f.Rule == quorum.EscapeHatch {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(&corev1.ObjectReference{
			APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine",
			Namespace: req.Namespace, Name: m.Name, UID: types.UID(m.UID),
		}, nil, kind, reason, req.Operation.String(), "%s by %s: %s", req.Operation, req.User.Name, strings.Join(f.Lines, " "))
	}
}
