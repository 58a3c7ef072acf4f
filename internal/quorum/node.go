package quorum

import (
	"net/netip"
	"time"
)

// Node is a control-plane Node.
type Node struct {
	Name       string       `json:"name"`
	ProviderID string       `json:"providerID,omitzero"`
	Ready      bool         `json:"ready"`
	Cordoned   bool         `json:"cordoned,omitzero"`
	Addresses  []netip.Addr `json:"addresses,omitempty"` // InternalIPs, in the Node's order
	HostNames  []string     `json:"hostNames,omitempty"`
	Zone       string       `json:"zone,omitzero"`
	CreatedAt  time.Time    `json:"createdAt,omitzero"`
	GaveWayAt  time.Time    `json:"gaveWayAt,omitzero"` // GaveWayAnnotation, zero without it
}
