package audit

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/uuid"
	auditapi "k8s.io/apiserver/pkg/apis/audit"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

const (
	// StepAnnotation is the reason of a Step. A record has it or RuleAnnotation, never both.
	StepAnnotation = "holdfast.dev/step"
	// WarningAnnotation is "true" on a Step that went wrong, or reports something that did.
	WarningAnnotation = "holdfast.dev/warning"
	// StepUser is the user in the record of a Step: Holdfast itself.
	StepUser = "holdfast"
)

// Step is what Holdfast did of its own accord, or saw happen: no request was decided. Its record outlives the Event.
type Step struct {
	Object  auditapi.ObjectReference // it is about; empty for etcd's members and the control plane as a whole
	Reason  string                   // one word, as on the Event: LearnerPromoted
	Action  string                   // as on the Event: promote
	Said    string
	Warning bool

	Snapshot *quorum.Snapshot // what was seen; nil where the record is not about it
}

// ObjectOf is the object of a Step, from a reference with a kind.
func ObjectOf(about *corev1.ObjectReference) auditapi.ObjectReference {
	resource, _ := meta.UnsafeGuessKindToResource(about.GroupVersionKind())
	return auditapi.ObjectReference{
		APIGroup: resource.Group, APIVersion: resource.Version, Resource: resource.Resource,
		Namespace: about.Namespace, Name: about.Name, UID: about.UID,
	}
}

// WriteStep records a step, as Write does a decision.
func (s *Sink) WriteStep(step Step) {
	if len(s.locals) == 0 {
		return
	}
	now := time.Now()
	e := newEvent(uuid.NewUUID(), step.Action, step.Said, now, now, step.Snapshot)
	e.User.Username, e.ObjectRef = StepUser, &step.Object
	e.Annotations[StepAnnotation] = step.Reason
	if step.Warning {
		e.Annotations[WarningAnnotation] = "true"
	}
	s.send(e)
}
