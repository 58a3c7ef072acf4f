package audit_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

// TestMerge: the logs of several replicas are one, in time's order, and no decision is there twice.
func TestMerge(t *testing.T) {
	entry := func(id, rule string, second int, annotations ...string) audit.Entry {
		e := audit.Entry{Event: auditv1.Event{
			AuditID: types.UID(id), Annotations: map[string]string{audit.RuleAnnotation: rule},
			RequestReceivedTimestamp: metav1.NewMicroTime(time.Date(2026, 3, 1, 12, 0, second, 0, time.UTC)),
		}}
		for i := 0; i < len(annotations); i += 2 {
			e.Annotations[annotations[i]] = annotations[i+1]
		}
		return e
	}
	var got []string
	for _, e := range audit.Merge([]audit.Entry{
		entry("c", "held", 3),
		entry("a", "held", 1, audit.AbandonedAnnotation, "true"), // the first replica was too slow
		entry("a", "held", 2), // the second one answered
		entry("b", "held", 4),
		entry("b", "held", 4, audit.AbandonedAnnotation, "true"),
		entry("c", "held", 3),
		entry("c", "keep-hook", 5),                                // another decision on the request
		entry("c", "keep-hook", 6, audit.RepeatedAnnotation, "9"), // stands for others
		entry("", "held", 7),
		entry("", "held", 7),
	}) {
		got = append(got, e.Last().Format("5 ")+string(e.AuditID)+" "+e.Rules()[0])
		if e.Abandoned() {
			t.Errorf("%s is left of two, and nobody waited for it", e.AuditID)
		}
	}
	if diff := cmp.Diff([]string{"2 a held", "3 c held", "4 b held", "5 c keep-hook", "6 c keep-hook", "7  held", "7  held"}, got); diff != "" {
		t.Error(diff)
	}
}
