package webhooks_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestOneLook: a release takes one look at the cluster, and nothing else is judged by that look.
func TestOneLook(t *testing.T) {
	deleting := strings.Replace(stored, `"name":"m"`, `"name":"m","resourceVersion":"7","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1)
	released := strings.Replace(stripped, `"name":"m"`, `"name":"m","resourceVersion":"7","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1)
	later := func(object string) string {
		return strings.Replace(object, `"resourceVersion":"7"`, `"resourceVersion":"8"`, 1)
	}
	by := func(user string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.UserInfo.Username = user }
	}
	request := review(t, admissionv1.Update, deleting, released, by(operator))
	for _, c := range []struct {
		name   string
		next   []byte // what the validating handler is asked after the mutating one was asked the request
		known  bool
		passed time.Duration
		looks  int
	}{
		{"the same request", request, true, 0, 1},
		{"the same request, of which etcd told nothing", request, false, 0, 2},
		{"the same request, much later", request, true, time.Second, 2},
		{"a later version", review(t, admissionv1.Update, later(deleting), later(released), by(operator)), true, 0, 2},
		{"another user", review(t, admissionv1.Update, deleting, released, by(holdfast)), true, 0, 2},
		{"a deletion", review(t, admissionv1.Delete, strings.Replace(deleting, "deletionTimestamp", "creationTimestamp", 1), "null", by(operator)), true, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &guard{calls: map[string]int{}, snapshot: ring(func(s *quorum.Snapshot) { s.Ring.Known = c.known })}
				mutates, validates, _ := local(t, g)
				ask(t, mutates, "application/json", request)
				time.Sleep(c.passed) //nolint:forbidigo // the bubble's clock
				ask(t, validates, "application/json", c.next)
				if g.looks != c.looks {
					t.Errorf("%d looks, want %d", g.looks, c.looks)
				}
				ask(t, validates, "application/json", c.next)
				if g.looks != c.looks+1 {
					t.Error("a look was given twice")
				}
			})
		})
	}
}
