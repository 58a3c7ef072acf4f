package decisions_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// chance is true so many times of a hundred.
func chance(t *rapid.T, percent int, what string) bool {
	return rapid.IntRange(1, 100).Draw(t, what) <= percent
}

func one[T any](t *rapid.T, what string, of ...T) T { return rapid.SampledFrom(of).Draw(t, what) }

func address(i int) netip.Addr {
	if i == 6 {
		return netip.MustParseAddr("fd00::16")
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)})
}

// drawSnapshot is a control plane of up to seven of everything. Most of it fits together, so that
// all steps are reached, and some of it does not.
func drawSnapshot(t *rapid.T) *q.Snapshot {
	w := newWorld()
	s := &w.s
	s.Mode = one(t, "mode", q.ModeFull, q.ModeFull, q.ModeFull, q.ModeGuard)
	s.Desired, s.Replicas = one(t, "desired", 3, 3, 3, 1, 4, 5, 0), one(t, "replicas", 0, 0, 3, 5)
	if s.Ring.Known = chance(t, 95, "known"); !s.Ring.Known {
		s.Ring.Why = one(t, "ring why", "", strings.Repeat("an error\nof several lines, ééé\n", 50))
	}
	if chance(t, 10, "bootstrap") {
		s.Bootstrap = address(rapid.IntRange(0, 6).Draw(t, "bootstrap at"))
	}
	if chance(t, 5, "API servers wait") {
		s.APIServersWait = "one does not know of all voters"
	}
	if chance(t, 5, "alarm") {
		s.Ring.Alarms = []q.Alarm{{Kind: one(t, "alarm kind", q.AlarmNoSpace, q.AlarmCorrupt), Member: one(t, "alarm member", q.MemberID(0), 0xa0, 0xdead)}}
	}
	s.Ring.Version = one(t, "version", "3.7.3", "3.6.0", "")
	s.Ledger = one(t, "ledger", s.Ledger, s.Ledger, s.Ledger, q.Ledger{}, q.Ledger{Version: "2", CreatedAt: noon()}, q.Ledger{Version: "3", Why: "no JSON"})
	for range rapid.IntRange(0, 2).Draw(t, "releases") {
		i := rapid.IntRange(0, 6).Draw(t, "released")
		r := q.Release{Machine: fmt.Sprintf("master-%d", i), UID: one(t, "released UID", fmt.Sprintf("uid-%d", i), "uid-gone")}
		if chance(t, 80, "released member") {
			r.Members = []q.MemberID{q.MemberID(0xa0 + i)}
		}
		if chance(t, 30, "powered off") {
			r.Members, r.Until = nil, one(t, "until", noon().Add(-time.Second), noon(), noon().Add(time.Minute))
		}
		s.Ledger.Entries = append(s.Ledger.Entries, r)
	}
	if chance(t, 90, "usual limit") {
		s.Limits.MaxDeleting = q.AsTolerated
	} else {
		s.Limits.MaxDeleting = rapid.IntRange(0, 2).Draw(t, "limit")
	}
	s.Limits.MaxLearners = one(t, "learners", 1, 1, 2, 3)
	for i := range rapid.IntRange(0, 7).Draw(t, "nodes") {
		s.Nodes = append(s.Nodes, q.Node{
			Name: fmt.Sprintf("node-%d", i), ProviderID: fmt.Sprintf("p%d", i), Ready: chance(t, 85, "ready"),
			Addresses: drawAddresses(t, i), Zone: one(t, "zone", "a", "b", ""), CreatedAt: noon().Add(-time.Duration(i) * time.Hour),
			GaveWayAt: one(t, "gave way", time.Time{}, time.Time{}, noon().Add(-time.Minute)),
		})
	}
	long := strings.Repeat("x", one(t, "length", 0, 0, 32))
	for i := range rapid.IntRange(0, 7).Draw(t, "machines") {
		s.Machines = append(s.Machines, drawMachine(t, i, long))
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "claimants") {
		m := drawMachine(t, rapid.IntRange(0, 6).Draw(t, "claims"), "")
		m.Name, m.UID, m.Role, m.Type, m.Hook, m.Latch = fmt.Sprintf("worker-%d", i), fmt.Sprintf("uid-worker-%d", i), "worker", "", q.EntryAbsent, q.EntryAbsent
		s.Claimants = append(s.Claimants, m)
	}
	s.MachineSets = one(t, "MachineSets", nil, []string{"w"}, []string{"w", "c"})
	s.ControlPlaneMachineSets = one(t, "ControlPlaneMachineSets", nil, []string{"c"}, []string{"c"})
	if chance(t, 5, "MachineSets unknown") {
		s.MachineSetsWhy = "not listed"
	}
	if chance(t, 5, "claimants unknown") {
		s.ClaimantsWhy = "not listed yet"
	}
	for i := range rapid.IntRange(0, 7).Draw(t, "members") {
		m := q.Member{
			ID: q.MemberID(0xa0 + i), Name: one(t, "name", fmt.Sprintf("etcd-%d", i), fmt.Sprintf("etcd-%d", i), fmt.Sprintf("etcd-%d", i), fmt.Sprintf("etcd-%d", i), "", "", "etcd-bootstrap"),
			Learner: chance(t, 25, "learner"), Healthy: chance(t, 80, "healthy"), Why: one(t, "why", "", "connection refused", strings.Repeat("an error\nof several lines, ééé\n", 50)),
			Since:      one(t, "since", time.Time{}, noon().Add(-time.Second), noon().Add(-time.Minute)),
			InRaft:     chance(t, 70, "in raft"),
			LostSince:  one(t, "lost since", time.Time{}, noon().Add(-time.Second), noon().Add(-time.Minute)),
			Applied:    one(t, "applied", uint64(index), index-500, index-501, 0),
			CaughtUpAt: one(t, "caught up", noon().Add(-time.Minute), noon().Add(-time.Minute), noon(), time.Time{}),
			ProgressAt: one(t, "progress", time.Time{}, noon().Add(-time.Second), noon().Add(-time.Hour)),
		}
		for _, a := range drawAddresses(t, i) {
			m.PeerURLs = append(m.PeerURLs, peerURL(a.String()))
		}
		s.Ring.Members = append(s.Ring.Members, m)
		if s.Ring.Leader == 0 && !m.Learner && m.Healthy {
			s.Ring.Leader = m.ID
		}
		if chance(t, 25, "recorded") {
			s.Records = append(s.Records, q.Evidence{
				MachineUID: one(t, "recorded UID", fmt.Sprintf("uid-%d", i), "gone", ""), Machine: "recorded", MemberIDs: []q.MemberID{m.ID}, Voted: chance(t, 20, "voted"),
			})
		}
	}
	if len(s.Machines) > 0 && chance(t, 15, "moved") {
		i, to := rapid.IntRange(0, len(s.Machines)-1).Draw(t, "who moved"), []netip.Addr{address(rapid.IntRange(0, 9).Draw(t, "moved to"))}
		s.Machines[i].Addresses = to
		if n := w.node(s.Machines[i].NodeName); n != nil && chance(t, 80, "its Node, too") {
			n.Addresses = to
		}
	}
	return s
}

// drawAddresses are mostly those of the i-th host.
func drawAddresses(t *rapid.T, i int) []netip.Addr {
	switch rapid.IntRange(1, 20).Draw(t, "addresses") {
	case 1:
		return nil
	case 2:
		return []netip.Addr{address(rapid.IntRange(0, 6).Draw(t, "address"))}
	case 3:
		return []netip.Addr{netip.MustParseAddr("192.168.0.1"), address(i)}
	}
	return []netip.Addr{address(i)}
}

func drawEntry(t *rapid.T, what string) q.Entry {
	return one(t, what, q.EntryOurs, q.EntryOurs, q.EntryOurs, q.EntryOurs, q.EntryAbsent, q.EntryAbsent, q.EntryForeign)
}

func drawMachine(t *rapid.T, i int, long string) q.Machine {
	m := q.Machine{
		Name: fmt.Sprintf("master-%d%s", i, long), UID: fmt.Sprintf("uid-%d", i), Role: one(t, "role", "master", "master", "master", "worker", ""),
		Type: one(t, "type", "master", "master", "arbiter", ""), Mirrored: chance(t, 5, "mirrored"),
		CreatedAt: one(t, "created", noon().Add(-time.Hour), noon().Add(-time.Hour), noon().Add(-time.Second)),
		Hook:      drawEntry(t, "hook"), Latch: drawEntry(t, "latch"), Finalizer: chance(t, 90, "finalizer"),
		Override: one(t, "override", "", "", "one-too-many: because", "escape-hatch: because", "degraded-delete: because", "unprotected-delete: because", "claim: because", "keep-host: because", "nonsense"),
		Phase:    "Running", NodeName: fmt.Sprintf("node-%d", i), ProviderID: fmt.Sprintf("p%d", i), InstanceID: true, Addresses: drawAddresses(t, i),
		Zone: one(t, "zone", "a", "b", ""), Remediating: chance(t, 10, "remediating"), Marked: chance(t, 20, "marked"),
	}
	if m.Override != "" {
		m.OverrideBy = one(t, "by", q.Stamp("bob", noon()), q.Stamp("bob", noon().Add(-2*time.Hour)), "bob", "")
	}
	if chance(t, 35, "deleting") {
		m.DeletedAt, m.Phase = noon().Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "for"))*time.Minute), "Deleting"
	}
	switch rapid.IntRange(1, 10).Draw(t, "state") {
	case 1:
		m.Phase, m.NodeName, m.ProviderID, m.InstanceID, m.Addresses = one(t, "phase", "", "Provisioning", "Failed"), "", "", false, nil
	case 2:
		m.NodeName = ""
	case 3:
		m.NodeName, m.ProviderID = "", ""
	}
	for k := range m.Instance {
		m.Instance[k] = one(t, "instance", "", fmt.Sprintf("i%d", i), fmt.Sprintf("i%d", i))
	}
	switch one(t, "owners", 0, 0, 1, 2, 3) {
	case 1:
		m.Owners = []q.Owner{{Group: "machine.openshift.io", Kind: "ControlPlaneMachineSet", Name: "cluster", UID: "c", Controller: true}}
	case 2:
		m.Owners = []q.Owner{{Group: "machine.openshift.io", Kind: "MachineSet", Name: "workers", UID: "w", Controller: chance(t, 50, "controller")}}
	case 3:
		m.Owners = []q.Owner{{Kind: "ConfigMap", Name: "map" + long, UID: "m"}}
	}
	if chance(t, 5, "unread") {
		m.Unread, m.Hook, m.Latch, m.Phase, m.NodeName, m.ProviderID, m.InstanceID, m.Addresses = "too deep", q.EntryAbsent, q.EntryAbsent, "", "", "", false, nil
	}
	if chance(t, 5, "claim is lifted") {
		m.Override, m.OverrideBy = "claim: because", q.Stamp("bob", one(t, "signed", noon(), noon().Add(-2*time.Hour)))
		m.Phase, m.ProviderID = one(t, "phase of the lifted", "Failed", "Failed", "Running"), one(t, "instance of the lifted", "p0", "p1", "its own")
	}
	switch rapid.IntRange(1, 8).Draw(t, "evidence") {
	case 1, 2, 3:
		m.EvidenceRaw, m.Evidence = "own", q.Evidence{MachineUID: m.UID, Machine: m.Name, MemberIDs: []q.MemberID{q.MemberID(0xa0 + i)}, Addresses: []netip.Addr{address(i)}}
	case 4:
		m.EvidenceRaw = "copied"
		m.Evidence = q.Evidence{MachineUID: "uid-of-another", MemberIDs: []q.MemberID{q.MemberID(0xa0 + rapid.IntRange(0, 6).Draw(t, "id"))}}
	case 5:
		m.EvidenceRaw = "not even JSON"
	case 6:
		m.EvidenceRaw = "own"
		m.Evidence = q.Evidence{MachineUID: m.UID, MemberIDs: []q.MemberID{q.MemberID(0xa0 + rapid.IntRange(0, 6).Draw(t, "id"))}}
	}
	return m
}

// TestDecideKeepsTheInvariants: also where what it decided has failed since, and it goes on with what it can.
func TestDecideKeepsTheInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		for range 3 {
			for _, a := range decideAndCheck(t, s) {
				if membership.Failing(s, a) == nil {
					s.Failures = append(s.Failures, q.Failure{Reason: string(membership.ReasonActionFails), What: a.Describe(), Machine: a.Machine, Since: noon().Add(-time.Minute), Why: "refused", Refused: a.Kind() == membership.KindAddLearner && chance(t, 50, "by etcd")})
				}
			}
		}
	})
}

func decideAndCheck(t *rapid.T, s *q.Snapshot) []membership.Action {
	before := fmt.Sprintf("%+v", *s)
	p := membership.Decide(s)
	if after := fmt.Sprintf("%+v", *s); after != before {
		t.Fatalf("the Snapshot was changed:\n%s\n%s", before, after)
	}
	again := membership.Decide(s)
	if again.Join = p.Join; fmt.Sprint(again) != fmt.Sprint(p) {
		t.Fatalf("decided another time:\n%s\n%s", p.Describe(), again.Describe())
	}
	if i := slices.IndexFunc(p.Notes, func(n membership.Note) bool { return n.Reason == membership.ReasonInvariantViolated }); i >= 0 {
		t.Fatal(p.Notes[i].Message)
	}
	for _, n := range p.Notes {
		if n.Message == "" || len(n.Message) > 1100 || strings.Contains(n.Message, "\n") {
			t.Errorf("%s says %q", n.Reason, n.Message)
		}
	}
	if !s.Ring.Known && (len(p.Records) > 0 || p.Ledger != nil && fmt.Sprint(p.Ledger) != fmt.Sprint(s.Ledger.Entries)) {
		t.Fatalf("etcd is not known, and still:\n%s", p.Describe())
	}
	if s.Ledger.Unusable() != "" && len(s.Ring.Alarms) == 0 && !s.Ring.Known && p.Ledger == nil {
		t.Error("the ledger is not made anew")
	}
	for _, r := range p.Records {
		voted := slices.ContainsFunc(s.Records, func(was q.Evidence) bool { return was.Voted && slices.Contains(was.MemberIDs, r.MemberIDs[0]) })
		if m := s.Ring.Member(r.MemberIDs[0]); m == nil || r.Voted != (voted || !m.Learner) {
			t.Errorf("the record %+v is wrong about who voted", r)
		}
	}
	changes := 0
	for _, a := range p.Actions {
		if problem := cmp.Or(violates(s, a), misled(s, a), hasty(s, a)); problem != "" {
			t.Errorf("%s: %s", a.Describe(), problem)
		}
		if a.Kind() != membership.KindAddHook && a.Kind() != membership.KindReleaseHook && a.Kind() != membership.KindRecordRelease && a.Kind() != membership.KindMarkIdle {
			changes++
		}
		if !s.Ring.Known && a.Kind() != membership.KindReleaseHook && a.Kind() != membership.KindRecordRelease {
			t.Errorf("etcd is not known, and still: %s", a.Describe())
		}
		on, _ := a.Change.(membership.AddHook)
		off, _ := a.Change.(membership.ReleaseHook)
		if m := machineOf(s, a.Machine); a.Kind() == membership.KindMarkIdle && (m == nil || s.Mode != q.ModeGuard || m.DeletedAt.IsZero() || m.Hook != q.EntryOurs || m.Marked || dumbMayHost(s, m)) {
			t.Error("a mark where cluster-etcd-operator would release nothing")
		}
		if s.Mode == q.ModeGuard && (changes > 0 || on.Hook || off.Hook) {
			t.Errorf("guard mode: %s", a.Describe())
		}
		if m := machineOf(s, a.Machine); m != nil && m.Mirrored {
			t.Errorf("mirrored: %s", a.Describe())
		}
		if problem := putBack(s, a); problem != "" {
			t.Errorf("%s: %s", a.Describe(), problem)
		}
		if a.Why == "" || strings.ContainsAny(a.Why+a.Describe(), "%\n") {
			t.Errorf("%s: why: %q", a.Describe(), a.Why)
		}
	}
	if changes > 1 {
		t.Errorf("I7: %d changes in one round", changes)
	}
	if len(s.Ring.Alarms) > 0 && len(p.Actions) > 0 {
		t.Errorf("etcd refuses every write, and still:\n%s", p.Describe())
	}
	if len(p.Actions)+len(p.Notes) == 0 {
		if problem := amiss(s); problem != "" {
			t.Errorf("nothing is said, and %s", problem)
		}
	}
	return p.Actions
}

// putBack says what the webhooks have against a release that was planned. Who is lost by the account of etcd's leader, and since when, they do
// not know.
func putBack(s *q.Snapshot, a membership.Action) string {
	off, ok := a.Change.(membership.ReleaseHook)
	if !ok {
		return ""
	}
	blind := *s
	blind.Ring.Members = slices.Clone(s.Ring.Members)
	for k := range blind.Ring.Members {
		blind.Ring.Members[k].LostSince = time.Time{}
	}
	old := *machineOf(s, a.Machine)
	next := old
	if off.Hook {
		next.Hook = q.EntryAbsent
	}
	if off.Latch {
		next.Latch = q.EntryAbsent
	}
	ids := identities()
	r := &admission.Request{User: people()["holdfast"], Namespace: "openshift-machine-api", At: s.Now, Operation: admission.OperationUpdate, Old: &old, New: &next}
	if d := ids.Admit(r, given(ids, r, &blind)); d.Denial() != nil || d.Repairs.Hook != 0 || d.Repairs.Latch != 0 {
		return fmt.Sprintf("the webhooks put it back: %v", d.Findings)
	}
	return ""
}

// amiss says what is wrong, or waited for, where nothing should be.
func amiss(s *q.Snapshot) string {
	voters, healthy := s.Ring.Voters()
	switch {
	case healthy < voters:
		return fmt.Sprintf("%d of %d voters are healthy", healthy, voters)
	case voters != s.Desired:
		return fmt.Sprintf("%d of %d voters are there", voters, s.Desired)
	}
	for i := range s.Machines {
		if m := &s.Machines[i]; m.Deleting() && !m.Mirrored && m.Held() {
			return "Machine " + m.Name + " is deleting and held"
		}
	}
	return ""
}

// TestOrderDoesNotMatter shuffles what the API server and etcd list in an order of their own. Where
// several members are equally good the first one is taken, so those are compared by kind alone.
func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		shuffled := *s
		shuffled.Machines = rapid.Permutation(s.Machines).Draw(t, "machines")
		shuffled.Nodes = rapid.Permutation(s.Nodes).Draw(t, "nodes")
		shuffled.Records = rapid.Permutation(s.Records).Draw(t, "records")
		shuffled.Ring.Members = rapid.Permutation(s.Ring.Members).Draw(t, "members")
		outcome := func(s *q.Snapshot) (out []string) {
			for _, a := range membership.Decide(s).Actions {
				switch a.Kind() {
				case membership.KindAddHook, membership.KindAddLearner:
					out = append(out, a.Describe())
				default:
					out = append(out, fmt.Sprint(a.Step, a.Kind()))
				}
			}
			slices.Sort(out)
			return out
		}
		if one, two := outcome(s), outcome(&shuffled); !slices.Equal(one, two) {
			t.Fatalf("%q, and in another order %q", one, two)
		}
	})
}

func TestJoinAgreesWithTheNaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		j := q.NewJoin(s)
		for k := range s.Ring.Members {
			h, got := j.Host(&s.Ring.Members[k]), ""
			for _, m := range h.Machines {
				got += "[machine " + m.Name + "]"
			}
			for _, n := range h.Nodes {
				got += "[node " + n.Name + "]"
			}
			if got == "" && h.Bootstrap {
				got = "[bootstrap]"
			}
			if got == "" && h.Departed != nil {
				got = "[gone]"
			}
			want := dumbHosts(s, &s.Ring.Members[k])
			if got != want || h.Known() != (strings.Count(want, "[") == 1) {
				t.Errorf("member %s runs at %q (known: %t), naively at %q", &s.Ring.Members[k], got, h.Known(), want)
			}
		}
		for i := range s.Machines {
			is, why := j.Hosting(&s.Machines[i])
			if (is == q.HostingNothing) == dumbMayHost(s, &s.Machines[i]) {
				t.Errorf("%s: %d, naively it may host: %t", s.Machines[i].Name, is, is == q.HostingNothing)
			}
			if (is == q.HostingUnknown) != (why != "") {
				t.Errorf("%s: %d because of %q", s.Machines[i].Name, is, why)
			}
		}
	})
}

// TestCheckPlanIsAsStrictAsTheJudge gives both any action, sensible or not.
func TestCheckPlanIsAsStrictAsTheJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		member := membership.Member{ID: q.MemberID(0xa0 + rapid.IntRange(0, 6).Draw(t, "member"))}
		a := membership.Action{Change: rapid.SampledFrom([]membership.Change{
			membership.AddHook{Hook: true}, membership.ReleaseHook{Hook: true}, membership.RecordRelease{}, membership.MarkIdle{}, membership.SizeGuard{}, membership.CreateGuardPod{}, membership.DeleteGuardPod{},
			membership.RemoveLearner{Member: member}, membership.MoveLeader{From: member}, membership.RemoveVoter{Member: member}, membership.Promote{Member: member}, membership.AddLearner{},
		}).Draw(t, "change")}
		if len(s.Machines) > 0 {
			m := rapid.SampledFrom(s.Machines).Draw(t, "machine")
			a.Machine, a.UID = m.Name, m.UID
		}
		if problem := violates(s, a); problem != "" && membership.CheckPlan(q.NewJoin(s), []membership.Action{a}) == nil {
			t.Errorf("CheckPlan takes %s although %s", a.Describe(), problem)
		}
	})
}

// drawRequest is a request for a Machine of the Snapshot, as a tool or a person would send it, or
// as somebody who tries what can be done.
func drawRequest(t *rapid.T, s *q.Snapshot) *admission.Request {
	names := make([]string, 0, len(people()))
	for name := range people() {
		names = append(names, name)
	}
	slices.Sort(names)
	r := &admission.Request{User: people()[rapid.SampledFrom(names).Draw(t, "who")], Namespace: "openshift-machine-api", At: noon(), Operation: one(t, "operation", admission.OperationUpdate, admission.OperationUpdate, admission.OperationUpdate, admission.OperationDelete, admission.OperationCreate)}
	fresh := drawMachine(t, rapid.IntRange(0, 6).Draw(t, "which"), "")
	if r.Operation == admission.OperationCreate || len(s.Machines) == 0 {
		r.Operation, r.New = admission.OperationCreate, &fresh
		r.New.Name, r.New.DeletedAt, r.New.Mirrored = "master-new", time.Time{}, false
		return r
	}
	old := rapid.SampledFrom(slices.Concat(s.Machines, s.Claimants)).Draw(t, "old")
	r.Old = &old
	if r.Operation == admission.OperationDelete {
		return r
	}
	next := old
	r.New = &next
	r.ByWebhook = chance(t, 15, "by a webhook")
	if chance(t, 50, "strip") {
		next.Hook, next.Latch = one(t, "hook", q.EntryAbsent, q.EntryAbsent, q.EntryForeign, q.EntryOurs), one(t, "latch", q.EntryAbsent, q.EntryOurs, q.EntryForeign)
	}
	if chance(t, 15, "re-label") {
		next.Role, next.Type = fresh.Role, fresh.Type
	}
	if chance(t, 15, "evidence") {
		next.Evidence, next.EvidenceRaw = fresh.Evidence, fresh.EvidenceRaw
	}
	if chance(t, 15, "override") {
		next.Override, next.OverrideBy = fresh.Override, fresh.OverrideBy
	}
	if chance(t, 5, "finalizer") {
		next.Finalizer = !next.Finalizer
	}
	if chance(t, 10, "provider") {
		next.ProviderID = one(t, "its provider ID", fresh.ProviderID, "")
	}
	if chance(t, 5, "instance") {
		next.Instance = fresh.Instance
	}
	if chance(t, 25, "remediation") {
		next.Remediating = !next.Remediating
	}
	if chance(t, 10, "owners") {
		next.Owners = fresh.Owners
	}
	return r
}

// given is no more of the Snapshot than Needs asks for.
func given(ids admission.Identities, r *admission.Request, s *q.Snapshot) *q.Snapshot {
	switch ids.Needs(r) {
	case admission.NeedRing:
		return s
	case admission.NeedHosts:
		return hosts(s, r)
	}
	return nil
}

// hosts is as much of a Snapshot as NeedHosts asks for.
func hosts(s *q.Snapshot, r *admission.Request) *q.Snapshot {
	m := r.Machine()
	out := &q.Snapshot{Machines: s.Machines}
	for _, n := range s.Nodes {
		if n.Name == m.NodeName || m.NodeName == "" && len(m.Addresses) > 0 {
			out.Nodes = append(out.Nodes, n)
		}
	}
	if identities().Compares(r) && m.ControlPlane() {
		out.Claimants, out.ClaimantsWhy = s.Claimants, s.ClaimantsWhy
	}
	out.MachineSets, out.ControlPlaneMachineSets, out.MachineSetsWhy = nil, nil, "nobody asked for them"
	if r.Adopts() {
		out.MachineSets, out.ControlPlaneMachineSets, out.MachineSetsWhy = s.MachineSets, s.ControlPlaneMachineSets, s.MachineSetsWhy
	}
	return out
}

func TestAdmit(t *testing.T) {
	ids := identities()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		r := drawRequest(t, s)
		text := func() string { return fmt.Sprintf("%+v %+v %+v", *s, r.Old, r.New) }
		before := text()
		d := ids.Admit(r, given(ids, r, s))
		if text() != before {
			t.Fatal("request or Snapshot were changed")
		}
		if full := ids.Admit(r, s); fmt.Sprint(full) != fmt.Sprint(d) {
			t.Fatalf("Needs says too little: with all of the Snapshot\n%swithout\n%s", full.Describe(), d.Describe())
		}
		if problem := wrongWords(&d); problem != "" {
			t.Error(problem)
		}
		if len(d.Warnings())+len(d.Findings) == 0 && d.Denial() != nil || d.Describe() == "" {
			t.Error("a decision without words")
		}
		class := ids.Classify(r.User)
		if r.Operation == admission.OperationUpdate && class == admission.ClassPerson && !r.ByWebhook && r.Old.Deleting() && !r.Old.Mirrored && r.Old.Hook == q.EntryOurs && r.New.Hook == q.EntryAbsent {
			stays := r.Old.Latch != q.EntryOurs && dumbMayHost(joined(s, r.Old), r.Old) && !dumbLifts(s, r.Old) // nothing else would hold it
			if stays != (d.Repairs.Hook == admission.FixAsOld) || r.Old.Latch == q.EntryOurs && r.New.Latch != q.EntryOurs && d.Repairs.Latch != admission.FixAsOld &&
				(r.Old.ControlPlane() || dumbMayHost(joined(s, r.Old), r.Old)) {
				t.Errorf("a person takes the hook off, and nothing else: %s", d.Describe())
			}
		}
		if d.Denial() != nil {
			if r.Operation == admission.OperationUpdate && r.Old.Mirrored && d.Denial().Rule != q.RuleClaim {
				t.Errorf("a mirrored Machine is not guarded: %s", d.Describe())
			}
			return
		}
		if r.Operation == admission.OperationDelete {
			checkDeleted(t, r, s, &d)
			return
		}
		fixed := repaired(r, &d)
		again := ids.Admit(fixed, given(ids, fixed, s))
		if again.Repairs != (admission.Repairs{}) || again.Denial() != nil {
			t.Errorf("after %sthere is still\n%s", d.Describe(), again.Describe())
		}
		if untold := slices.DeleteFunc(slices.Clone(d.Findings), func(f admission.Finding) bool {
			named := f.Rule == q.RuleClaim && (d.Repairs.ProviderID != admission.FixNone || d.Repairs.Instance != [2]admission.Fix{}) // and no longer
			return f.Verdict == admission.VerdictRepaired || named || slices.ContainsFunc(again.Findings, func(g admission.Finding) bool { return g.Rule == f.Rule && g.Verdict == f.Verdict })
		}); len(untold) > 0 {
			t.Errorf("the validating handler tells what is no repair, and after %sfinds only\n%s", d.Describe(), again.Describe())
		}
		if r.Operation == admission.OperationCreate {
			if n := fixed.New; n.ControlPlane() && !n.Finalizer {
				t.Error("it was created without a finalizer")
			}
			if n := fixed.New; n.EvidenceRaw+n.Override+n.OverrideBy != "" || (n.Hook == q.EntryOurs) != (n.Latch == q.EntryOurs) || !n.ControlPlane() && n.Hook == q.EntryOurs {
				t.Errorf("created as %+v", n)
			}
			if n := fixed.New; n.ControlPlane() && owned(n) {
				t.Error("it was created as a MachineSet's")
			}
			if n := fixed.New; n.ControlPlane() && forsaken(n, s) {
				t.Error("its controller does not exist")
			}
			return
		}
		checkUpdated(t, fixed, &d, s, class)
	})
}

// checkUpdated judges what became of a Machine by an UPDATE that passed.
func checkUpdated(t *rapid.T, r *admission.Request, d *admission.Decision, s *q.Snapshot, class admission.Class) {
	was, is := r.Old, r.New
	guarded := !was.Mirrored && (was.ControlPlane() || is.ControlPlane() || was.Hook == q.EntryOurs || was.Latch == q.EntryOurs)
	// A person who lifted the rule removes the instance from a hooked Machine that has no recorded member, if another Machine has that instance.
	twin := slices.ContainsFunc(s.Machines, func(m q.Machine) bool {
		shares := m.ProviderID != "" && m.ProviderID == was.ProviderID
		for k := range m.Instance {
			shares = shares || m.Instance[k] != "" && m.Instance[k] == was.Instance[k]
		}
		return m.Name != was.Name && shares
	})
	recorded := was.Evidence.MachineUID == was.UID && len(was.Evidence.MemberIDs) > 0
	takesOff := class == admission.ClassPerson && !recorded && twin && was.Override == "claim: because" && was.OverrideBy == "bob 2026-01-01T12:00:00Z"
	finds := r.User.Name == people()["machine-api"].Name
	for k, field := range [][2]string{{was.ProviderID, is.ProviderID}, {was.Instance[0], is.Instance[0]}, {was.Instance[1], is.Instance[1]}} {
		switch before, now := field[0], field[1]; {
		case before == now:
		case now != "" && !finds:
			t.Errorf("%s named an instance (%d)", r.User.Name, k)
		case was.Held() && !was.Mirrored && before != "" && !strings.HasPrefix(now, before) && (now != "" || !takesOff):
			t.Errorf("a hooked Machine's instance was changed (%d)", k)
		}
	}
	if !guarded {
		return
	}
	unhooked := was.Hook == q.EntryOurs && is.Hook != q.EntryOurs
	freed := was.Deleting() && (was.Hook == q.EntryOurs || was.Latch == q.EntryOurs) && is.Hook != q.EntryOurs && is.Latch != q.EntryOurs // nothing holds it
	final := freed && was.Hook == q.EntryAbsent && strings.Contains(dumbLedger(s), "["+was.UID+"]") &&
		(!dumbLosesQuorum(s, was) || dumbLifts(s, was))
	becomes := !was.ControlPlane() && is.ControlPlane() // guarded from now on
	if becomes && is.EvidenceRaw+is.Override+is.OverrideBy != "" {
		t.Errorf("it brought evidence %q and override %q by %q along", is.EvidenceRaw, is.Override, is.OverrideBy)
	}
	if is.Remediating && !was.Remediating {
		if problem := dumbRestart(s, was, r.User.Name, class); problem != "" {
			t.Errorf("its host is powered off: %s", problem)
		}
		lifted := was.Override == "keep-host: because" && class == admission.ClassPerson
		if c := d.Claims; c.Until.IsZero() && !lifted && dumbVotes(s, was) || !c.Until.IsZero() && (c.UID != was.UID || c.Until != noon().Add(2*time.Minute) || len(c.Members) > 0) {
			t.Errorf("its host is powered off, and on record is %+v", c)
		}
	}
	switch {
	case (unhooked || freed) && class == admission.ClassAutomation:
		t.Error("automation released a hook")
	case unhooked && class == admission.ClassPerson && r.ByWebhook:
		t.Error("a webhook took the hook off")
	case unhooked && class == admission.ClassPerson && was.Latch != q.EntryOurs && dumbMayHost(joined(s, was), was) && !dumbLifts(s, was):
		t.Error("a person took the hook off a Machine that nothing else holds")
	case unhooked && class == admission.ClassPerson && !was.Deleting():
		t.Error("a person took the hook off a live Machine")
	case freed && was.Latch == q.EntryOurs && class == admission.ClassPerson && (was.ControlPlane() || dumbMayHost(joined(s, was), was)):
		t.Error("a person took the latch off")
	case unhooked && class == admission.ClassCustodian && s.Mode == q.ModeGuard && was.Deleting() && was.Latch == q.EntryOurs && is.Latch == q.EntryOurs && dumbLearnsAlone(s, was):
	case (unhooked || freed) && class == admission.ClassCustodian && dumbMayHost(s, was) && !final:
		t.Error("a custodian released a Machine that may host a member")
	case was.Deleting() && was.Hook != q.EntryOurs && is.Hook == q.EntryOurs, was.Deleting() && was.Latch != q.EntryOurs && is.Latch == q.EntryOurs:
		t.Error("hook or latch returned")
	case !was.Deleting() && (is.Hook == q.EntryOurs) != (is.Latch == q.EntryOurs):
		t.Error("hook and latch are parted")
	case unhooked && class == admission.ClassCustodian && is.Latch == q.EntryOurs:
		t.Error("the latch does not go with the hook")
	case was.Deleting() && is.Hook == q.EntryOurs && was.Latch == q.EntryOurs && is.Latch != q.EntryOurs:
		t.Error("the latch goes before the hook")
	case was.Held() && was.Finalizer && !is.Finalizer:
		t.Error("the finalizer is gone")
	case !was.Held() && was.ControlPlane() && (was.ProviderID+was.Instance[0]+was.Instance[1]+was.NodeName != "") && class != admission.ClassPerson && r.User.Name != people()["machine-api"].Name &&
		(was.Finalizer && !is.Finalizer || was.ProviderID != "" && is.ProviderID == "" || was.Instance[0] != "" && is.Instance[0] == "" || was.Instance[1] != "" && is.Instance[1] == ""):
		t.Error("a tool leaves an instance without a Machine")
	case (was.Held() || was.ControlPlane() && was.ProviderID+was.Instance[0]+was.Instance[1]+was.NodeName != "") && (was.Role != "" && is.Role != was.Role || was.Type != "" && is.Type != was.Type):
		t.Error("the labels are gone")
	case !was.Deleting() && owned(is) && (becomes || !owned(was)):
		t.Error("a MachineSet took it")
	case !was.Deleting() && is.ControlPlane() && forsaken(is, s) && (becomes || !forsaken(was, s)):
		t.Error("its controller does not exist")
	case becomes:
	case class != admission.ClassCustodian && is.EvidenceRaw != was.EvidenceRaw:
		t.Error("the evidence was changed")
	case class == admission.ClassAutomation && is.Override != was.Override:
		t.Error("automation changed an override")
	case is.Override != "" && is.Override != was.Override && (class != admission.ClassPerson || is.OverrideBy != r.User.Name+" 2026-01-01T12:00:00Z"):
		t.Errorf("%s set the override as %q", r.User.Name, is.OverrideBy)
	case is.OverrideBy != "" && is.OverrideBy != was.OverrideBy && is.OverrideBy != r.User.Name+" 2026-01-01T12:00:00Z":
		t.Errorf("%s stamped it as %q", r.User.Name, is.OverrideBy)
	}
}

// joined is a Snapshot with a Machine that may be none of the control plane's.
func joined(s *q.Snapshot, m *q.Machine) *q.Snapshot {
	if machineOf(s, m.Name) != nil {
		return s
	}
	with := *s
	with.Machines = append(slices.Clone(s.Machines), *m)
	return &with
}

// dumbRestart is what is wrong with powering a Machine's host off, by counting.
func dumbRestart(s *q.Snapshot, was *q.Machine, user string, class admission.Class) string {
	if class == admission.ClassAutomation && user != people()["machine-api"].Name {
		return "a tool asked for it"
	}
	if class == admission.ClassPerson && was.Override == "keep-host: because" && was.OverrideBy == "bob 2026-01-01T12:00:00Z" {
		return ""
	}
	s = joined(s, was)
	here, healthy, voters, left, sick, going := false, false, 0, 0, false, map[string]bool{}
	joined := false
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		hosts := dumbPerhaps(s, member)
		mine := strings.Contains(hosts, "[machine "+was.Name+"]")
		joined = joined || mine
		if member.Learner {
			continue
		}
		voters++
		leaves, off := false, false
		for _, o := range s.Machines {
			if o.Name != was.Name && strings.Contains(dumbMayRun(s, member), "[machine "+o.Name+"]") {
				off = off || o.Remediating || strings.Contains(dumbOff(s), "["+o.UID+"]")
			}
			if strings.Contains(hosts, "[machine "+o.Name+"]") && o.Deleting() {
				leaves = true
				if o.Name != was.Name {
					going[o.Name] = true
				}
			}
		}
		here, healthy = here || mine, healthy || mine && member.Healthy
		sick = sick || !member.Healthy && !leaves && !mine
		if member.Healthy && !mine && !off && !dumbReleased(s, member) {
			left++
		}
	}
	switch {
	case !s.Ring.Known, !joined && dumbMayHost(s, was):
		return "what it hosts is not known"
	case !here || voters == 1:
		return ""
	case left <= voters/2:
		return fmt.Sprintf("%d of %d voters are left", left, voters)
	case healthy && sick:
		return "another voter is unhealthy"
	case healthy && s.Limits.MaxDeleting < 0 && len(going) >= max(1, (voters-1)/2):
		return fmt.Sprintf("%d of %d voters are going already", len(going), voters)
	}
	return ""
}

// TestAdmitHost judges what is asked of a BareMetalHost, by counting.
func TestAdmitHost(t *testing.T) {
	ids := identities()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		if len(s.Machines) == 0 {
			return
		}
		m := rapid.SampledFrom(s.Machines).Draw(t, "machine")
		if chance(t, 50, "lifted") {
			m.Override, m.OverrideBy = one(t, "by rule", "keep-host: because", "one-too-many: because"), q.Stamp("bob", noon())
		}
		who := one(t, "who", "alice", "gitops", "machine-api")
		r := &admission.HostRequest{
			Operation: admission.OperationUpdate, Namespace: "n", Name: "h", Machine: m.Name, What: "spec.online: false", Ends: chance(t, 50, "ends"),
			MachineNamespace: "n", User: people()[who], At: noon(),
		}
		d := ids.AdmitHost(r, &m, s)
		if problem := wrongWords(&d); problem != "" {
			t.Error(problem)
		}
		released := m.Deleting() && m.Hook != q.EntryOurs && m.Latch != q.EntryOurs && m.Unread == ""
		switch {
		case d.Denial() != nil, m.Mirrored, released, who == "alice" && m.Override == "keep-host: because" && m.OverrideBy == q.Stamp("bob", noon()), !r.Ends && m.Remediating:
			return
		case !s.Ring.Known:
			t.Error("etcd is not known")
		}
		here, joined := false, false
		for k := range s.Ring.Members {
			member := &s.Ring.Members[k]
			mine := strings.Contains(dumbPerhaps(s, member), "[machine "+m.Name+"]")
			joined = joined || mine
			if !mine || member.Learner {
				continue
			}
			here = true
			if r.Ends || member.Healthy {
				t.Errorf("it hosts voter %s", member)
			}
		}
		if !joined && dumbMayHost(s, &m) {
			t.Error("what it hosts is not known")
		}
		if here {
			if problem := dumbRestart(s, &m, people()["machine-api"].Name, admission.ClassCustodian); problem != "" {
				t.Error(problem)
			}
		}
	})
}

// owned says whether a MachineSet is the Machine's controller.
func owned(m *q.Machine) bool {
	return slices.ContainsFunc(m.Owners, func(o q.Owner) bool { return o.Kind == "MachineSet" && o.Controller })
}

// forsaken says whether the garbage collector would delete the Machine: its set does not exist.
func forsaken(m *q.Machine, s *q.Snapshot) bool {
	return s.MachineSetsWhy == "" && slices.ContainsFunc(m.Owners, func(o q.Owner) bool {
		return o.Kind == "ControlPlaneMachineSet" && o.Controller && !slices.Contains(s.ControlPlaneMachineSets, o.UID)
	})
}

// checkDeleted judges a DELETE that passed, by counting.
func checkDeleted(t *rapid.T, r *admission.Request, s *q.Snapshot, d *admission.Decision) {
	if d.Repairs != (admission.Repairs{}) {
		t.Error("a DELETE has nothing to repair")
	}
	if r.Old.Deleting() || r.Old.Mirrored || r.Old.Override != "" || !s.Ring.Known || dumbMislists(s) {
		return
	}
	if r.Old.ControlPlane() && !r.Old.Finalizer && s.Now.Sub(r.Old.CreatedAt) < time.Minute {
		t.Error("the machine controller may be adding its finalizer right now")
	}
	voters, going, here, sick := 0, map[string]bool{}, false, false
	for k := range s.Ring.Members {
		m := &s.Ring.Members[k]
		if m.Learner {
			continue
		}
		voters++
		leaves, mine := false, strings.Contains(dumbPerhaps(s, m), "[machine "+r.Old.Name+"]")
		for _, o := range s.Machines {
			if o.Deleting() && strings.Contains(dumbPerhaps(s, m), "[machine "+o.Name+"]") {
				going[o.Name], leaves = true, true
			}
		}
		here = here || mine && m.Healthy
		sick = sick || !m.Healthy && !leaves && !mine
	}
	if !here || !r.Old.ControlPlane() && r.Old.Hook != q.EntryOurs && r.Old.Latch != q.EntryOurs {
		return
	}
	if s.Limits.MaxDeleting < 0 && len(going) >= max(1, (voters-1)/2) {
		t.Errorf("%d of %d voters are going already", len(going), voters)
	}
	if sick {
		t.Error("another voter is unhealthy")
	}
}

func machineOf(s *q.Snapshot, name string) *q.Machine {
	for i := range s.Machines {
		if s.Machines[i].Name == name {
			return &s.Machines[i]
		}
	}
	return nil
}

// TestEveryReplacementCompletes is I8: whatever is deleted, let go, broken or killed within etcd's
// tolerance, looking and acting comes to rest with the voters that are wanted, and no Machine is
// held for ever. Nothing that is tried on the way is refused by etcd, and quorum stands all along.
func TestEveryReplacementCompletes(t *testing.T) {
	ids := identities()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		n := one(t, "voters", 1, 3, 3, 5)
		w.s.Desired = one(t, "desired", n, n, n, 3, 4, 5)
		w.s.Ring.Version = one(t, "version", "3.7.3", "3.6.0")
		w.s.Limits.MaxDeleting = one(t, "limit", q.AsTolerated, q.AsTolerated, 0)
		w.s.Limits.MaxLearners = one(t, "learners", 1, 1, 2, 3)
		if chance(t, 50, "guard pods") {
			w.s.QuorumGuard = q.Guard{Managed: true}
		}
		l := &life{t: t, w: w, ids: ids}
		for i := range n {
			l.host(i, i)
			must(t, w.setMember(fmt.Sprintf("a%d", i), []string{address(i).String()}))
		}
		if chance(t, 20, "bootstrap member") {
			must(t, w.setMember("ab", []string{"10.0.1.1", "name=" + q.BootstrapName}))
		}
		for range rapid.IntRange(0, 12).Draw(t, "rounds with events") {
			for range rapid.IntRange(0, 2).Draw(t, "events") {
				l.event()
			}
			l.round()
		}
		for range 400 {
			l.look()
			if !l.round() && l.done() {
				return
			}
		}
		t.Fatalf("does not come to rest:\n%s%s", w.describe(), membership.Decide(&w.s).Describe())
	})
}

// life is a world to which things happen.
type life struct {
	t    *rapid.T
	w    *world
	ids  admission.Identities
	next int   // number of the next host
	free []int // addresses of hosts that are gone
}

func (l *life) host(name, at int) {
	a := netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + at)})
	l.next = max(l.next, name+1)
	must(l.t, l.w.setMachine(fmt.Sprintf("master-%d", name), []string{a.String(), fmt.Sprintf("uid=uid-%d", name), "bare", "zone=" + string(rune('a'+name%3))}))
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// spare adds a host, one that is reinstalled at an address that was in use if there is one.
func (l *life) spare() string {
	at := l.next
	if len(l.free) > 0 && chance(l.t, 50, "same address") {
		at, l.free = l.free[0], l.free[1:]
	}
	l.host(l.next, at)
	return fmt.Sprintf("master-%d", l.next-1)
}

func (l *life) event() {
	w := l.w
	if len(w.s.Machines) == 0 {
		return
	}
	m := &w.s.Machines[rapid.IntRange(0, len(w.s.Machines)-1).Draw(l.t, "machine")]
	switch rapid.IntRange(1, 9).Draw(l.t, "event") {
	case 1, 2:
		l.delete(m)
	case 3:
		l.spare()
	case 4:
		w.broken[l.spare()] = true
	case 5, 6:
		if l.survives(m) {
			w.kill(m.Addresses)
		}
	case 7: // it was only a flap
		for k := range w.s.Ring.Members {
			member := &w.s.Ring.Members[k]
			if member.Name != "" && w.nodeAt(member.PeerURLs) != nil && member.Name == w.nodeAt(member.PeerURLs).Name {
				member.Healthy, member.Since, member.Why = true, w.s.Now, ""
			}
		}
	case 8: // Holdfast starts anew and has seen nothing
		for k := range w.s.Ring.Members {
			member := &w.s.Ring.Members[k]
			member.Since, member.ProgressAt, member.CaughtUpAt = w.s.Now, w.s.Now, w.s.Now
		}
	case 9: // a person takes the hook off
		if !m.Deleting() || m.Hook != q.EntryOurs {
			return
		}
		next := *m
		next.Hook = q.EntryAbsent
		r := &admission.Request{Operation: admission.OperationUpdate, User: people()["alice"], At: l.w.s.Now, Old: m, New: &next}
		if d := l.ids.Admit(r, &w.s); d.Denial() == nil {
			*m = *repaired(r, &d).New
		}
	}
}

func (l *life) delete(m *q.Machine) {
	r := &admission.Request{Operation: admission.OperationDelete, User: people()["alice"], At: l.w.s.Now, Old: m}
	if d := l.ids.Admit(r, &l.w.s); d.Denial() == nil && !m.Deleting() {
		m.DeletedAt, m.Phase = l.w.s.Now, "Deleting"
	}
}

// survives says whether etcd stands the loss of a host beside all that is lost, or let go, already.
func (l *life) survives(m *q.Machine) bool {
	voters, left := 0, 0
	for k := range l.w.s.Ring.Members {
		member := &l.w.s.Ring.Members[k]
		if member.Learner {
			continue
		}
		voters++
		lost := !member.Healthy
		for i := range l.w.s.Machines {
			o := &l.w.s.Machines[i]
			for _, a := range o.Addresses {
				if slices.Contains(member.PeerURLs, peerURL(a.String())) {
					lost = lost || o.Name == m.Name || o.DeletingUnheld()
				}
			}
		}
		if !lost {
			left++
		}
	}
	return left > voters/2
}

// look is what an administrator does: dead voters' Machines and those too many are deleted, and
// there are as many Machines that work as are wanted.
func (l *life) look() {
	w, working := l.w, 0
	voters, healthy := w.s.Ring.Voters()
	surplus := voters > w.s.Desired && w.s.Ring.Member(0xab) == nil // the installer's member goes by itself
	settled := voters == healthy && !slices.ContainsFunc(w.s.Machines, func(m q.Machine) bool { return m.Deleting() })
	for i := range w.s.Machines {
		m := &w.s.Machines[i]
		if m.Deleting() {
			continue
		}
		dead, votes := false, false
		for k := range w.s.Ring.Members {
			member := &w.s.Ring.Members[k]
			if slices.Contains(member.PeerURLs, peerURL(m.Addresses[0].String())) {
				dead = dead || !member.Healthy && member.Name != "" && m.OwnEvidence().Names(member.ID)
				votes = votes || !member.Learner
			}
		}
		switch {
		case dead, votes && settled && surplus:
			l.delete(m)
			settled = false
		case !w.broken[m.Name]:
			working++
		}
	}
	for ; working < w.s.Desired; working++ {
		l.spare()
	}
}

// round looks and acts once, and says whether anything happened.
func (l *life) round() bool {
	w := l.w
	w.account()
	p, acts := membership.Decide(&w.s), false
	w.forget(&p)
	for _, a := range p.Actions {
		if problem := violates(&w.s, a); problem != "" {
			l.t.Fatalf("%s: %s", a.Describe(), problem)
		}
		known, err := w.try(a)
		if acts = acts || !known; err != nil && (!errors.Is(err, errUnhealthy) || a.Kind() != membership.KindAddLearner) {
			l.t.Fatalf("%s is refused: %v\n%s", a.Describe(), err, w.describe())
		}
		l.drains(a)
	}
	if p.Records != nil {
		w.s.Records = p.Records
	}
	w.keep(p.Ledger)
	before := map[string]q.Machine{}
	for _, m := range w.s.Machines {
		before[m.Name] = m
	}
	news := w.pass()
	for _, m := range w.s.Machines {
		delete(before, m.Name)
	}
	for _, m := range before {
		l.free = append(l.free, int(m.Addresses[0].As4()[3])-10)
	}
	slices.Sort(l.free)
	if !w.s.Ring.Known {
		l.t.Fatalf("quorum is lost:\n%s", w.describe())
	}
	return acts || len(news) > 0
}

// drains looks, after each action, that what the budget lets go leaves etcd its quorum: a pod stays ready for a while after its
// member was removed, but a dead member's is not.
func (l *life) drains(a membership.Action) {
	w := l.w
	if w.s.QuorumGuard.MinAvailable == nil {
		return
	}
	voters, healthy := w.s.Ring.Voters()
	ready := 0
	for _, p := range w.s.QuorumGuard.Pods {
		dead := slices.ContainsFunc(w.s.Ring.Members, func(m q.Member) bool {
			at := w.nodeAt(m.PeerURLs)
			return !m.Healthy && at != nil && at.Name == p.Node
		})
		if p.Ready && !p.Deleting && !dead {
			ready++
		}
	}
	if gone := ready - *w.s.QuorumGuard.MinAvailable; w.s.QuorumGuard.Managed && gone > 0 && voters > 1 && healthy-gone <= voters/2 {
		l.t.Fatalf("after %q %d ready pods may be drained, and %d of %d voters are healthy, with minAvailable %d", a.Describe(), gone, healthy, voters, *w.s.QuorumGuard.MinAvailable)
	}
}

func (l *life) done() bool {
	voters, healthy := l.w.s.Ring.Voters()
	if g := &l.w.s.QuorumGuard; g.Managed && (g.MinAvailable == nil || *g.MinAvailable != max(l.w.s.Desired-1, 0) || len(g.Pods) < len(l.w.s.Ring.Members)) {
		return false
	}
	return voters == l.w.s.Desired && healthy == voters && !slices.ContainsFunc(l.w.s.Machines, func(m q.Machine) bool { return m.Deleting() })
}

// TestCheckPlan makes a plan by hand that violates each invariant.
func TestCheckPlan(t *testing.T) {
	ring := func(lines string) *q.Snapshot {
		w := newWorld()
		for line := range strings.Lines(lines) {
			if line = strings.TrimSpace(line); line != "" {
				if err := w.set(line); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.account()
		return &w.s
	}
	const three = `
		machine master-0 10.0.0.10
		machine master-1 10.0.0.11
		machine master-2 10.0.0.12
		member a0 10.0.0.10
		member a1 10.0.0.11
		member a2 10.0.0.12`
	const learner = three + `
		machine master-3 10.0.0.13
		member a3 10.0.0.13 learner`
	latch := membership.Action{Machine: "master-0", UID: "uid-master-0", Change: membership.ReleaseHook{Latch: true}}
	promote := membership.Action{Machine: "master-3", UID: "uid-master-3", Change: membership.Promote{Member: membership.Member{ID: 0xa3}}}
	release := membership.Action{Machine: "master-0", UID: "uid-master-0", Change: membership.ReleaseHook{Hook: true}}
	for _, c := range []struct {
		name    string
		cluster string
		actions []membership.Action
		want    membership.Invariant
	}{
		{"a healthy voter goes beside one that was let go", three + "\n machine master-2 hook=none latch=none deleting \n desired 1", []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xa0}}}}, membership.InvariantQuorum},
		{"a healthy voter of two goes", three + "\n member a2 dead \n desired 1", []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xa0}}}}, membership.InvariantQuorum},
		{"a learner goes while there is no quorum", learner + "\n member a2 dead \n member a1 dead", []membership.Action{{Change: membership.RemoveLearner{Member: membership.Member{ID: 0xa3}}}}, membership.InvariantQuorum},
		{"an upgrade brought a voter back", three + "\n etcd 3.6.0 \n member ab 10.0.1.1 brought-back", []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xab}}}}, membership.InvariantQuorum},
		{"an upgrade brought a learner back", three + "\n etcd 3.6.0 \n member ab 10.0.1.1 learner brought-back", []membership.Action{{Change: membership.RemoveLearner{Member: membership.Member{ID: 0xab}}}}, membership.InvariantQuorum},
		{"etcd 3.7 takes that", three + "\n member ab 10.0.1.1 brought-back", []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xab}}}}, ""},
		{"promoted without a hook", learner + "\n machine master-3 hook=foreign", []membership.Action{promote}, membership.InvariantHookedPromotion},
		{"promoted by another's hook", learner + "\n machine master-4 10.0.0.14", []membership.Action{{Machine: "master-4", UID: "uid-master-4", Change: membership.Promote{Member: membership.Member{ID: 0xa3}}}}, membership.InvariantHookedPromotion},
		{"promoted without a Machine", learner, []membership.Action{{Change: membership.Promote{Member: membership.Member{ID: 0xa3}}}}, membership.InvariantHookedPromotion},
		{"released while live", three, []membership.Action{release}, membership.InvariantRelease},
		{"released while listed", three + "\n machine master-0 deleting", []membership.Action{release}, membership.InvariantRelease},
		{"a latch of a Machine that may run a voter by its address", "machine master-0 10.0.0.10 hook=none deleting evidence=ff \n machine named 10.0.0.10 evidence=a0 \n member a0 10.0.0.10 \n desired 1 \n ledger master-0 a0",
			[]membership.Action{latch}, membership.InvariantRelease},
		{"released as another's namesake", three + "\n gone member a0 \n machine master-0 deleting uid=new", []membership.Action{release}, membership.InvariantRelease},
		{"two too many", learner + "\n desired 2", []membership.Action{promote}, membership.InvariantVoterCount},
		{"a healthy voter below desired", three, []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xa0}}}}, membership.InvariantVoterCount},
		{"a voter as a learner", three, []membership.Action{{Change: membership.RemoveLearner{Member: membership.Member{ID: 0xa0}}}}, membership.InvariantVoterCount},
		{"a voter promoted", three, []membership.Action{{Machine: "master-0", UID: "uid-master-0", Change: membership.Promote{Member: membership.Member{ID: 0xa0}}}}, membership.InvariantVoterCount},
		{"promoted while deleting", learner + "\n machine master-3 deleting", []membership.Action{promote}, membership.InvariantLivePromotion},
		{"the hook returns", three + "\n machine master-0 bare deleting", []membership.Action{{Machine: "master-0", UID: "uid-master-0", Change: membership.AddHook{Hook: true}}}, membership.InvariantNoRegain},
		{"the latch returns", three + "\n machine master-0 bare deleting", []membership.Action{{Machine: "master-0", UID: "uid-master-0", Change: membership.AddHook{Latch: true}}}, membership.InvariantNoRegain},
		{"two at once", learner + "\n desired 5", []membership.Action{promote, {Change: membership.AddLearner{}}}, membership.InvariantOneChange},
		{"nobody's member", three, []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xff}}}}, membership.InvariantOneChange},
		{"a member without an ID", three, []membership.Action{{Change: membership.RemoveVoter{}}}, membership.InvariantOneChange},
		{"promoted although nobody leaves", learner, []membership.Action{promote}, membership.InvariantTolerance},
		{"promoted while one that stays is away", learner + "\n machine master-0 deleting \n member a2 dead", []membership.Action{promote}, membership.InvariantTolerance},
		{"promoted while one that leaves is away", learner + "\n machine master-0 deleting \n machine master-2 deleting \n member a2 dead", []membership.Action{promote}, ""},
		{"in order", learner + "\n machine master-0 deleting", []membership.Action{promote}, ""},
		{"a voter below desired that does not answer and votes", three + "\n member a2 silent=1h", []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xa2}}}}, membership.InvariantDead},
		{"a voter below desired that was lost just now", three + "\n member a2 dead=1s", []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xa2}}}}, membership.InvariantDead},
		{"a dead voter below desired", three + "\n member a2 dead", []membership.Action{{Change: membership.RemoveVoter{Member: membership.Member{ID: 0xa2}}}}, ""},
		{"a latch alone", three + "\n machine master-0 hook=none deleting", []membership.Action{latch}, membership.InvariantRelease},
		{"a latch alone, on record", three + "\n machine master-0 hook=none deleting \n ledger master-0 a0", []membership.Action{latch}, ""},
		{"a latch alone, one too many", three + "\n machine master-0 hook=none deleting \n machine master-1 hook=none deleting \n ledger master-0 a0 \n ledger master-1 a1", []membership.Action{latch}, membership.InvariantRelease},
		{"a latch alone, one too many, lifted", three + "\n machine master-0 hook=none deleting override=escape-hatch/because/alice \n machine master-1 hook=none deleting \n ledger master-0 a0 \n ledger master-1 a1", []membership.Action{latch}, ""},
		{"a latch beside a hook, on record", three + "\n machine master-0 deleting \n ledger master-0 a0", []membership.Action{latch}, membership.InvariantRelease},
		{"a release of what is hooked", three + "\n machine master-0 deleting", []membership.Action{{Machine: "master-0", UID: "uid-master-0", Change: membership.RecordRelease{}}}, membership.InvariantRelease},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got membership.Invariant
			err := membership.CheckPlan(q.NewJoin(ring(strings.NewReplacer(" \n ", "\n").Replace(c.cluster))), c.actions)
			if v := (*membership.Violation)(nil); errors.As(err, &v) {
				got = v.Invariant
			}
			if got != c.want {
				t.Errorf("violates %q, want %q: %v", got, c.want, err)
			}
			if err != nil && err.Error() == "" {
				t.Error("says nothing")
			}
		})
	}
}
