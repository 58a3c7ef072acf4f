package webhooks_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

// auditPolicy has the API server log who changes Machines.
func auditPolicy(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit-policy.yaml")
	must(t, os.WriteFile(file, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  resources: [{group: machine.openshift.io}]
- level: None
`), 0o600))
	return file
}

// testAuditLog reads back from the API server's own audit log which rule decided a request, and the
// UID under which Holdfast recorded it.
func (f *fixture) testAuditLog(t *testing.T) {
	file, err := os.Open(f.audit)
	must(t, err)
	defer func() { must(t, file.Close()) }()
	type found struct {
		webhook, rule, verdict string
		refused                bool
	}
	got := map[found]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditv1.Event
		must(t, json.Unmarshal(lines.Bytes(), &event))
		for _, webhook := range []string{registrations.RepairWebhook, registrations.ClosedWebhook, registrations.OpenWebhook} {
			rule := event.Annotations[webhook+"/rule"]
			if rule == "" {
				continue
			}
			if event.Annotations[webhook+"/request-uid"] == "" {
				t.Errorf("no request UID beside rule %s", rule)
			}
			got[found{webhook, rule, event.Annotations[webhook+"/verdict"], event.ResponseStatus.Code == 403}] = true
		}
	}
	must(t, lines.Err())
	for _, want := range []found{
		{registrations.RepairWebhook, string(quorum.RuleKeepHook), "repaired", false},
		{registrations.RepairWebhook, string(quorum.RuleAutomationRelease), "repaired", false},
		{registrations.RepairWebhook, string(quorum.RuleKeepFinalizer), "denied", true},
		{registrations.OpenWebhook, string(quorum.RuleEscapeHatch), "allowed", false},
		{registrations.OpenWebhook, string(quorum.RuleOneTooMany), "denied", true},
		{registrations.OpenWebhook, string(quorum.RuleHeld), "allowed", false},
		{registrations.ClosedWebhook, string(quorum.RuleUnprotectedDelete), "denied", true},
	} {
		if !got[want] {
			t.Errorf("the audit log has no request with %+v", want)
		}
	}
	if t.Failed() {
		t.Logf("it has %+v", got)
	}
}
