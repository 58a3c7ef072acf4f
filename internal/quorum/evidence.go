package quorum

import (
	"net/netip"
	"slices"
)

// Evidence is what a Machine says of the etcd member that it hosts. It is written with the hook and
// survives a Machine that loses its addresses. Only evidence under the Machine's own UID counts: a
// copied manifest claims nothing. The tags are the form in which it is stored.
type Evidence struct {
	MachineUID string       `json:"machineUID"`
	Machine    string       `json:"machine"` // its name, for people
	MemberIDs  []MemberID   `json:"memberIDs"`
	Addresses  []netip.Addr `json:"peerAddresses"`   // of the peer URLs
	Voted      bool         `json:"voted,omitempty"` // of a record: etcd has listed the member as a voter
}

// Names reports whether the evidence names the member.
func (e Evidence) Names(id MemberID) bool { return slices.Contains(e.MemberIDs, id) }

// OwnEvidence is the Machine's evidence if it is under its own UID, else the zero Evidence.
func (m *Machine) OwnEvidence() Evidence {
	if m.UID == "" || m.Evidence.MachineUID != m.UID {
		return Evidence{}
	}
	return m.Evidence
}

// EvidenceCopied reports whether the evidence came with another Machine's manifest: then it is nothing.
func (m *Machine) EvidenceCopied() bool {
	return m.Evidence.MachineUID != "" && m.Evidence.MachineUID != m.UID
}

// Same reports whether both say the same of a Machine.
func (e Evidence) Same(o Evidence) bool {
	return e.MachineUID == o.MachineUID && slices.Equal(e.MemberIDs, o.MemberIDs) && slices.Equal(e.Addresses, o.Addresses)
}
