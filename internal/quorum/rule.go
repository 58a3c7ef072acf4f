package quorum

// Rule is the name of an admission rule: the same in denials, warnings, metrics and tests.
type Rule string

const (
	Claim             Rule = "claim"
	Adopt             Rule = "adopt"
	KeepHook          Rule = "keep-hook"
	NoRegain          Rule = "no-regain"
	EarlyRelease      Rule = "early-release"
	AutomationRelease Rule = "automation-release"
	EscapeHatch       Rule = "escape-hatch"
	KeepFinalizer     Rule = "keep-finalizer"
	KeepRole          Rule = "keep-role"
	UnprotectedDelete Rule = "unprotected-delete"
	OneTooMany        Rule = "one-too-many"
	DegradedDelete    Rule = "degraded-delete"
	Held              Rule = "held"
	Home              Rule = "home"
	HealthCheck       Rule = "health-check"
	// OverrideRule keeps the override annotation a person's own: what automation writes there is
	// taken out, and the stamp says who set it.
	OverrideRule Rule = "override"
)

// Rules are all admission rules, in the order of doc.go.
var Rules = [...]Rule{
	Claim, Adopt, KeepHook, NoRegain, EarlyRelease, AutomationRelease, EscapeHatch, KeepFinalizer,
	KeepRole, UnprotectedDelete, OneTooMany, DegradedDelete, Held, Home, HealthCheck, OverrideRule,
}

// overridable are the rules that an override lifts; claim for DELETE alone.
var overridable = [...]Rule{Claim, EscapeHatch, UnprotectedDelete, OneTooMany, DegradedDelete}
