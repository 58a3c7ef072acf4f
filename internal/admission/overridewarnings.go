package admission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitOverride lets only persons set an override, and records who set it. How long it counts is in quorum/override.go.
func (d *deciding) admitOverride() {
	switch changed := d.New.Override != d.Old.Override; {
	case !changed && d.New.OverrideBy == d.Old.OverrideBy:
	case changed && d.New.Override == "" && d.class != ClassAutomation:
		if d.New.OverrideBy != "" {
			d.Repairs.OverrideBy = FixDrop
		}
		d.add(quorum.RuleOverride, VerdictAllowed, fmt.Sprintf("Holdfast (%s): the override of Machine %s is gone: %s", quorum.RuleOverride, d.name(), quorum.Clip(d.Old.Override, 120)))
	case changed && d.class == ClassPerson:
		if !quorum.StampedBy(d.New.OverrideBy, d.User.Name, d.At) {
			d.Repairs.OverrideBy = FixPut
		}
		if rules, reason := quorum.ParseOverride(d.New.Override); len(rules) == 0 || reason == "" {
			d.add(quorum.RuleOverride, VerdictAllowed, overrideUnclear(d.Request)...)
		} else {
			d.add(quorum.RuleOverride, VerdictAllowed, overrideSet(d.Request, rules, reason)...)
		}
	default:
		d.Repairs.Override, d.Repairs.OverrideBy = FixAsOld, FixAsOld
		d.add(quorum.RuleOverride, VerdictRepaired, overrideTaken(d.Request)...)
	}
}

func overrideUsed(r *Request, rule quorum.Rule) []string {
	_, reason := quorum.ParseOverride(r.Old.Override)
	return []string{fmt.Sprintf("Holdfast (%s): the rule is lifted for Machine %s by %s: %s", rule, r.name(), quorum.Clip(r.Old.LiftedBy(), 140), quorum.Clip(reason, 80))}
}

func overrideSet(r *Request, rules []quorum.Rule, reason string) []string {
	if r.Old.Deleting() && r.Old.Hook == quorum.EntryAbsent && r.Old.Latch == quorum.EntryOurs && !r.Unenforced && slices.Contains(rules, quorum.RuleEscapeHatch) {
		return []string{fmt.Sprintf("Holdfast (%s) lets Machine %s go at once, whatever etcd loses with it, because its hook is off already: %s", quorum.RuleOverride, r.name(), quorum.Clip(reason, 80))}
	}
	return []string{
		fmt.Sprintf("Holdfast (%s): until %s people may pass %s for Machine %s: %s", quorum.RuleOverride, r.At.Add(quorum.OverrideLifetime).UTC().Format("15:04 MST"),
			list(rules), r.name(), quorum.Clip(reason, 80)),
		"To take the override away: " + r.kubectl("annotate", quorum.OverrideAnnotation+"-"),
	}
}

func list(rules []quorum.Rule) string {
	var names []string
	for _, rule := range rules {
		names = append(names, string(rule))
	}
	return strings.Join(names, ", ")
}

func overrideUnclear(r *Request) []string {
	wrong := "the reason is missing"
	rules, _, _ := strings.Cut(r.New.Override, ":")
	for name := range strings.SplitSeq(rules, ",") {
		switch rule := quorum.Rule(strings.TrimSpace(name)); {
		case slices.Contains(quorum.Overridable[:], rule):
		case slices.Contains(quorum.Rules[:], rule):
			wrong = fmt.Sprintf("rule %s cannot be lifted", rule)
		default:
			wrong = fmt.Sprintf("%q is no rule", quorum.Clip(string(rule), 40))
		}
	}
	return []string{
		fmt.Sprintf("Holdfast (%s): %s=%q on Machine %s lifts nothing: %s.", quorum.RuleOverride, quorum.OverrideAnnotation, quorum.Clip(r.New.Override, 80), r.name(), wrong),
		"It has to be '<rule>: <reason>' or '<rule>, <rule>: <reason>', with a reason of your own, and each rule one of " + list(quorum.Overridable[:]) + ".",
	}
}

func overrideTaken(r *Request) []string {
	return []string{fmt.Sprintf("Holdfast (%s) put the override annotations of Machine %s back: only a person sets them, and only Holdfast says who did.", quorum.RuleOverride, r.name())}
}
