package membership

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// putHooks is step 1: hook, latch and evidence on every live Machine that hosts a member, and in full mode
// hook and latch on one that is about to: a Machine that went while its learner was being added would
// leave a learner without a host.
func (p *planner) putHooks() []Action {
	var out []Action
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		members := p.join.Members(m)
		n := p.join.Node(m)
		waits := p.s.Mode == quorum.ModeFull && m.ControlPlane() && n != nil && n.Ready
		if m.Deleting() || m.Mirrored || m.Unread != "" || len(members) == 0 && !waits || p.s.Mode == quorum.ModeGuard && m.Hook != quorum.EntryOurs {
			continue
		}
		on := AddHook{Hook: m.Hook != quorum.EntryOurs, Latch: m.Latch != quorum.EntryOurs}
		fresh := p.evidence(m, members)
		if len(fresh.MemberIDs) > 0 && !m.OwnEvidence().Same(fresh) {
			on.Evidence = fresh
		}
		if on.Hook || on.Latch || len(on.Evidence.MemberIDs) > 0 {
			why := "a member will be added on its Node"
			if len(members) > 0 {
				runs := slices.IndexFunc(members, func(member *quorum.Member) bool { return p.runsOn(m, member) })
				why = fmt.Sprintf("it hosts etcd %s", members[max(0, runs)])
			}
			out = append(out, Action{Step: 1, Machine: m.Name, UID: m.UID, Change: on, Why: why})
		}
	}
	return out
}

// evidence is what a Machine's annotation should say of the members that it hosts for sure; what it says of another that is joined to it stays.
func (p *planner) evidence(m *quorum.Machine, members []*quorum.Member) quorum.Evidence {
	e := quorum.Evidence{MachineUID: m.UID, Machine: m.Name}
	sure := slices.ContainsFunc(members, func(member *quorum.Member) bool { return p.runsOn(m, member) })
	for _, member := range members {
		if p.runsOn(m, member) || sure && m.OwnEvidence().Names(member.ID) && p.join.Runs(member) && (member.Healthy || p.join.Host(member).Departed == nil) {
			e.MemberIDs = append(e.MemberIDs, member.ID)
			e.Addresses = append(e.Addresses, member.PeerAddresses()...)
		}
	}
	slices.Sort(e.MemberIDs)
	slices.SortFunc(e.Addresses, netip.Addr.Compare)
	e.Addresses = slices.Compact(e.Addresses)
	return e
}

// runsOn reports whether a member runs on a Machine for sure. A dead member whose record names a Machine that is gone does not: the host may
// have come back with the same address. Nor does one whose address the Machine's Node alone has, where it may be forged, nor one that is listed at the peer URL of the member that runs there.
func (p *planner) runsOn(m *quorum.Machine, member *quorum.Member) bool {
	host := p.join.Host(member)
	return m != nil && host.Machine() == m && host.AddressConfirmed && (member.Healthy || host.Departed == nil) && p.join.Runs(member)
}

// recordsToKeep are the evidence of every listed member, by the Machine that hosts it now, else as it was
// recorded before, and whether it votes. A voter is never listed as a learner later: see [quorum.Snapshot.Mislisted].
func (p *planner) recordsToKeep() []quorum.Evidence {
	out := []quorum.Evidence{}
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		if m := p.join.Host(member).Machine(); p.runsOn(m, member) && m.UID != "" {
			out = append(out, quorum.Evidence{MachineUID: m.UID, Machine: m.Name, MemberIDs: []quorum.MemberID{member.ID}, Addresses: member.PeerAddresses(), Voted: !member.Learner})
			continue
		}
		if r := slices.IndexFunc(p.s.Records, func(r quorum.Evidence) bool { return r.Names(member.ID) }); r >= 0 {
			kept := p.s.Records[r]
			kept.MemberIDs, kept.Voted = []quorum.MemberID{member.ID}, !member.Learner
			out = append(out, kept)
		}
	}
	return out
}
