package quorum

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Host is where a listed member runs, as far as it can be identified: by addresses, host names and evidence;
// never an index, never the tail of a name.
type Host struct {
	// Machines are those that the member is joined to, by evidence or by address; pointers into the Snapshot. If several Machines have the
	// member's address, only those with evidence of it count, provided that one of these has the address in its own status, too (only the
	// Machine API writes that).
	Machines []*Machine
	// Candidates are all Machines with evidence of the member or with its address, and all that name the instance of one of these. None of them is
	// released.
	Candidates []*Machine
	// AddressConfirmed: one of Machines has the address in its own status. An address on a Node alone may be forged. It counts as confirmed if
	// the Node belongs to the only Machine and that Machine is joined to no other member.
	AddressConfirmed bool
	Nodes            []*Node   // of the Snapshot: matching Nodes that belong to no Machine
	Departed         *Evidence // the record that names the member is of a Machine that no longer exists
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

// Known reports whether the member is joined to exactly one host, to a Machine that is gone, or to the
// bootstrap host.
func (h *Host) Known() bool {
	n := len(h.Machines) + len(h.Nodes)
	return n == 1 || n == 0 && (h.Departed != nil || h.Bootstrap)
}

// Join joins a Snapshot's members to its Machines and Nodes. Arguments and results are pointers into that Snapshot. Make it with NewJoin.
type Join struct {
	of    *Snapshot
	s     *Snapshot // of, or where its member list is wrong a copy that says so
	hosts []Host    // of each of Ring.Members
	nodes []*Node   // of each of Machines, nil without one
}

// NewJoin joins every member of the Snapshot to its host. If etcd's member list is wrong (Snapshot.Mislisted), no host is known.
func NewJoin(s *Snapshot) *Join {
	of := s
	if member := s.Mislisted(); member != nil {
		doubted := *s // with the same members, Machines and Nodes
		doubted.Ring.Known, doubted.Ring.Why = false, member.MislistedWhy()
		s = &doubted
	}
	j := &Join{of: of, s: s, hosts: make([]Host, len(s.Ring.Members)), nodes: make([]*Node, len(s.Machines))}
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
				host.Candidates = append(host.Candidates, m)
			}
			host.AddressConfirmed = host.AddressConfirmed || has
			if names {
				named = append(named, m)
			}
			if names && has {
				sure = append(sure, m)
			}
		}
		host.Machines = host.Candidates
		if len(sure) > 0 {
			host.Machines = named
		}
		stands := slices.ContainsFunc(sure, func(m *Machine) bool { n := j.Node(m); return n != nil && n.Ready })
		// The Node of a Machine that cannot be read belongs to it, as far as anybody knows.
		unread := slices.ContainsFunc(host.Candidates, func(m *Machine) bool { return m.Unread != "" })
		for i := range s.Nodes {
			if n := &s.Nodes[i]; j.Owner(n) == nil && !unread && !stands && (n.Ready || len(named) == 0) && at.Meets(n.Addresses, n.HostNames) {
				host.Nodes = append(host.Nodes, n)
			}
		}
		host.Candidates = s.withTwins(host.Candidates)
		host.Departed = departed(s, member.ID)
		host.Bootstrap = len(host.Machines)+len(host.Nodes) == 0 &&
			(member.Name == BootstrapName || s.Bootstrap.IsValid() && slices.Contains(at.addrs, s.Bootstrap.Unmap()))
	}
	for k := range j.hosts {
		if h := &j.hosts[k]; len(h.Machines) == 1 && len(j.Joined(h.Machines[0])) == 1 {
			h.AddressConfirmed = true
		}
	}
	return j
}

// Snapshot is the one that was joined.
func (j *Join) Snapshot() *Snapshot { return j.of }

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

// MayRun reports whether a Machine may run a member. If a Machine has the member's address in its own status (Host.AddressConfirmed), only the
// Machines in Host.Candidates may. If none has, each Machine may that has an instance and no Node at an address of its own: the Node with the
// member's address may belong to it.
func (j *Join) MayRun(m *Machine, member *Member) bool {
	h := j.Host(member)
	if h.AddressConfirmed || m.Unread != "" || m.NeverHadInstance() || j.placed(m) || h.Bootstrap && member.Name == BootstrapName {
		return slices.Contains(h.Candidates, m)
	}
	return len(h.Candidates)+len(h.Nodes) > 0 || h.Bootstrap || member.Healthy
}

// placed reports whether a Machine has a Node, at an address in its own status.
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

// Known reports whether the host of each member is known.
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

// has reports whether a Machine is one of the Snapshot's. Nothing is known of others, nor of copies.
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

// Hosting reports whether a Machine hosts a member.
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

// Runs reports whether a member runs at its peer URLs, as far as anybody knows. If two members are listed at one URL, the one that answers
// runs. While neither answers, it is the one that a Machine's evidence names.
func (j *Join) Runs(member *Member) bool {
	twins := j.s.Ring.Twins(member)
	named := func(o *Member) bool {
		return slices.ContainsFunc(j.s.Machines, func(m Machine) bool { return m.OwnEvidence().Names(o.ID) })
	}
	return len(twins) == 0 || member.Healthy ||
		named(member) && !slices.ContainsFunc(twins, func(o *Member) bool { return o.Healthy || named(o) })
}

// ListedTwice is a text for people if another member is listed at a member's peer URL, with the command that mends it; "" if none is.
func (j *Join) ListedTwice(member *Member) string {
	twins := j.s.Ring.Twins(member)
	if len(twins) == 0 {
		return ""
	}
	var names, gone []string
	panics := false
	for k := range j.s.Ring.Members {
		if o := &j.s.Ring.Members[k]; o == member || slices.Contains(twins, o) {
			names = append(names, o.String())
			if !j.Runs(o) {
				gone = append(gone, o.ID.Hex())
				panics = panics || !j.s.Ring.Removable(o)
			}
		}
	}
	listed := fmt.Sprintf("etcd lists %s at %s, and no new member starts until one of them is left (etcd issues 13196 and 20967)", strings.Join(names, " and "), strings.Join(member.PeerURLs, ", "))
	if panics {
		return listed + ". Do not remove one before etcd 3.7: every etcd of 3.6 would panic, and again at each start. Take a snapshot, and ask etcd's vendor; etcd 3.7 takes the removal"
	}
	which := "Remove the one that does not run"
	if len(gone) == len(names) {
		which = "The data directory there is of one of them (holdfast verify membership says which); remove the other"
	}
	return fmt.Sprintf("%s. %s: etcdctl member remove %s", listed, which, cmp.Or(strings.Join(gone, " or "), "<id>"))
}

// WhyHeldAfterRestore says why a deleted Machine whose member is no longer listed is not released; "" if it may be. It is held if both
// are so:
//   - etcd has fewer voters than are wanted, or the wanted number is not known;
//   - etcd no longer lists the member of another Machine either, as after a restore from a snapshot. (If only one member is missing, a person
//     removed it.)
//
// Such a snapshot may date from a time at which this Machine was being replaced.
func (j *Join) WhyHeldAfterRestore(m *Machine) string {
	lost := func(m *Machine) bool { return len(m.OwnEvidence().MemberIDs) > 0 && len(j.Joined(m)) == 0 }
	if !j.s.Ring.Known {
		return "" // Hosting holds it for that
	}
	voters, _ := j.s.Ring.Voters()
	wanted := max(j.s.Desired, j.s.Replicas) // for this step, and in the end
	if wanted > 0 && voters >= wanted || !lost(m) {
		return ""
	}
	of := fmt.Sprintf("%d of %d voters", voters, wanted)
	if wanted == 0 {
		of = NVoters(voters) + ", wanted: unknown"
	}
	for i := range j.s.Machines {
		if other := &j.s.Machines[i]; other != m && other.ControlPlane() && lost(other) {
			return fmt.Sprintf("etcd lists neither its member nor %s's (%s), as after a restore: it goes once hosts have joined, or at once by: kubectl holdfast release",
				other.Name, of)
		}
	}
	return ""
}

// Ambiguity is a text for people: why a member's host is not known.
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
		text += "; find out which of them has that address. To release one that does not have it and is being deleted: kubectl holdfast release <machine> --reason '...'"
	} else if len(h.Nodes) > 0 && len(names) > 1 {
		text += ", which has no Machine; if nothing runs there: kubectl delete node " + h.Nodes[len(h.Nodes)-1].Name
	}
	return text
}

// Members are the listed members that a Machine hosts, surely or perhaps.
func (j *Join) Members(m *Machine) []*Member { return j.members(m, true) }

// Joined are the members that a Machine hosts by the decision of NewJoin (Host.Machines): not those that run elsewhere by evidence.
func (j *Join) Joined(m *Machine) []*Member { return j.members(m, false) }

func (j *Join) members(m *Machine, perhaps bool) (out []*Member) {
	for k := range j.hosts {
		if h := &j.hosts[k]; slices.Contains(h.Machines, m) || perhaps && slices.Contains(h.Candidates, m) {
			out = append(out, &j.s.Ring.Members[k])
		}
	}
	return out
}

// Voter is the voter that the Machine hosts, nil without one. Of several it is a healthy one.
func (j *Join) Voter(m *Machine) *Member {
	var found *Member
	for _, member := range j.Members(m) {
		if !member.Learner && (found == nil || member.Healthy) {
			found = member
		}
	}
	return found
}

// Replacing reports whether a member is on its way out: its Machine is deleting.
func (j *Join) Replacing(member *Member) bool {
	return slices.ContainsFunc(j.Host(member).Machines, (*Machine).Deleting)
}
