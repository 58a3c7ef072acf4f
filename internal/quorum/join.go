package quorum

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Host is where a listed member runs, as far as identity tells: addresses, host names and evidence;
// never an index, never the tail of a name.
type Host struct {
	Machines []int     // indexes into Snapshot.Machines, by evidence or by address
	Nodes    []int     // indexes into Snapshot.Nodes: matching Nodes that belong to no Machine of Snapshot
	Departed *Evidence // the record that names the member is of a Machine that no longer exists
	// Bootstrap: the installer's temporary member, on a host that is neither Machine nor Node.
	Bootstrap bool
}

// Machine is the index of the one Machine that hosts the member, -1 if there is none or the join is
// ambiguous.
func (h *Host) Machine() int {
	if len(h.Machines) == 1 && len(h.Nodes) == 0 {
		return h.Machines[0]
	}
	return -1
}

// Known says whether the member is joined to exactly one host, to a Machine that is gone, or to the
// bootstrap host.
func (h *Host) Known() bool {
	n := len(h.Machines) + len(h.Nodes)
	return n == 1 || n == 0 && (h.Departed != nil || h.Bootstrap)
}

// Join is the join of a Snapshot's members to its Machines and Nodes. Make it with NewJoin.
type Join struct {
	s     *Snapshot
	Hosts []Host // by member, in the order of Ring.Members
	node  []int  // by Machine: index of its Node, -1 without
}

// NewJoin joins every member of the Snapshot to its host.
func NewJoin(s *Snapshot) *Join {
	j := &Join{s: s, Hosts: make([]Host, len(s.Ring.Members)), node: make([]int, len(s.Machines))}
	owned := make([]bool, len(s.Nodes))
	for i := range s.Machines {
		j.node[i] = nodeOf(s, &s.Machines[i])
		if j.node[i] >= 0 {
			owned[j.node[i]] = true
		}
	}
	for k := range s.Ring.Members {
		member, host := &s.Ring.Members[k], &j.Hosts[k]
		at := PeerHostsOf(member.PeerURLs)
		for i := range s.Machines {
			m := &s.Machines[i]
			if m.OwnEvidence().Names(member.ID) || at.Meets(m.Addresses, m.HostNames) ||
				j.node[i] >= 0 && at.Meets(s.Nodes[j.node[i]].Addresses, s.Nodes[j.node[i]].HostNames) {
				host.Machines = append(host.Machines, i)
			}
		}
		for i := range s.Nodes {
			// The Node of a Machine that cannot be read belongs to it, as far as anybody knows.
			unread := slices.ContainsFunc(host.Machines, func(m int) bool { return s.Machines[m].Unread != "" })
			if !owned[i] && !unread && at.Meets(s.Nodes[i].Addresses, s.Nodes[i].HostNames) {
				host.Nodes = append(host.Nodes, i)
			}
		}
		host.Departed = departed(s, member.ID)
		host.Bootstrap = len(host.Machines)+len(host.Nodes) == 0 &&
			(member.Name == BootstrapName || s.Bootstrap.IsValid() && slices.Contains(at.addrs, s.Bootstrap.Unmap()))
	}
	return j
}

// Node is the index of a Machine's Node, -1 without one.
func (j *Join) Node(machine int) int { return j.node[machine] }

// Owner is the index of the Machine whose Node that is, -1 without one.
func (j *Join) Owner(node int) int { return slices.Index(j.node, node) }

// nodeOf finds a Machine's Node: by the link that the Machine API wrote, if that Node is there, else by provider ID.
func nodeOf(s *Snapshot, m *Machine) int {
	for i := range s.Nodes {
		if m.NodeName != "" && s.Nodes[i].Name == m.NodeName {
			return i
		}
	}
	if m.ProviderID == "" {
		return -1 // a link to a Node that is gone says nothing: the instance may have registered anew
	}
	return slices.IndexFunc(s.Nodes, func(n Node) bool { return n.ProviderID == m.ProviderID })
}

// departed finds the record that names the member, if its Machine is gone and no Machine that is
// there has evidence of the member.
func departed(s *Snapshot, id uint64) *Evidence {
	for i := range s.Machines {
		if s.Machines[i].OwnEvidence().Names(id) {
			return nil
		}
	}
	for i := range s.Records {
		r := &s.Records[i]
		if r.Names(id) {
			if r.MachineUID == "" || slices.ContainsFunc(s.Machines, func(m Machine) bool { return m.UID == r.MachineUID }) {
				return nil
			}
			return r
		}
	}
	return nil
}

// Hosting tells what is known of a Machine as a host.
type Hosting uint8

const (
	HostingUnknown Hosting = 1 + iota // it may host a member: hold
	HostingNothing                    // every listed member runs elsewhere, or the Machine never had an instance
	HostingMember                     // evidence or an address joins it to a listed member
)

// Hosting reports whether a Machine hosts a member. why is the reason for HostingUnknown, for people.
func (j *Join) Hosting(machine int) (is Hosting, why string) {
	if !j.s.Ring.Known {
		return HostingUnknown, "etcd's member list is not known: " + j.s.Ring.Why
	}
	m := &j.s.Machines[machine]
	for k := range j.Hosts {
		if slices.Contains(j.Hosts[k].Machines, machine) {
			return HostingMember, ""
		}
	}
	if m.Unread != "" {
		return HostingUnknown, "it cannot be read: " + m.Unread
	}
	if m.NeverHadInstance() {
		return HostingNothing, ""
	}
	for k := range j.Hosts {
		if member := &j.s.Ring.Members[k]; !j.Hosts[k].Known() {
			return HostingUnknown, "the host of etcd " + member.String() + " is not known: " + j.Ambiguity(k)
		}
	}
	return HostingNothing, ""
}

// Ambiguity says why a member's host is not known.
func (j *Join) Ambiguity(k int) string {
	h, member := &j.Hosts[k], &j.s.Ring.Members[k]
	if len(h.Machines)+len(h.Nodes) == 0 {
		if len(member.PeerURLs) == 0 {
			return "it has no peer URL"
		}
		return "no Machine or Node has the address of " + strings.Join(member.PeerURLs, ", ")
	}
	var names []string
	for _, i := range h.Machines {
		names = append(names, "Machine "+j.s.Machines[i].Name)
	}
	for _, i := range h.Nodes {
		names = append(names, "Node "+j.s.Nodes[i].Name)
	}
	return "it is joined to " + strings.Join(names, " and ")
}

// Members are the indexes of the listed members that a Machine hosts, surely or perhaps.
func (j *Join) Members(machine int) []int {
	var out []int
	for k := range j.Hosts {
		if slices.Contains(j.Hosts[k].Machines, machine) {
			out = append(out, k)
		}
	}
	return out
}

// Voter is the index of a voter that the Machine hosts, -1 without one; a healthy one first.
func (j *Join) Voter(machine int) int {
	found := -1
	for _, k := range j.Members(machine) {
		if member := &j.s.Ring.Members[k]; !member.Learner && (found < 0 || member.Healthy) {
			found = k
		}
	}
	return found
}

// Replacing says whether a member is on its way out: its Machine is deleting.
func (j *Join) Replacing(k int) bool {
	return slices.ContainsFunc(j.Hosts[k].Machines, func(i int) bool { return j.s.Machines[i].Deleting() })
}

// Stale says whether a member is a dead voter whose Machine no longer exists, even if a new host has
// its address or name again. A Node that is not ready and has no Machine counts as gone, too, once it
// has been away for longer than a reboot takes.
func (j *Join) Stale(k int) bool {
	member, host := &j.s.Ring.Members[k], &j.Hosts[k]
	if member.Learner || !j.s.Dead(member) {
		return false
	}
	if host.Departed != nil {
		return true
	}
	unread := slices.ContainsFunc(j.s.Machines, func(m Machine) bool { return m.Unread != "" }) // and the Node may be its
	return len(host.Machines) == 0 && len(host.Nodes) == 1 && !unread && !j.s.Nodes[host.Nodes[0]].Ready &&
		j.s.Now.Sub(member.Since) >= j.s.Limits.GoneAfter
}

// Dead says whether a member has not answered for longer than a flap lasts.
func (s *Snapshot) Dead(m *Member) bool {
	return !m.Healthy && !m.Since.IsZero() && s.Now.Sub(m.Since) >= s.Limits.DeadAfter
}

// PeerHosts are the addresses and host names of URLs.
type PeerHosts struct {
	addrs []netip.Addr
	names []string
}

// PeerHostsOf are the hosts of peer URLs.
func PeerHostsOf(urls []string) PeerHosts {
	var e PeerHosts
	for _, raw := range urls {
		u, err := url.Parse(raw)
		if err != nil || u.Hostname() == "" {
			continue // joins nothing, so the member's host stays unknown and holds
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			e.addrs = append(e.addrs, addr.Unmap())
		} else {
			e.names = append(e.names, strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")))
		}
	}
	return e
}

// Meets says whether one of the addresses or host names is among them.
func (e PeerHosts) Meets(addrs []netip.Addr, names []string) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(e.addrs, a.Unmap()) }) ||
		slices.ContainsFunc(names, func(n string) bool { return slices.Contains(e.names, strings.ToLower(n)) })
}

// PeerAddresses are the addresses in a member's peer URLs; what is no address is left out.
func (m *Member) PeerAddresses() []netip.Addr { return PeerHostsOf(m.PeerURLs).addrs }
