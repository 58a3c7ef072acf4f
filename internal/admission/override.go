package admission

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitOverride keeps the override a person's, with the name of who set it.
func admitOverride(d *Decision, r *Request, class Class) {
	switch changed := r.New.Override != r.Old.Override; {
	case !changed && r.New.OverrideBy == r.Old.OverrideBy:
	case changed && r.New.Override == "" && class != ClassAutomation:
		if r.New.OverrideBy != "" {
			d.Repairs.OverrideBy = FixDrop
		}
	case changed && class == ClassPerson:
		if !quorum.StampedBy(r.New.OverrideBy, r.User.Name, r.At) {
			d.Repairs.OverrideBy = FixPut
		}
		if rules, reason := quorum.ParseOverride(r.New.Override); len(rules) == 0 || reason == "" {
			d.add(quorum.RuleOverride, VerdictAllowed, overrideUnclear(r)...)
		}
	default:
		d.Repairs.Override, d.Repairs.OverrideBy = FixAsOld, FixAsOld
		d.add(quorum.RuleOverride, VerdictRepaired, overrideTaken(r)...)
	}
}

func overrideUsed(r *Request, rule quorum.Rule) []string {
	_, reason := quorum.ParseOverride(r.Old.Override)
	return []string{fmt.Sprintf("Holdfast (%s): the rule is lifted for Machine %s by %s: %s", rule, r.name(), quorum.Clip(r.Old.LiftedBy(), 140), quorum.Clip(reason, 80))}
}

func overrideUnclear(r *Request) []string {
	var names []string
	for _, rule := range quorum.Overridable {
		names = append(names, string(rule))
	}
	return []string{
		fmt.Sprintf("Holdfast (%s): %s=%q on Machine %s lifts nothing.", quorum.RuleOverride, quorum.OverrideAnnotation, quorum.Clip(r.New.Override, 80), r.name()),
		"It has to be '<rule>: <reason>' or '<rule>, <rule>: <reason>', with a reason of your own, and each rule one of " + strings.Join(names, ", ") + ".",
	}
}

func overrideTaken(r *Request) []string {
	return []string{fmt.Sprintf("Holdfast (%s) put the override annotations of Machine %s back: only a person sets them, and only Holdfast says who did.", quorum.RuleOverride, r.name())}
}
