package recorder

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/reference"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// KeptEvents keeps each Event as an audit record as well. An Event is gone after an hour or so, and counts where it repeats.
type KeptEvents struct {
	events.EventRecorder

	Audit  Steps
	Scheme *runtime.Scheme // of what the Events are about
}

// Steps keeps records of steps.
type Steps interface {
	WriteStep(step audit.Step)
}

// Eventf makes the Event and the record.
func (k KeptEvents) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	k.EventRecorder.Eventf(regarding, related, eventType, reason, action, note, args...)
	step := audit.Step{Reason: reason, Action: action, Said: fmt.Sprintf(note, args...), Warning: eventType == corev1.EventTypeWarning}
	if about, err := reference.GetReference(k.Scheme, regarding); err == nil { // else the record names no object
		step.Object = audit.ObjectOf(about)
	}
	k.Audit.WriteStep(step)
}
