package membership

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// putHooks is step 1: hook, latch and evidence on every live Machine that hosts a member, and in full mode
// hook and latch on one that is about to: a Machine that went while its learner was being added would
// leave a learner that is nobody's.
func (p *planner) putHooks() []Action {
	var out []Action
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		members := p.join.Members(i)
		n := p.join.Node(i)
		waits := p.s.Mode == quorum.ModeFull && m.ControlPlane() && n >= 0 && p.s.Nodes[n].Ready
		if m.Deleting() || m.Mirrored || m.Unread != "" || len(members) == 0 && !waits || p.s.Mode == quorum.ModeGuard && m.Hook != quorum.EntryOurs {
			continue
		}
		a := Action{Kind: AddHook, Step: 1, Machine: m.Name, UID: m.UID, Hook: m.Hook != quorum.EntryOurs, Latch: m.Latch != quorum.EntryOurs}
		fresh := p.evidence(i, members)
		if len(fresh.MemberIDs) > 0 && !m.OwnEvidence().Same(fresh) {
			a.Evidence = fresh
		}
		if a.Hook || a.Latch || len(a.Evidence.MemberIDs) > 0 {
			a.Why = "a member is to be added on its Node"
			if len(members) > 0 {
				a.Why = fmt.Sprintf("it hosts etcd %s", &p.s.Ring.Members[members[0]])
			}
			out = append(out, a)
		}
	}
	return out
}

// evidence is what a Machine's annotation should say of the members that it hosts for sure. A dead
// member whose record names a Machine that is gone is not this one's: the host may have come back
// with the same address.
func (p *planner) evidence(machine int, members []int) quorum.Evidence {
	m := &p.s.Machines[machine]
	e := quorum.Evidence{MachineUID: m.UID, Machine: m.Name}
	for _, k := range members {
		member, host := &p.s.Ring.Members[k], &p.join.Hosts[k]
		if host.Machine() == machine && (member.Healthy || host.Departed == nil) {
			e.MemberIDs = append(e.MemberIDs, member.ID)
			e.Addresses = append(e.Addresses, member.PeerAddresses()...)
		}
	}
	slices.Sort(e.MemberIDs)
	slices.SortFunc(e.Addresses, netip.Addr.Compare)
	e.Addresses = slices.Compact(e.Addresses)
	return e
}

// recordsToKeep are the evidence of every listed member, by the Machine that hosts it now, else as it was
// recorded before.
func (p *planner) recordsToKeep() []quorum.Evidence {
	out := []quorum.Evidence{}
	for k := range p.s.Ring.Members {
		member, host := &p.s.Ring.Members[k], &p.join.Hosts[k]
		i := host.Machine()
		if i >= 0 && p.s.Machines[i].UID != "" && (member.Healthy || host.Departed == nil) {
			m := &p.s.Machines[i]
			out = append(out, quorum.Evidence{MachineUID: m.UID, Machine: m.Name, MemberIDs: []uint64{member.ID}, Addresses: member.PeerAddresses()})
			continue
		}
		if r := slices.IndexFunc(p.s.Records, func(r quorum.Evidence) bool { return r.Names(member.ID) }); r >= 0 {
			kept := p.s.Records[r]
			kept.MemberIDs = []uint64{member.ID}
			out = append(out, kept)
		}
	}
	return out
}
