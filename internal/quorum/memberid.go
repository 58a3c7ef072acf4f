package quorum

import (
	"fmt"
	"strconv"
)

// MemberID is the ID of an etcd member. 0 is no member, as for etcd. Print it with %x, as etcdctl does.
type MemberID uint64

// ParseMemberID reads an ID in hex. 0 is none.
func ParseMemberID(text string) (MemberID, error) {
	id, err := strconv.ParseUint(text, 16, 64)
	if err != nil || id == 0 {
		return 0, fmt.Errorf("%q is not an etcd member ID in hex, such as 8e9e05c52164694d", text)
	}
	return MemberID(id), nil
}

// Hex is the ID as etcdctl prints it.
func (id MemberID) Hex() string { return strconv.FormatUint(uint64(id), 16) }

// MarshalText is the ID in files and annotations. fmt does not ask for it.
func (id MemberID) MarshalText() ([]byte, error) { return []byte(id.Hex()), nil }

// UnmarshalText reads what MarshalText writes.
func (id *MemberID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseMemberID(string(text))
	return err
}
