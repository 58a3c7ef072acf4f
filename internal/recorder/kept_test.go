package recorder

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1 "github.com/openshift/api/machine/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/client-go/tools/events"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// steps keeps steps in memory.
type steps []audit.Step

func (s *steps) WriteStep(step audit.Step) { *s = append(*s, step) }

// TestKeptEvents: each Event is a record too, about a reference and about an object.
func TestKeptEvents(t *testing.T) {
	types := runtime.NewScheme()
	must(t, machinev1.Install(types))
	var kept steps
	made := events.NewFakeRecorder(4)
	k := KeptEvents{EventRecorder: made, Audit: &kept, Scheme: types}
	k.Eventf(&corev1.ObjectReference{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "ns", Name: "master-3", UID: "m-3"}, nil, corev1.EventTypeNormal, "LearnerPromoted", "promote", "Holdfast: %d %%", 3)
	k.Eventf(&machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cluster", UID: "s"}}, nil, corev1.EventTypeWarning, "SetActionFailed", "create", "Holdfast could not")
	k.Eventf(nil, nil, corev1.EventTypeNormal, "Odd", "look", "about nothing")
	want := steps{
		{Reason: "LearnerPromoted", Action: "promote", Said: "Holdfast: 3 %", Object: auditapi.ObjectReference{
			APIGroup: "machine.openshift.io", APIVersion: "v1beta1", Resource: "machines", Namespace: "ns", Name: "master-3", UID: "m-3",
		}},
		{Reason: "SetActionFailed", Action: "create", Said: "Holdfast could not", Warning: true, Object: auditapi.ObjectReference{
			APIGroup: "machine.openshift.io", APIVersion: "v1", Resource: "controlplanemachinesets", Namespace: "ns", Name: "cluster", UID: "s",
		}},
		{Reason: "Odd", Action: "look", Said: "about nothing"},
	}
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Error(diff)
	}
	if len(made.Events) != 3 {
		t.Errorf("%d Events were made", len(made.Events))
	}
}
