package decisions_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// replacing is a ring of three in the middle of a replacement.
func replacing(b *testing.B) *world {
	w := newWorld()
	for _, line := range []string{
		"machine master-0 10.0.0.10 deleting", "machine master-1 10.0.0.11", "machine master-2 10.0.0.12", "machine master-3 10.0.0.13",
		"member a0 10.0.0.10", "member a1 10.0.0.11", "member a2 10.0.0.12", "member a3 10.0.0.13 learner lag=5000",
	} {
		if err := w.set(line); err != nil {
			b.Fatal(err)
		}
	}
	w.witness()
	return w
}

func BenchmarkAdmit(b *testing.B) {
	w, ids := replacing(b), identities()
	stripped := *w.machine("master-1")
	stripped.Hook, stripped.Latch, stripped.EvidenceRaw = q.EntryAbsent, q.EntryAbsent, ""
	old := w.machine("master-1")
	for _, c := range []struct {
		name string
		r    admission.Request
	}{
		{"unchanged", admission.Request{Operation: admission.OperationUpdate, User: people()["gitops"], Old: old, New: old}},
		{"restore", admission.Request{Operation: admission.OperationUpdate, User: people()["gitops"], Old: old, New: &stripped}},
		{"delete", admission.Request{Operation: admission.OperationDelete, User: people()["alice"], Old: old}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ids.Admit(&c.r, given(ids, &c.r, &w.s))
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	w := replacing(b)
	b.ReportAllocs()
	for b.Loop() {
		membership.Decide(&w.s)
	}
}
