package admission

import "fmt"

// Enforcement is what becomes of a verdict, in the terms of Pod Security admission. The zero value enforces.
type Enforcement uint8

const (
	Enforce Enforcement = iota // what is denied is refused, and what is repaired is put right
	Warn                       // both pass as they are; they are recorded, and the requester is warned
	Audit                      // both pass as they are; they are recorded
)

func (e Enforcement) String() string {
	return [...]string{Enforce: "enforce", Warn: "warn", Audit: "audit"}[e]
}

// MarshalText is String.
func (e Enforcement) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (e *Enforcement) UnmarshalText(text []byte) error {
	for _, one := range [...]Enforcement{Enforce, Warn, Audit} {
		if one.String() == string(text) {
			*e = one
			return nil
		}
	}
	return fmt.Errorf("%q is not enforce, warn or audit", text)
}
