package quorum

import (
	"slices"
	"strings"
	"time"
	"unicode"
)

// An override is a person's word, set on a Machine beforehand, that one rule does not hold for it. Admission stamps it with who
// set it and when. It counts for persons only, and for an hour.

// overrideLasts is for how long an override lifts its rule.
const overrideLasts = time.Hour

// ParseOverride splits "<rule>: <reason>". The rule is "" if it is none that can be overridden, the reason if it is
// nobody's: empty, or the placeholder of a text that was copied.
func ParseOverride(value string) (rule Rule, reason string) {
	name, reason, _ := strings.Cut(value, ":")
	if rule = Rule(strings.TrimSpace(name)); !slices.Contains(Overridable[:], rule) {
		rule = ""
	}
	reason = strings.TrimSpace(reason)
	if strings.HasPrefix(reason, "<") && strings.HasSuffix(reason, ">") || !strings.ContainsFunc(reason, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		reason = ""
	}
	return rule, reason
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

// StampedBy says whether a stamp is the one that the user gets at that time, or got just before.
func StampedBy(stamp, user string, now time.Time) bool {
	who, at := ParseStamp(stamp)
	return who == user && user != "" && now.Sub(at).Abs() <= time.Minute
}

// Lifts says whether a person lifted the rule for this Machine, no longer than an hour ago.
func (m *Machine) Lifts(rule Rule, now time.Time) bool {
	lifted, reason := ParseOverride(m.Override)
	_, at := ParseStamp(m.OverrideBy)
	age := now.Sub(at)
	return lifted == rule && reason != "" && age > -time.Minute && age < overrideLasts
}

// LiftedBy is who set the Machine's override, "" if nobody is known to have.
func (m *Machine) LiftedBy() string {
	user, _ := ParseStamp(m.OverrideBy)
	return user
}
