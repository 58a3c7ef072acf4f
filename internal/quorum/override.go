package quorum

import (
	"slices"
	"strings"
	"time"
	"unicode"
)

// An override is a person's word, set on a Machine beforehand, that some rules do not hold for it. Admission adds the user's name
// and the time. It counts for persons only, and for an hour.

// OverrideLifetime is for how long an override lifts its rules.
const OverrideLifetime = time.Hour

// ParseOverride splits "<rule>: <reason>" or "<rule>, <rule>: <reason>". There are no rules if one cannot be overridden, and the
// reason is "" if it is empty, or still the placeholder of the command that was copied.
func ParseOverride(value string) (rules []Rule, reason string) {
	names, reason, _ := strings.Cut(value, ":")
	for name := range strings.SplitSeq(names, ",") {
		rule := Rule(strings.TrimSpace(name))
		if !slices.Contains(Overridable[:], rule) {
			rules = nil
			break
		}
		rules = append(rules, rule)
	}
	return rules, Reason(reason)
}

// Reason is a text without the space around it, or "" for the placeholder of a text that was copied, such as
// <reason> or "...".
func Reason(text string) string {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "<") && strings.HasSuffix(text, ">") || !strings.ContainsFunc(text, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		return ""
	}
	return text
}

// Stamp is OverrideByAnnotation as admission writes it: the user's name and the time, "alice 2026-11-22T10:00:00Z".
func Stamp(user string, at time.Time) string { return user + " " + at.UTC().Format(time.RFC3339) }

// ParseStamp reads it. The user is "" if it is none.
func ParseStamp(stamp string) (user string, at time.Time) {
	i := strings.LastIndex(stamp, " ")
	at, err := time.Parse(time.RFC3339, stamp[i+1:])
	if err != nil || i <= 0 {
		return "", time.Time{}
	}
	return stamp[:i], at
}

// StampedBy reports whether a stamp is the one that the user gets at that time, or got just before.
func StampedBy(stamp, user string, now time.Time) bool {
	who, at := ParseStamp(stamp)
	return who == user && user != "" && now.Sub(at).Abs() <= time.Minute
}

// Lifted are the rules that a person lifted for this Machine, no longer than an hour ago. Where there is an override and it lifts
// nothing, why says so.
func (m *Machine) Lifted(now time.Time) (rules []Rule, why string) {
	rules, reason := ParseOverride(m.Override)
	who, at := ParseStamp(m.OverrideBy)
	age := now.Sub(at)
	switch {
	case m.Override == "":
		return nil, ""
	case len(rules) == 0 || reason == "":
		return nil, "it needs a rule that can be lifted, and a reason"
	case who == "":
		return nil, "nobody signed it"
	case age <= -time.Minute:
		return nil, "it is dated in the future, " + at.UTC().Format(time.RFC3339)
	case age >= OverrideLifetime:
		return nil, "it was set at " + at.UTC().Format(time.RFC3339) + " and lasted for an hour"
	}
	return rules, ""
}

// NewReason stands for the reason in a command that sets an override. Where one is set that lifts nothing, the same reason would change nothing.
func (m *Machine) NewReason(now time.Time) string {
	if _, why := m.Lifted(now); why != "" {
		return "<new reason>"
	}
	return "<reason>"
}

// Lifts reports whether the rule is among them.
func (m *Machine) Lifts(rule Rule, now time.Time) bool {
	rules, _ := m.Lifted(now)
	return slices.Contains(rules, rule)
}

// LiftedBy is the user who set the Machine's override, "" if unknown.
func (m *Machine) LiftedBy() string {
	user, _ := ParseStamp(m.OverrideBy)
	return user
}
