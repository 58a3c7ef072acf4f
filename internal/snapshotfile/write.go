package snapshotfile

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Of is the file of a Snapshot whose Machines are in that namespace.
func Of(s *quorum.Snapshot, namespace string) *File {
	f := &File{
		APIVersion: APIVersion, Kind: Kind, Namespace: namespace, Mode: "guard", Now: formatTime(s.Now),
		Desired: s.Desired, DesiredWhy: s.DesiredWhy, OtherDriver: s.OtherDriver, RecordsWhy: s.RecordsWhy, RecordsVersion: s.RecordsVersion,
		ClaimantsWhy: s.ClaimantsWhy, MachineSets: s.MachineSets, MachineSetsWhy: s.MachineSetsWhy, Bootstrap: formatAddr(s.Bootstrap),
		Etcd: Etcd{
			Known: s.Ring.Known, Why: s.Ring.Why, ReadAt: formatTime(s.Ring.ReadAt), Leader: formatID(s.Ring.Leader),
			Index: s.Ring.Index, Version: s.Ring.Version,
		},
		Limits: &Limits{
			MaxDeleting: s.Limits.MaxDeleting, MaxLag: s.Limits.MaxLag, SteadyFor: s.Limits.SteadyFor.String(),
			StallAfter: s.Limits.StallAfter.String(), DeadAfter: s.Limits.DeadAfter.String(),
			GoneAfter: s.Limits.GoneAfter.String(), SettledAfter: s.Limits.SettledAfter.String(),
		},
	}
	if s.Mode == quorum.ModeFull {
		f.Mode = "full"
	}
	for i := range s.Ring.Members {
		f.Etcd.Members = append(f.Etcd.Members, memberOf(&s.Ring.Members[i]))
	}
	for i := range s.Machines {
		f.Machines = append(f.Machines, machineOf(&s.Machines[i]))
	}
	for i := range s.Claimants {
		f.Claimants = append(f.Claimants, machineOf(&s.Claimants[i]))
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		f.Nodes = append(f.Nodes, Node{
			Name: n.Name, ProviderID: n.ProviderID, Ready: n.Ready, Cordoned: n.Cordoned, Addresses: formatAddrs(n.Addresses),
			HostNames: n.HostNames, Zone: n.Zone, CreatedAt: formatTime(n.CreatedAt), GaveWayAt: formatTime(n.GaveWayAt),
		})
	}
	for _, r := range s.Records {
		f.Records = append(f.Records, machineapi.FormatEvidence(r))
	}
	if l := &s.Ledger; l.Version+l.Why != "" {
		f.Ledger = &Ledger{Version: l.Version, CreatedAt: formatTime(l.CreatedAt), Why: l.Why}
		for _, e := range l.Entries {
			out := Release{Machine: e.Machine, UID: e.UID, At: formatTime(e.At), By: e.By}
			for _, id := range e.Members {
				out.Members = append(out.Members, formatID(id))
			}
			f.Ledger.Releases = append(f.Ledger.Releases, out)
		}
	}
	for _, a := range s.Ring.Alarms {
		f.Etcd.Alarms = append(f.Etcd.Alarms, Alarm{Kind: a.Kind, Member: formatID(a.Member)})
	}
	for i := range s.Failures {
		e := &s.Failures[i]
		f.Failures = append(f.Failures, Failure{Reason: e.Reason, What: e.What, Machine: e.Machine, Since: formatTime(e.Since), Why: e.Why})
	}
	if l := &s.Lock; *l != (quorum.Lock{}) {
		f.Lock = &Lock{Key: l.Key, Holder: l.Holder, Leased: l.Leased, Since: formatTime(l.Since)}
	}
	if g := &s.QuorumGuard; g.Managed {
		f.Guard = &Guard{Absent: g.Absent, Version: g.Version, MinAvailable: g.MinAvailable, Intact: g.Intact}
		for _, p := range g.Pods {
			f.Guard.Pods = append(f.Guard.Pods, GuardPod{
				Name: p.Name, UID: p.UID, Node: p.Node, Owner: [...]string{quorum.PodOwnerGuard: "guard", quorum.PodOwnerOldGuard: "old", quorum.PodOwnerOther: "others"}[p.Owner],
				Address: formatAddr(p.Address), Outdated: p.Outdated, Ready: p.Ready, Deleting: p.Deleting,
			})
		}
	}
	return f
}

func memberOf(m *quorum.Member) Member {
	return Member{
		ID: formatID(m.ID), Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.Learner,
		Healthy: m.Healthy, Since: formatTime(m.Since), Why: m.Why, Leader: formatID(m.Leader), Applied: m.Applied,
		ProgressAt: formatTime(m.ProgressAt), CaughtUpAt: formatTime(m.CaughtUpAt), CatchUp: formatDuration(m.CatchUp),
	}
}

func machineOf(m *quorum.Machine) Machine {
	out := Machine{
		Name: m.Name, UID: m.UID, Role: m.Role, Type: m.Type, Mirrored: m.Mirrored, Unread: m.Unread,
		CreatedAt: formatTime(m.CreatedAt), DeletedAt: formatTime(m.DeletedAt),
		Hook: formatEntry(m.Hook), Latch: formatEntry(m.Latch), Finalizer: m.Finalizer, Evidence: m.EvidenceRaw,
		Override: m.Override, OverrideBy: m.OverrideBy, ProviderID: m.ProviderID, Phase: m.Phase, Node: m.NodeName,
		InstanceID: m.InstanceID, Addresses: formatAddrs(m.Addresses), HostNames: m.HostNames, Zone: m.Zone,
	}
	for _, o := range m.Owners {
		out.Owners = append(out.Owners, Owner(o))
	}
	for i, value := range m.Instance {
		if value != "" {
			if out.Instance == nil {
				out.Instance = map[string]string{}
			}
			out.Instance[quorum.InstanceAnnotations[i].Key] = value
		}
	}
	return out
}

func formatEntry(e quorum.Entry) string {
	return [...]string{quorum.EntryAbsent: "absent", quorum.EntryOurs: "ours", quorum.EntryForeign: "foreign"}[e]
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func formatDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// formatID leaves out zero: etcd means "nobody" by it.
func formatID(id uint64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatUint(id, 16)
}

func formatAddr(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func formatAddrs(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, formatAddr(a))
	}
	return out
}
