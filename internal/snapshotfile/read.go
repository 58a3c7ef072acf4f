package snapshotfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Parse reads YAML or JSON. A field that the format does not have is an error, and an error names the field.
func Parse(raw []byte) (*File, error) {
	f := &File{}
	if err := yaml.UnmarshalStrict(raw, f); err != nil {
		// The library's lists of what is wrong have several lines, and an error is a sentence.
		return nil, fmt.Errorf("not a snapshot file: %s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if f.APIVersion != APIVersion || f.Kind != Kind {
		return nil, fmt.Errorf("not a snapshot file: apiVersion and kind are %q and %q, not %s and %s", f.APIVersion, f.Kind, APIVersion, Kind)
	}
	return f, nil
}

// Snapshot is what the file says. The error names the first field that is wrong.
func (f *File) Snapshot() (*quorum.Snapshot, error) {
	var r reader
	s := &quorum.Snapshot{
		Now: r.time("now", f.Now), Desired: f.Desired, DesiredWhy: f.DesiredWhy, OtherDriver: f.OtherDriver, RecordsWhy: f.RecordsWhy, RecordsVersion: f.RecordsVersion,
		ClaimantsWhy: f.ClaimantsWhy, MachineSets: f.MachineSets, MachineSetsWhy: f.MachineSetsWhy, Bootstrap: r.addr("bootstrap", f.Bootstrap),
		Ring: quorum.Ring{
			Known: f.Etcd.Known, Why: f.Etcd.Why, ReadAt: r.time("etcd.readAt", f.Etcd.ReadAt),
			Leader: r.id("etcd.leader", f.Etcd.Leader), Index: f.Etcd.Index, Version: f.Etcd.Version,
		},
		Limits: quorum.DefaultLimits(),
	}
	switch f.Mode {
	case "full":
		s.Mode = quorum.ModeFull
	case "guard":
		s.Mode = quorum.ModeGuard
	default:
		r.fail("mode", "%q is neither full nor guard", f.Mode)
	}
	if s.Now.IsZero() {
		r.fail("now", "it is missing: when the snapshot was taken")
	}
	if f.Desired < 0 {
		r.fail("desired", "%d is negative", f.Desired)
	}
	for i, a := range f.Etcd.Alarms {
		s.Ring.Alarms = append(s.Ring.Alarms, quorum.Alarm{Kind: a.Kind, Member: r.id(fmt.Sprintf("etcd.alarms[%d].member", i), a.Member)})
	}
	for i, e := range f.Failures {
		s.Failures = append(s.Failures, quorum.Failure{
			Reason: e.Reason, What: e.What, Machine: e.Machine, Since: r.time(fmt.Sprintf("failures[%d].since", i), e.Since), Why: e.Why,
		})
	}
	for i := range f.Etcd.Members {
		s.Ring.Members = append(s.Ring.Members, r.member(fmt.Sprintf("etcd.members[%d]", i), &f.Etcd.Members[i]))
	}
	for i := range f.Machines {
		m := r.machine(fmt.Sprintf("machines[%d]", i), &f.Machines[i])
		if slices.ContainsFunc(s.Machines, func(o quorum.Machine) bool { return o.Name == m.Name }) {
			r.fail(fmt.Sprintf("machines[%d].name", i), "%q is there twice", m.Name)
		}
		s.Machines = append(s.Machines, m)
	}
	for i := range f.Claimants {
		s.Claimants = append(s.Claimants, r.machine(fmt.Sprintf("claimants[%d]", i), &f.Claimants[i]))
	}
	for i := range f.Nodes {
		n, at := &f.Nodes[i], fmt.Sprintf("nodes[%d]", i)
		r.wants(at+".name", n.Name)
		s.Nodes = append(s.Nodes, quorum.Node{
			Name: n.Name, ProviderID: n.ProviderID, Ready: n.Ready, Cordoned: n.Cordoned, Addresses: r.addrs(at+".addresses", n.Addresses),
			HostNames: n.HostNames, Zone: n.Zone, CreatedAt: r.time(at+".createdAt", n.CreatedAt), GaveWayAt: r.time(at+".gaveWayAt", n.GaveWayAt),
		})
	}
	for i, value := range f.Records {
		record, err := machineapi.ParseEvidence(value)
		if err != nil {
			r.fail(fmt.Sprintf("records[%d]", i), "%v", err)
		}
		s.Records = append(s.Records, record)
	}
	if l := f.Lock; l != nil {
		s.Lock = quorum.Lock{Key: l.Key, Holder: l.Holder, Leased: l.Leased, Since: r.time("membershipLock.since", l.Since)}
	}
	if l := f.Ledger; l != nil {
		s.Ledger = quorum.Ledger{Version: l.Version, CreatedAt: r.time("releaseLedger.createdAt", l.CreatedAt), Why: l.Why}
		for i, e := range l.Releases {
			at := fmt.Sprintf("releaseLedger.releases[%d]", i)
			r.wants(at+".uid", e.UID)
			entry := quorum.Release{Machine: e.Machine, UID: e.UID, At: r.time(at+".at", e.At), By: e.By}
			for k, id := range e.Members {
				entry.Members = append(entry.Members, r.id(fmt.Sprintf("%s.members[%d]", at, k), id))
			}
			s.Ledger.Entries = append(s.Ledger.Entries, entry)
		}
	}
	if g := f.Guard; g != nil {
		s.QuorumGuard = quorum.Guard{Managed: true, Absent: g.Absent, Version: g.Version, MinAvailable: g.MinAvailable, Intact: g.Intact}
		for i, p := range g.Pods {
			at := fmt.Sprintf("quorumGuard.pods[%d]", i)
			s.QuorumGuard.Pods = append(s.QuorumGuard.Pods, quorum.GuardPod{
				Name: p.Name, UID: p.UID, Node: p.Node, Owner: r.podOwner(at+".owner", p.Owner), Address: r.addr(at+".address", p.Address),
				Outdated: p.Outdated, Ready: p.Ready, Deleting: p.Deleting,
			})
		}
	}
	if l := f.Limits; l != nil {
		s.Limits = quorum.Limits{
			MaxDeleting: l.MaxDeleting, MaxLag: l.MaxLag, SteadyFor: r.duration("limits.steadyFor", l.SteadyFor),
			StallAfter: r.duration("limits.stallAfter", l.StallAfter), DeadAfter: r.duration("limits.deadAfter", l.DeadAfter),
			GoneAfter: r.duration("limits.goneAfter", l.GoneAfter), SettledAfter: r.duration("limits.settledAfter", l.SettledAfter),
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	return s, nil
}

// reader keeps the first error.
type reader struct{ err error }

func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...))
	}
}

func (r *reader) wants(field, value string) {
	if value == "" {
		r.fail(field, "it is missing")
	}
}

func (r *reader) time(field, value string) time.Time {
	if value == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		r.fail(field, "%q is not a time such as 2026-03-01T12:00:00Z", value)
	}
	return t
}

func (r *reader) duration(field, value string) time.Duration {
	if value == "" {
		return 0
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		r.fail(field, "%q is not a duration such as 5m or 200ms", value)
	}
	return d
}

func (r *reader) id(field, value string) uint64 {
	if value == "" {
		return 0
	}
	id, err := strconv.ParseUint(value, 16, 64)
	if err != nil || id == 0 {
		r.fail(field, "%q is not an etcd member ID in hex", value)
	}
	return id
}

func (r *reader) addr(field, value string) netip.Addr {
	if value == "" {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(value)
	if err != nil {
		r.fail(field, "%q is not an IP address", value)
	}
	return addr
}

func (r *reader) addrs(field string, values []string) []netip.Addr {
	var out []netip.Addr
	for i, value := range values {
		at := fmt.Sprintf("%s[%d]", field, i)
		r.wants(at, value)
		out = append(out, r.addr(at, value))
	}
	return out
}

func (r *reader) entry(field, value string) quorum.Entry {
	switch value {
	case "ours":
		return quorum.EntryOurs
	case "foreign":
		return quorum.EntryForeign
	case "absent", "":
		return quorum.EntryAbsent
	}
	r.fail(field, "%q is none of ours, foreign, absent", value)
	return quorum.EntryAbsent
}

func (r *reader) podOwner(field, value string) quorum.PodOwner {
	switch value {
	case "guard":
		return quorum.PodOwnerGuard
	case "old":
		return quorum.PodOwnerOldGuard
	case "others":
		return quorum.PodOwnerOther
	}
	r.fail(field, "%q is none of guard, old, others", value)
	return quorum.PodOwnerOther
}

func (r *reader) member(at string, m *Member) quorum.Member {
	r.wants(at+".id", m.ID)
	return quorum.Member{
		ID: r.id(at+".id", m.ID), Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.Learner,
		Healthy: m.Healthy, Since: r.time(at+".since", m.Since), Why: m.Why, Leader: r.id(at+".leader", m.Leader), Applied: m.Applied,
		ProgressAt: r.time(at+".progressAt", m.ProgressAt), CaughtUpAt: r.time(at+".caughtUpAt", m.CaughtUpAt), CatchUp: r.duration(at+".catchUp", m.CatchUp),
	}
}

func (r *reader) machine(at string, m *Machine) quorum.Machine {
	r.wants(at+".name", m.Name)
	out := quorum.Machine{
		Name: m.Name, UID: m.UID, Role: m.Role, Type: m.Type, Mirrored: m.Mirrored, Unread: m.Unread,
		CreatedAt: r.time(at+".createdAt", m.CreatedAt), DeletedAt: r.time(at+".deletedAt", m.DeletedAt),
		Hook: r.entry(at+".hook", m.Hook), Latch: r.entry(at+".latch", m.Latch), Finalizer: m.Finalizer, EvidenceRaw: m.Evidence,
		Override: m.Override, OverrideBy: m.OverrideBy, ProviderID: m.ProviderID, Phase: m.Phase, NodeName: m.Node,
		InstanceID: m.InstanceID, Addresses: r.addrs(at+".addresses", m.Addresses), HostNames: m.HostNames, Zone: m.Zone,
	}
	if m.Evidence != "" {
		// As from the API: an annotation that does not parse joins nothing, and is kept as it stands.
		out.Evidence, _ = machineapi.ParseEvidence(m.Evidence)
	}
	for _, o := range m.Owners {
		out.Owners = append(out.Owners, quorum.Owner(o))
	}
	for key, value := range m.Instance {
		i := slices.IndexFunc(quorum.InstanceAnnotations[:], func(a struct{ Key, Prefix string }) bool { return a.Key == key })
		if i < 0 {
			r.fail(at+".instance", "%q is no annotation that names an instance", key)
			continue
		}
		out.Instance[i] = value
	}
	return out
}
