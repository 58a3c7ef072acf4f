package admission

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Verdict is what happens to a request.
type Verdict uint8

const (
	VerdictAllowed    Verdict = 1 + iota
	VerdictRepaired           // allowed, with what the rule protects put right
	VerdictOverridden         // a rule would have denied it, and a person lifted the rule beforehand
	VerdictDenied
)

func (v Verdict) String() string {
	return [...]string{VerdictAllowed: "allowed", VerdictRepaired: "repaired", VerdictOverridden: "overridden", VerdictDenied: "denied"}[v]
}

// Finding is what one rule had to say. Lines are for people: what happened, why, and what to do.
type Finding struct {
	Rule    quorum.Rule
	Verdict Verdict
	Lines   []string
}

// Fix is what has to happen to one protected field of the new object.
type Fix uint8

const (
	FixNone  Fix = iota // nothing
	FixAsOld            // as the old object has it
	FixDrop             // absent
	FixPut              // as Holdfast writes it: the entry with its owner, the stamp with the requester
)

// Repairs are the changes to the new object that make it acceptable. The zero value changes nothing.
type Repairs struct {
	Hook, Latch, Finalizer, Evidence, Override, OverrideBy, ProviderID Fix
	Instance                                                           [len(quorum.InstanceAnnotations)]Fix
}

// Decision is the answer to a Request. Without findings nothing guarded changed.
type Decision struct {
	Findings []Finding
	Repairs  Repairs
	Claims   quorum.Release // what has to be on the release ledger, as the Snapshot has it, before the request is allowed; the zero value for nothing
}

// Denial is the finding that denies the request, nil if it is allowed.
func (d *Decision) Denial() *Finding {
	for i := range d.Findings {
		if d.Findings[i].Verdict == VerdictDenied {
			return &d.Findings[i]
		}
	}
	return nil
}

// Warnings are the lines of all findings that do not deny: one Warning each.
func (d *Decision) Warnings() []string {
	var lines []string
	for i := range d.Findings {
		if d.Findings[i].Verdict != VerdictDenied {
			lines = append(lines, d.Findings[i].Lines...)
		}
	}
	return lines
}

func (d *Decision) add(rule quorum.Rule, verdict Verdict, lines ...string) {
	d.Findings = append(d.Findings, Finding{rule, verdict, lines})
}

// Describe is the decision as a person reads it: the verdict of each rule, its lines, the repairs.
func (d Decision) Describe() string {
	if len(d.Findings) == 0 && d.Repairs == (Repairs{}) {
		return "allowed\n"
	}
	var b strings.Builder
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "%s by %s\n", f.Verdict, f.Rule)
		for _, line := range f.Lines {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	if d.Repairs != (Repairs{}) {
		fmt.Fprintf(&b, "repair: %s\n", d.Repairs.Describe())
	}
	return b.String()
}

// Describe lists the repairs.
func (r Repairs) Describe() string {
	var out []string
	for _, f := range [...]struct {
		name string
		fix  Fix
	}{{"hook", r.Hook}, {"latch", r.Latch}, {"finalizer", r.Finalizer}, {"evidence", r.Evidence}, {"override", r.Override}, {"override-by", r.OverrideBy}, {"provider ID", r.ProviderID}} {
		if word := [...]string{FixAsOld: "as it was", FixDrop: "dropped", FixPut: "put"}; f.fix != FixNone {
			out = append(out, f.name+" "+word[f.fix])
		}
	}
	for i, fix := range r.Instance {
		if fix == FixAsOld { // the only fix that they get
			out = append(out, quorum.InstanceAnnotations[i].Key+" as it was")
		}
	}
	return strings.Join(out, ", ")
}
