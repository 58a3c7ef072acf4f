package quorum

// Rule is the name of an admission rule: the same in denials, warnings, metrics and tests.
type Rule string

// Page is where the rule is explained.
func (r Rule) Page() string {
	return "https://github.com/holdfast-dev/holdfast/blob/main/docs/rules.md#" + string(r)
}

const (
	RuleClaim             Rule = "claim"
	RuleAdopt             Rule = "adopt"
	RuleKeepHook          Rule = "keep-hook"
	RuleNoRegain          Rule = "no-regain"
	RuleEarlyRelease      Rule = "early-release"
	RuleAutomationRelease Rule = "automation-release"
	RuleEscapeHatch       Rule = "escape-hatch"
	RuleKeepFinalizer     Rule = "keep-finalizer"
	RuleKeepRole          Rule = "keep-role"
	RuleKeepHost          Rule = "keep-host"
	RuleUnprotectedDelete Rule = "unprotected-delete"
	RuleOneTooMany        Rule = "one-too-many"
	RuleDegradedDelete    Rule = "degraded-delete"
	RuleHeld              Rule = "held"
	RuleHome              Rule = "home"
	RuleHealthCheck       Rule = "health-check"
	RuleControlPlaneSet   Rule = "control-plane-set"
	RuleScaleIn           Rule = "scale-in"
	// RuleOverride keeps the override annotation a person's own: what automation writes there is
	// taken out, and the stamp says who set it.
	RuleOverride Rule = "override"
)

// Rules are all admission rules, in the order of internal/admission/doc.go.
var Rules = [...]Rule{
	RuleClaim, RuleAdopt, RuleKeepHook, RuleNoRegain, RuleEarlyRelease, RuleAutomationRelease, RuleEscapeHatch, RuleKeepFinalizer,
	RuleKeepRole, RuleKeepHost, RuleUnprotectedDelete, RuleOneTooMany, RuleDegradedDelete, RuleHeld, RuleHome, RuleHealthCheck, RuleControlPlaneSet,
	RuleScaleIn, RuleOverride,
}

// Overridable are the rules that an override lifts; claim for DELETE, and to take the name of an instance off a Machine.
var Overridable = [...]Rule{RuleClaim, RuleEscapeHatch, RuleKeepHost, RuleUnprotectedDelete, RuleOneTooMany, RuleDegradedDelete}
