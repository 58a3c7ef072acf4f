package quorum

import (
	"fmt"
	"slices"
	"strings"
)

// enum is the names of an enum's values in files, of the value 1 first.
type enum []string

func (e enum) marshal(value uint8) ([]byte, error) {
	if value == 0 || int(value) > len(e) {
		return nil, fmt.Errorf("%d is none of %s", value, strings.Join(e, ", "))
	}
	return []byte(e[value-1]), nil
}

func unmarshal[T ~uint8](e enum, name []byte, into *T) error {
	*into = T(slices.Index(e, string(name)) + 1)
	if *into == 0 {
		return fmt.Errorf("%q is none of %s", name, strings.Join(e, ", "))
	}
	return nil
}

func modes() enum     { return enum{"guard", "full"} }
func entries() enum   { return enum{"absent", "ours", "foreign"} }
func podOwners() enum { return enum{"guard", "old", "others"} }

// MarshalText is the mode in files.
func (m Mode) MarshalText() ([]byte, error) { return modes().marshal(uint8(m)) }

// UnmarshalText reads what MarshalText writes.
func (m *Mode) UnmarshalText(name []byte) error { return unmarshal(modes(), name, m) }

// MarshalText is the entry in files.
func (e Entry) MarshalText() ([]byte, error) { return entries().marshal(uint8(e)) }

// UnmarshalText reads what MarshalText writes.
func (e *Entry) UnmarshalText(name []byte) error { return unmarshal(entries(), name, e) }

// MarshalText is the owner in files.
func (o PodOwner) MarshalText() ([]byte, error) { return podOwners().marshal(uint8(o)) }

// UnmarshalText reads what MarshalText writes.
func (o *PodOwner) UnmarshalText(name []byte) error { return unmarshal(podOwners(), name, o) }
