package recorder

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/client-go/tools/events"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// Recorder makes admission's decisions audit records, Events on their Machines and lines in the log.
//
// A fight, the same user's requests about the same Machine with the same outcome, is one Event with a
// series. Its key is client-go's: regarding, related, reason, action, type and reporter,
// and not the note. So the user is the related object; the note is the first request's. client-go writes
// the second occurrence at once, then the count every 30 minutes and when the fight has rested for 6;
// what comes after that is another Event. The reporter is part of the key, so each replica that is asked
// has an Event of its own. The audit records have every count (package audit).
type Recorder struct {
	Enforcement admission.Enforcement // what becomes of the verdicts

	Events events.EventRecorder
	Audit  Audit
	Log    logr.Logger
}

// Audit keeps records. Write returns once a record cannot be lost with this process.
type Audit interface {
	Write(r audit.Record)
}

// eventReason is what people look for with kubectl get events. A rule without one makes no Event:
// its finding changes nothing that lasts.
func eventReason(f admission.Finding) string {
	switch f.Rule {
	case quorum.RuleOneTooMany, quorum.RuleDegradedDelete, quorum.RuleUnprotectedDelete:
		if f.Verdict == admission.VerdictDenied {
			return "DeletionBlocked"
		}
		return "OverrideUsed"
	case quorum.RuleHeld:
		return "DeletionHeld"
	case quorum.RuleKeepHook, quorum.RuleEarlyRelease, quorum.RuleAutomationRelease:
		return "HookRestored"
	case quorum.RuleNoRegain:
		return "HookRegainPrevented"
	case quorum.RuleEscapeHatch:
		return "EscapeHatchUsed"
	case quorum.RuleKeepFinalizer, quorum.RuleKeepRole:
		return "ChangeBlocked"
	case quorum.RuleKeepHost, quorum.RuleClaim:
		switch {
		case f.Verdict == admission.VerdictOverridden:
			return "OverrideUsed"
		case f.Verdict != admission.VerdictAllowed:
			return "ChangeBlocked"
		case f.Rule == quorum.RuleKeepHost:
			return "HostRestarts"
		}
		return string(membership.ReasonInstanceClaimedTwice)
	case quorum.RuleAdopt:
		if f.Verdict == admission.VerdictDenied {
			return "ChangeBlocked"
		}
		return "OwnerAdded"
	case quorum.RuleOverride, quorum.RuleHome, quorum.RuleHealthCheck, quorum.RuleControlPlaneSet, quorum.RuleScaleIn: // the first lasts only until it is used, the others are about no Machine
	}
	return ""
}

// Decided records a decision; a dry run leaves no trace.
//
// Where the API server has hung up (this process was stopped for a while, say), the failure policy has
// decided already. Such a decision is recorded as what it is, and makes no Event: nothing came of it.
func (r *Recorder) Decided(ctx context.Context, d webhooks.Record) {
	if d.DryRun() {
		return
	}
	object := auditapi.ObjectReference{
		APIGroup: d.Admission.Resource.Group, APIVersion: d.Admission.Resource.Version, Resource: d.Admission.Resource.Resource,
		Subresource: d.Admission.SubResource, Namespace: d.Admission.Namespace, Name: d.Admission.Name,
	}
	var override, overrideBy string
	if m := d.Request.Old; m != nil {
		object.Name, object.UID = m.Name, types.UID(m.UID) // a part of deletecollection has no name of its own
		override, overrideBy = m.Override, m.LiftedBy()
	}
	r.Audit.Write(audit.Record{
		RequestUID: d.Admission.UID, Received: d.Received, User: d.Admission.UserInfo, Operation: d.Request.Operation,
		Object: object, FieldManager: d.FieldManager(), Decision: d.Decision,
		Override: override, OverrideBy: overrideBy, Snapshot: d.Snapshot, Abandoned: ctx.Err() != nil, ReleaseReason: releaseReason(&d), Enforcement: r.Enforcement,
	})
	if ctx.Err() != nil {
		return
	}
	for _, f := range d.Decision.Findings {
		said := strings.Join(f.Lines, " ")
		r.Log.Info("admission", "rule", f.Rule, "verdict", f.Verdict.String(), "enforcement", r.Enforcement.String(), "operation", d.Request.Operation.String(),
			"resource", object.Resource, "name", object.Name, "user", d.Request.User.Name, "said", said)
		reason := eventReason(f)
		if reason != "" && r.Enforcement != admission.Enforce && (f.Verdict == admission.VerdictDenied || f.Verdict == admission.VerdictRepaired) {
			reason, said = "NotEnforced", fmt.Sprintf("not enforced (--enforcement=%s), it passed as it was: %s", r.Enforcement, said)
		}
		if reason == "" || object.UID == "" {
			continue // what is being created has no UID for an Event to hang on
		}
		kind := corev1.EventTypeNormal
		if f.Verdict != admission.VerdictAllowed || f.Rule == quorum.RuleEscapeHatch {
			kind = corev1.EventTypeWarning
		}
		r.Events.Eventf(&corev1.ObjectReference{
			APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine",
			Namespace: object.Namespace, Name: object.Name, UID: object.UID,
		}, &corev1.ObjectReference{
			APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: rbacv1.UserKind, Name: d.Request.User.Name,
		}, kind, reason, d.Request.Operation.String(), "%s", quorum.Clip(fmt.Sprintf("%s by %s: %s", d.Request.Operation, d.Request.User.Name, said), noteLimit))
	}
}

// releaseReason is what the request says of why, "" where it releases nothing by hand. What the Machine says already may be
// anybody's words. The API server has the annotation from the person, so it is cut.
func releaseReason(d *webhooks.Record) string {
	if !slices.ContainsFunc(d.Decision.Findings, func(f admission.Finding) bool { return f.Rule == quorum.RuleEscapeHatch }) {
		return ""
	}
	given := func(raw []byte) string {
		var object metav1.PartialObjectMetadata
		if json.Unmarshal(raw, &object) != nil {
			return "" // the handler refused what is no Machine; without annotations there is no reason
		}
		return object.Annotations[audit.ReleaseReasonAnnotation]
	}
	reason := given(d.Admission.Object.Raw)
	if reason == given(d.Admission.OldObject.Raw) {
		return ""
	}
	return quorum.Clip(reason, noteLimit)
}

// noteLimit is the length of an Event's note, in bytes, without the mark of one that was cut: the API server refuses an Event with a longer one.
const noteLimit = 1024 - len(" ...")
