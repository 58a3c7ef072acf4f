package plugin

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestReportEvents: of the API server's Events those about control-plane Machines, there or on record, and about their set.
func TestReportEvents(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	at := time.Date(2026, 11, 25, 10, 45, 20, 0, time.UTC)
	event := func(name, kind, group, object, note string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: name}, InvolvedObject: corev1.ObjectReference{APIVersion: group, Kind: kind, Name: object},
			Reason: "Told", Message: note, Type: corev1.EventTypeNormal, ReportingController: "somebody",
			FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at),
		}
	}
	const machines = "machine.openshift.io/v1beta1"
	api := memory(t, "alice", interceptor.Funcs{}, append(controlPlane(),
		event("a", "Machine", machines, "master-0", "there"), event("b", "Machine", machines, "master-3", "on record"),
		event("c", "Machine", machines, "worker-0", "a worker"), event("d", "ControlPlaneMachineSet", "machine.openshift.io/v1", "cluster", "the set"),
		event("e", "Machine", "example.com/v1", "master-0", "another's"))...)
	run := func(args string) string {
		var out, errs bytes.Buffer
		now := func() time.Time { return at.Add(time.Minute) }
		if status := execute(t.Context(), strings.Fields(args), terminal{strings.NewReader(""), &out, &errs, now, fakes{api, ""}}); status != 0 {
			t.Fatalf("%s: status %d: %s", args, status, errs.String())
		}
		return out.String()
	}
	with, without, page := run("report --events "+demoLog), run("report "+demoLog), run("report --events -o html "+demoLog)
	for note, want := range map[string]bool{"there": true, "on record": true, "a worker": false, "the set": true, "another's": false} {
		row := "somebody " + note
		if has := strings.Contains(strings.Join(strings.Fields(with), " "), row); has != want {
			t.Errorf("with Events it has %q: %t", row, has)
		}
		if strings.Contains(strings.Join(strings.Fields(without), " "), row) {
			t.Errorf("without Events it has %q", row)
		}
		if has := strings.Contains(page, ">"+note+"<"); has != want {
			t.Errorf("the page has %q: %t", note, has)
		}
	}
	if !strings.Contains(page, "<!doctype html>") || !strings.Contains(page, "controlplanemachineset/cluster") {
		t.Error("the page is " + page[:200])
	}
}
