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

func (e enum) unmarshal(name []byte) (uint8, error) {
	i := slices.Index(e, string(name))
	if i < 0 {
		return 0, fmt.Errorf("%q is none of %s", name, strings.Join(e, ", "))
	}
	return uint8(i + 1), nil
}

func modes() enum     { return enum{"guard", "full"} }
func entries() enum   { return enum{"absent", "ours", "foreign"} }
func podOwners() enum { return enum{"guard", "old", "others"} }

// MarshalText is the mode in files.
func (m Mode) MarshalText() ([]byte, error) { return modes().marshal(uint8(m)) }

// UnmarshalText reads what MarshalText writes.
func (m *Mode) UnmarshalText(name []byte) error {
	value, err := modes().unmarshal(name)
	*m = Mode(value)
	return err
}

// MarshalText is the entry in files.
func (e Entry) MarshalText() ([]byte, error) { return entries().marshal(uint8(e)) }

// UnmarshalText reads what MarshalText writes.
func (e *Entry) UnmarshalText(name []byte) error {
	value, err := entries().unmarshal(name)
	*e = Entry(value)
	return err
}

// MarshalText is the owner in files.
func (o PodOwner) MarshalText() ([]byte, error) { return podOwners().marshal(uint8(o)) }

// UnmarshalText reads what MarshalText writes.
func (o *PodOwner) UnmarshalText(name []byte) error {
	value, err := podOwners().unmarshal(name)
	*o = PodOwner(value)
	return err
}
