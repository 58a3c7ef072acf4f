package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitEvidence keeps the evidence as the custodians wrote it. Only they give any to a worker, which may get a control-plane label while
// Holdfast is down.
func (d *deciding) admitEvidence() {
	if d.class == ClassCustodian || d.New.EvidenceRaw == d.Old.EvidenceRaw || d.New.EvidenceRaw == "" && !d.guarded() {
		return
	}
	d.Repairs.Evidence = FixAsOld
	if !d.Drops() { // else the hook's own Warning says it all
		d.add(quorum.RuleKeepHook, VerdictRepaired, keepEvidence(d.Request)...)
	}
}

func keepEvidence(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put annotation %s of Machine %s back: only Holdfast writes which etcd member a Machine hosts.", quorum.RuleKeepHook, quorum.EvidenceAnnotation, r.name()),
	}
}
