package quorum

import (
	"net/netip"
	"time"
)

// Node is a control-plane Node.
type Node struct {
	Name       string
	ProviderID string
	Ready      bool
	Cordoned   bool
	Addresses  []netip.Addr // InternalIPs, in the Node's order
	HostNames  []string
	Zone       string
	CreatedAt  time.Time
	GaveWayAt  time.Time // GaveWayAnnotation, zero without it
}
