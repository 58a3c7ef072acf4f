package main

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

func noon() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

// longAgo is before noon by longer than any limit.
func longAgo() time.Time { return noon().Add(-2 * time.Hour) }

// host is what a slot is called in Snapshots.
type host struct {
	name, uid, instance string
	addresses           []netip.Addr
	elsewhere           []netip.Addr // where the host is that moved
	peerURLs            []string
	members             []q.MemberID
	gone                q.Evidence // of a Machine that stood here before
}

func hosts() (out [slots]host) {
	for i := range out {
		n := strconv.Itoa(i)
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)})
		out[i] = host{
			name: "master-" + n, uid: "uid-" + n, instance: "cloud:///" + n, addresses: []netip.Addr{addr}, peerURLs: []string{"https://" + addr.String() + ":2380"},
			members: []q.MemberID{firstID + q.MemberID(i)}, elsewhere: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(10 + i)})},
		}
		out[i].gone = q.Evidence{MachineUID: "gone-" + n, Machine: "old-" + n, MemberIDs: out[i].members, Addresses: out[i].addresses}
	}
	return out
}

const (
	firstID   = 0xa0
	raftIndex = 10000
)

// at is where the host of a slot is.
func (h *host) at(o slot) []netip.Addr {
	if o.is(moved) {
		return h.elsewhere
	}
	return h.addresses
}

// snapshot is what Holdfast sees of a state.
func (c *config) snapshot(s *state, way int) *q.Snapshot {
	out := &q.Snapshot{Mode: c.mode(), Now: noon(), Desired: s.wanted(c), Limits: q.DefaultLimits()}
	out.Limits.MaxLearners = max(1, c.learners)
	out.Ledger = q.Ledger{Version: "1", CreatedAt: longAgo()}
	voters, healthy := s.tally()
	out.Ring.Known = healthy > voters/2
	if !out.Ring.Known {
		out.Ring.Why = "no quorum"
	} else {
		out.Ring.Index, out.Ring.Version = raftIndex, c.version
	}
	if c.guard {
		out.QuorumGuard = q.Guard{Managed: true, Intact: true}
		if least, ok := s.budget(); ok {
			out.QuorumGuard.MinAvailable = &least
		}
	}
	leader, led := s.find(leads)
	silent := led && s.at[leader].is(mute) // it does not tell who is lost
	for k := range slots {
		o, h := s.at[order(k, way)], &c.hosts[k]
		since := longAgo().Add(time.Duration(k) * time.Minute) // each Machine and Node is of another age
		if o.is(machine) {
			out.Machines = append(out.Machines, c.machine(o, h, since))
		}
		if o.is(node) {
			out.Nodes = append(out.Nodes, c.node(o, h, since))
		}
		if o.get(member) != noMember && out.Ring.Known {
			m := c.member(o, h)
			if silent {
				m.LostSince, m.InRaft = time.Time{}, false
			}
			out.Ring.Members = append(out.Ring.Members, m)
			if o.is(leads) {
				out.Ring.Leader = m.ID
			}
		}
		if c.guard && o.is(pod) {
			out.QuorumGuard.Pods = append(out.QuorumGuard.Pods, q.GuardPod{
				Name: "guard-" + h.name, UID: "pod-" + h.name, Node: h.name, Owner: q.PodOwnerGuard, Address: h.addresses[0], Ready: o.get(pod) == podReady,
			})
		}
		h.remembered(o, out)
	}
	if c.set {
		machineset.Want(out, c.setOf(s, way))
	}
	return out
}

func (c *config) mode() q.Mode {
	if c.operated {
		return q.ModeGuard
	}
	return q.ModeFull
}

// machine is the Machine at a slot.
func (c *config) machine(o slot, h *host, since time.Time) q.Machine {
	m := q.Machine{
		Name: h.name, UID: h.uid, Role: "master", Type: "master", CreatedAt: since, Hook: entry(o.is(hook)), Latch: entry(o.is(latch)),
		Finalizer: true, Phase: "Provisioning",
	}
	m.Marked = true // which tells the operator something, and changes nothing here
	if o.is(instance) {
		m.ProviderID, m.NodeName, m.InstanceID, m.Addresses, m.Phase = h.instance, h.name, true, h.at(o), "Running"
	}
	if o.get(machine) == deleting {
		m.DeletedAt, m.Phase = since, "Deleting"
	}
	if c.set {
		m.Owners = []q.Owner{{Kind: "ControlPlaneMachineSet", Name: "cluster", UID: setUID, Controller: true}}
	}
	if at := o.get(lifts); at != notLifted {
		m.Override, m.OverrideBy = string(q.RuleEscapeHatch)+": the model", q.Stamp("alice", noon())
		if at == liftedOnce {
			m.OverrideBy = q.Stamp("alice", longAgo())
		}
	}
	if o.is(evidence) {
		m.Evidence, m.EvidenceRaw = q.Evidence{MachineUID: h.uid, Machine: h.name, MemberIDs: h.members, Addresses: h.addresses}, "{}"
	}
	return m
}

// node is the Node at a slot.
func (c *config) node(o slot, h *host, since time.Time) q.Node {
	n := q.Node{Name: h.name, ProviderID: h.instance, Ready: o.get(node) == ready, Addresses: h.at(o), CreatedAt: since, Cordoned: o.is(cordon) || !c.guard && o.leaves()}
	switch o.get(gave) {
	case 1:
		n.GaveWayAt = since
	case 2:
		n.GaveWayAt = noon().Add(-time.Second)
	}
	return n
}

// member is the member of etcd that is listed at a slot.
func (c *config) member(o slot, h *host) q.Member {
	m := q.Member{
		ID: h.members[0], Name: h.name, PeerURLs: h.peerURLs, Learner: o.learner(), Healthy: o.get(answers) == up, InRaft: true, Since: noon(), ProgressAt: noon(), MaxLearners: max(1, c.learners),
	}
	if o.is(lower) {
		m.MaxLearners = 1
	}
	if o.get(answers) != down {
		m.Since = longAgo()
	}
	if !m.Healthy && !o.is(mute) {
		m.LostSince = m.Since
	}
	if o.is(stalled) {
		m.ProgressAt = longAgo()
	}
	switch o.get(member) {
	case unstarted, stray:
		m.Name = ""
	case caughtUp, voter:
		m.Applied, m.CaughtUpAt = raftIndex, longAgo()
	}
	return m
}

// remembered adds what Holdfast wrote down of a slot: the record of its member, and the release of its Machine.
func (h *host) remembered(o slot, out *q.Snapshot) {
	switch o.get(record) {
	case recHere:
		out.Records = append(out.Records, q.Evidence{MachineUID: h.uid, Machine: h.name, MemberIDs: h.members, Addresses: h.addresses})
	case recGone:
		out.Records = append(out.Records, h.gone)
	}
	switch o.get(ledger) {
	case recHere:
		r := q.Release{Machine: h.name, UID: h.uid}
		if o.get(member) != noMember {
			r.Members = h.members
		}
		out.Ledger.Entries = append(out.Ledger.Entries, r)
	case recGone:
		out.Ledger.Entries = append(out.Ledger.Entries, q.Release{Machine: h.gone.Machine, UID: h.gone.MachineUID, Members: h.members})
	}
}

func entry(on bool) q.Entry {
	if on {
		return q.EntryOurs
	}
	return q.EntryAbsent
}
