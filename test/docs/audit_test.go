package docs

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// TestAuditPage: the record on the page is one that Holdfast wrote, and every annotation and field of one is told.
func TestAuditPage(t *testing.T) {
	text := read(t, "docs/audit.md")
	for _, annotation := range []string{
		audit.RuleAnnotation, audit.VerdictAnnotation, audit.FieldManagerAnnotation, audit.AbandonedAnnotation, audit.ReleaseReasonAnnotation,
		audit.OverrideAnnotation, audit.OverrideByAnnotation, audit.EvidenceAnnotation, audit.RepeatedAnnotation, audit.RepeatedSinceAnnotation,
		audit.StepAnnotation, audit.WarningAnnotation,
	} {
		if !strings.Contains(text, "`"+annotation+"`") {
			t.Errorf("docs/audit.md does not tell annotation %s", annotation)
		}
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[audit.Evidence](), reflect.TypeFor[audit.Member]()} {
		for i := range kind.NumField() {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			if !strings.Contains(text, "`"+name) {
				t.Errorf("docs/audit.md does not tell field %s of the evidence", name)
			}
		}
	}
	var shown []string
	for _, b := range parse("docs/audit.md", text).blocks {
		if b.tag == "json" {
			shown = append(shown, strings.Join(b.lines, "\n"))
		}
	}
	if len(shown) != 1 {
		t.Fatalf("docs/audit.md shows %d records", len(shown))
	}
	want := record(t, shown[0])
	for _, line := range strings.Split(strings.TrimSpace(read(t, "docs/examples/audit.log")), "\n") {
		if got := record(t, line); got.AuditID == want.AuditID {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the record on the page is not the one in docs/examples/audit.log:\n%s", diff)
			}
			return
		}
	}
	t.Errorf("record %s is not in docs/examples/audit.log", want.AuditID)
}

// record reads an Event and its evidence, and knows every field.
func record(t *testing.T, text string) auditv1.Event {
	t.Helper()
	var e auditv1.Event
	strict(t, text, &e)
	if evidence, ok := e.Annotations[audit.EvidenceAnnotation]; ok {
		strict(t, evidence, &audit.Evidence{})
	}
	return e
}

func strict(t *testing.T, text string, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}
