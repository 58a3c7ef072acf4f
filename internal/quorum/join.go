package quorum

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Host is where a listed member runs, as far as identity tells: addresses, host names and evidence;
// never an index, never the tail of a name.
type Host struct {
	// Machines of the Snapshot that it is joined to, by evidence or by address. Where several have the address, the evidence of one decides whose
	// status, which only the Machine API writes, has it as well.
	Machines []*Machine
	Perhaps  []*Machine // all with evidence of it or its address, whatever decided, and all that name the instance of one of those: they are held
	// Own: the address is in the own status of one of Machines. On a Node alone it may be forged: it
	// counts where that is the one Machine's, and no other member is joined there, as evidence does.
	Own      bool
	Nodes    []*Node   // of the Snapshot: matching Nodes that belong to no Machine
	Departed *Evidence // the record that names the member is of a Machine that no longer exists
	// Bootstrap: the installer's temporary member, on a host that is neither Machine nor Node.
	Bootstrap bool
}

// Machine is the one Machine that hosts the member, nil if there is none or the join is ambiguous.
func (h *Host) Machine() *Machine {
	if len(h.Machines) == 1 && len(h.Nodes) == 0 {
		return h.Machines[0]
	}
	return nil
}

// Known says whether the member is joined to exactly one host, to a Machine that is gone, or to the
// bootstrap host.
func (h *Host) Known() bool {
	n := len(h.Machines) + len(h.Nodes)
	return n == 1 || n == 0 && (h.Departed != nil || h.Bootstrap)
}

// Join is the join of a Snapshot's members to its Machines and Nodes: what it is asked about, and what it answers, are
// pointers into that Snapshot. Make it with NewJoin.
type Join struct {
	s     *Snapshot
	hosts []Host  // of each of Ring.Members
	nodes []*Node // of each of Machines, nil without one
}

// NewJoin joins every member of the Snapshot to its host. Where etcd's list is wrong, nothing is known.
func NewJoin(s *Snapshot) *Join {
	if member := s.Mislisted(); member != nil {
		doubted := *s // with the same members, Machines and Nodes
		doubted.Ring.Known, doubted.Ring.Why = false, member.MislistedWhy()
		s = &doubted
	}
	j := &Join{s: s, hosts: make([]Host, len(s.Ring.Members)), nodes: make([]*Node, len(s.Machines))}
	for i := range s.Machines {
		j.nodes[i] = nodeOf(s, &s.Machines[i])
	}
	for k := range s.Ring.Members {
		member, host := &s.Ring.Members[k], &j.hosts[k]
		at := PeerHostsOf(member.PeerURLs)
		var named, sure []*Machine // with evidence of it; and with its address in their own status as well
		for i := range s.Machines {
			m := &s.Machines[i]
			names, has := m.OwnEvidence().Names(member.ID), at.Meets(m.Addresses, m.HostNames)
			if names || has || j.nodes[i] != nil && at.Meets(j.nodes[i].Addresses, j.nodes[i].HostNames) {
				host.Perhaps = append(host.Perhaps, m)
			}
			host.Own = host.Own || has
			if names {
				named = append(named, m)
			}
			if names && has {
				sure = append(sure, m)
			}
		}
		host.Machines = host.Perhaps
		if len(sure) > 0 {
			host.Machines = named
		}
		stands := slices.ContainsFunc(sure, func(m *Machine) bool { n := j.Node(m); return n != nil && n.Ready })
		// The Node of a Machine that cannot be read belongs to it, as far as anybody knows.
		unread := slices.ContainsFunc(host.Perhaps, func(m *Machine) bool { return m.Unread != "" })
		for i := range s.Nodes {
			if n := &s.Nodes[i]; j.Owner(n) == nil && !unread && !stands && (n.Ready || len(named) == 0) && at.Meets(n.Addresses, n.HostNames) {
				host.Nodes = append(host.Nodes, n)
			}
		}
		host.Perhaps = s.withTwins(host.Perhaps)
		host.Departed = departed(s, member.ID)
		host.Bootstrap = len(host.Machines)+len(host.Nodes) == 0 &&
			(member.Name == BootstrapName || s.Bootstrap.IsValid() && slices.Contains(at.addrs, s.Bootstrap.Unmap()))
	}
	for k := range j.hosts {
		if h := &j.hosts[k]; len(h.Machines) == 1 && len(j.Joined(h.Machines[0])) == 1 {
			h.Own = true
		}
	}
	return j
}

// withTwins adds to some Machines those that name the instance of one of them.
func (s *Snapshot) withTwins(some []*Machine) []*Machine {
	var keys []string
	for _, m := range some {
		keys = append(keys, m.InstanceKeys()...)
	}
	all := slices.Clone(some)
	for i := range s.Machines {
		if m := &s.Machines[i]; !slices.Contains(some, m) && slices.ContainsFunc(m.InstanceKeys(), func(key string) bool { return slices.Contains(keys, key) }) {
			all = append(all, m)
		}
	}
	return all
}

// MayRun says whether a Machine may run a member, as far as anybody knows. Where no Machine has the member's address for sure (Host.Own), it
// may run on each that has an instance and no place: the Node with that address may be its, and a member that answers although its
// Machine is gone runs somewhere.
func (j *Join) MayRun(m *Machine, member *Member) bool {
	h := j.Host(member)
	if h.Own || m.Unread != "" || m.NeverHadInstance() || j.placed(m) || h.Bootstrap && member.Name == BootstrapName {
		return slices.Contains(h.Perhaps, m)
	}
	return len(h.Perhaps)+len(h.Nodes) > 0 || h.Bootstrap || member.Healthy
}

// placed says whether a Machine has a Node, at an address in its own status.
func (j *Join) placed(m *Machine) bool {
	n := j.Node(m)
	return n != nil && slices.ContainsFunc(m.Addresses, func(a netip.Addr) bool { return slices.Contains(n.Addresses, a) })
}

// Host is where a listed member runs.
func (j *Join) Host(m *Member) *Host {
	for k := range j.hosts {
		if &j.s.Ring.Members[k] == m {
			return &j.hosts[k]
		}
	}
	return &Host{} // of another Snapshot: not known
}

// Known says whether the host of each member is.
func (j *Join) Known() bool {
	return !slices.ContainsFunc(j.hosts, func(h Host) bool { return !h.Known() })
}

// Node is a Machine's Node, nil without one.
func (j *Join) Node(m *Machine) *Node {
	for i := range j.nodes {
		if &j.s.Machines[i] == m {
			return j.nodes[i]
		}
	}
	return nil
}

// has says whether a Machine is the Snapshot's. Of another nothing is known: not even a copy is joined to anything.
func (j *Join) has(m *Machine) bool {
	for i := range j.s.Machines {
		if &j.s.Machines[i] == m {
			return true
		}
	}
	return false
}

// Owner is the Machine whose Node that is, nil without one.
func (j *Join) Owner(n *Node) *Machine {
	if i := slices.Index(j.nodes, n); i >= 0 {
		return &j.s.Machines[i]
	}
	return nil
}

// nodeOf finds a Machine's Node: by the link that the Machine API wrote, if that Node is there, else by provider ID. A link
// to a Node that is gone says nothing: the instance may have registered anew.
func nodeOf(s *Snapshot, m *Machine) *Node {
	if n := s.Node(m.NodeName); n != nil && m.NodeName != "" {
		return n
	}
	for i := range s.Nodes {
		if m.ProviderID != "" && strings.EqualFold(s.Nodes[i].ProviderID, m.ProviderID) { // Azure writes them in different case
			return &s.Nodes[i]
		}
	}
	return nil
}

// departed finds the record that names the member, if its Machine is gone and no Machine that is
// there has evidence of the member.
func departed(s *Snapshot, id MemberID) *Evidence {
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
func (j *Join) Hosting(m *Machine) (is Hosting, why string) {
	if !j.s.Ring.Known {
		return HostingUnknown, "etcd's member list is not known: " + j.s.Ring.Why
	}
	if !j.has(m) {
		return HostingUnknown, "it is no Machine of this Snapshot"
	}
	if len(j.Members(m)) > 0 {
		return HostingMember, ""
	}
	if m.Unread != "" {
		return HostingUnknown, "it cannot be read: " + m.Unread
	}
	if m.NeverHadInstance() {
		return HostingNothing, ""
	}
	if why := j.WhyHeldAfterRestore(m); why != "" && m.Deleting() {
		return HostingUnknown, why
	}
	for k := range j.hosts {
		if member := &j.s.Ring.Members[k]; !j.hosts[k].Known() {
			return HostingUnknown, "the host of etcd " + member.String() + " is not known: " + j.Ambiguity(member)
		} else if j.MayRun(m, member) {
			return HostingUnknown, "it has no Node at an address of its own, so it may be the host of etcd " + member.String() + ", which no Machine's status or evidence names"
		}
	}
	return HostingNothing, ""
}

// Runs says whether a member runs at its peer URLs, as far as anybody knows. Of two that are listed at one URL this is the one that
// answers. While neither does, it is the one that its Machine's evidence names.
func (j *Join) Runs(member *Member) bool {
	twins := j.s.Ring.Twins(member)
	named := func(o *Member) bool {
		return slices.ContainsFunc(j.s.Machines, func(m Machine) bool { return m.OwnEvidence().Names(o.ID) })
	}
	return len(twins) == 0 || member.Healthy ||
		named(member) && !slices.ContainsFunc(twins, func(o *Member) bool { return o.Healthy || named(o) })
}

// ListedTwice says that another member is listed at a member's peer URL, and what to type; "" if none is.
func (j *Join) ListedTwice(member *Member) string {
	twins := j.s.Ring.Twins(member)
	if len(twins) == 0 {
		return ""
	}
	var names, gone []string
	for k := range j.s.Ring.Members {
		if o := &j.s.Ring.Members[k]; o == member || slices.Contains(twins, o) {
			names = append(names, o.String())
			if !j.Runs(o) {
				gone = append(gone, o.ID.Hex())
			}
		}
	}
	which := "Remove the one that nobody runs"
	if len(gone) == len(names) {
		which = "The data directory there is of one of them (holdfast verify membership says which); remove the other"
	}
	return fmt.Sprintf("etcd lists %s at %s, and no new member starts until one of them is left (etcd issues 13196 and 20967). %s: etcdctl member remove %s",
		strings.Join(names, " and "), strings.Join(member.PeerURLs, ", "), which, cmp.Or(strings.Join(gone, " or "), "<id>"))
}

// WhyHeldAfterRestore says why a Machine whose own member is not listed any more is not let go when it is deleted: etcd has fewer voters than are
// wanted in the end, or nobody knows how many are, and it has lost the members of other Machines, too, as after a restore from a snapshot, which may date from when this one was
// being deleted. "" if nothing is so. One member alone is removed by hand.
func (j *Join) WhyHeldAfterRestore(m *Machine) string {
	lost := func(m *Machine) bool { return len(m.OwnEvidence().MemberIDs) > 0 && len(j.Joined(m)) == 0 }
	if !j.s.Ring.Known {
		return "" // no member is listed then
	}
	voters, _ := j.s.Ring.Voters()
	wanted := max(j.s.Desired, j.s.Replicas) // for this step, and in the end
	if wanted > 0 && voters >= wanted || !lost(m) {
		return ""
	}
	of := fmt.Sprintf("%d of %d voters", voters, wanted)
	if wanted == 0 {
		of = NVoters(voters) + " (wanted: unknown)"
	}
	for i := range j.s.Machines {
		if other := &j.s.Machines[i]; other != m && other.ControlPlane() && lost(other) {
			return fmt.Sprintf("etcd lists neither its member nor Machine %s's any more, as after a restore, and has %s; once hosts have joined again it goes (at once: kubectl holdfast release)",
				other.Name, of)
		}
	}
	return ""
}

// Ambiguity says why a member's host is not known.
func (j *Join) Ambiguity(member *Member) string {
	h := j.Host(member)
	if len(h.Machines)+len(h.Nodes) == 0 {
		if len(member.PeerURLs) == 0 {
			return "it has no peer URL"
		}
		return "no Machine or Node has the address of " + strings.Join(member.PeerURLs, ", ")
	}
	var names []string
	for _, m := range h.Machines {
		names = append(names, "Machine "+m.Name)
	}
	for _, n := range h.Nodes {
		names = append(names, "Node "+n.Name)
	}
	text := "it is joined to " + strings.Join(names, " and ")
	if len(h.Machines) > 1 {
		text += "; see which has that address. One that has not, and is being deleted, is let go: kubectl holdfast release <machine> --reason '...'"
	} else if len(h.Nodes) > 0 && len(names) > 1 {
		text += ", which has no Machine; if nothing runs there: kubectl delete node " + h.Nodes[len(h.Nodes)-1].Name
	}
	return text
}

// Members are the listed members that a Machine hosts, surely or perhaps.
func (j *Join) Members(m *Machine) []*Member { return j.members(m, true) }

// Joined are those of them that evidence does not say run elsewhere.
func (j *Join) Joined(m *Machine) []*Member { return j.members(m, false) }

func (j *Join) members(m *Machine, perhaps bool) (out []*Member) {
	for k := range j.hosts {
		if h := &j.hosts[k]; slices.Contains(h.Machines, m) || perhaps && slices.Contains(h.Perhaps, m) {
			out = append(out, &j.s.Ring.Members[k])
		}
	}
	return out
}

// Voter is a voter that the Machine hosts, nil without one; a healthy one first.
func (j *Join) Voter(m *Machine) *Member {
	var found *Member
	for _, member := range j.Members(m) {
		if !member.Learner && (found == nil || member.Healthy) {
			found = member
		}
	}
	return found
}

// Replacing says whether a member is on its way out: its Machine is deleting.
func (j *Join) Replacing(member *Member) bool {
	return slices.ContainsFunc(j.Host(member).Machines, (*Machine).Deleting)
}

// Stale says whether a member is a dead voter whose Machine no longer exists, even if a new host has its address or name again. A
// Node that never had a Machine and is not ready may be rebooting: it is away, not gone.
func (j *Join) Stale(member *Member) bool {
	return !member.Learner && j.s.Dead(member) && j.Host(member).Departed != nil
}

// Dead says whether a member does not answer, and is lost by the account of etcd's leader for Limits.DeadAfter. One that only does not answer
// Holdfast may vote.
func (s *Snapshot) Dead(m *Member) bool {
	return !m.Healthy && !m.LostSince.IsZero() && s.Now.Sub(m.LostSince) >= s.Limits.DeadAfter
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
