package snapshotfile_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

// generator makes Snapshots of any shape: the file keeps each field, also where the fields make no sense together.
func generator() *rapid.Generator[q.Snapshot] {
	anyTime := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "zero") {
			return time.Time{}
		}
		return time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
	})
	addr := rapid.Custom(func(t *rapid.T) netip.Addr {
		if rapid.Bool().Draw(t, "v6") {
			return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6")))
		}
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4")))
	})
	evidence := rapid.Custom(func(t *rapid.T) q.Evidence {
		e := q.Evidence{
			MachineUID: rapid.StringMatching(`[a-z0-9-]{1,8}`).Draw(t, "uid"), Machine: rapid.StringMatching(`[a-z0-9-]{1,8}`).Draw(t, "machine"),
			MemberIDs: rapid.SliceOfN(memberID(), 1, 3).Draw(t, "ids"),
		}
		for _, a := range rapid.SliceOfN(addr, 0, 2).Draw(t, "addresses") {
			e.Addresses = append(e.Addresses, a.Unmap()) // as ParseEvidence has it
		}
		return e
	})
	machine := rapid.Custom(func(t *rapid.T) q.Machine {
		m := rapid.MakeCustom[q.Machine](fields(anyTime, addr)).Draw(t, "machine")
		m.Evidence = q.Evidence{} // it is what its annotation says
		switch rapid.IntRange(0, 2).Draw(t, "evidence") {
		case 0:
			m.EvidenceRaw = ""
		case 1:
			m.EvidenceRaw = "not evidence"
		default:
			m.Evidence = evidence.Draw(t, "evidence")
			m.EvidenceRaw = machineapi.FormatEvidence(m.Evidence)
		}
		return m
	})
	return rapid.Custom(func(t *rapid.T) q.Snapshot {
		config := fields(anyTime, addr)
		s := rapid.MakeCustom[q.Snapshot](config).Draw(t, "snapshot")
		s.Now = time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "now"), 0).UTC()
		s.Machines = rapid.SliceOfNDistinct(machine, 0, 3, func(m q.Machine) string { return m.Name }).Draw(t, "machines")
		s.Claimants = rapid.SliceOfN(machine, 0, 2).Draw(t, "claimants")
		s.Records = rapid.SliceOfN(evidence, 0, 2).Draw(t, "records")
		if s.Ledger.Version == "" {
			s.Ledger = q.Ledger{}
		}
		for i := range s.Ledger.Entries {
			s.Ledger.Entries[i].UID = "uid-" + s.Ledger.Entries[i].UID
		}
		s.QuorumGuard.Managed = s.QuorumGuard.Managed && s.Mode == q.ModeFull
		if s.Mode == q.ModeFull && !s.QuorumGuard.Managed {
			s.QuorumGuard = q.Guard{}
		}
		return s
	})
}

// fields says what values the fields have, by type and, for strings and numbers that have a form, by type and name.
func fields(anyTime *rapid.Generator[time.Time], addr *rapid.Generator[netip.Addr]) rapid.MakeConfig {
	memberID := memberID()
	nobody := rapid.OneOf(rapid.Just(q.MemberID(0)), memberID).AsAny()
	entry := rapid.SampledFrom([]q.Entry{q.EntryAbsent, q.EntryOurs, q.EntryForeign})
	// What no terminal acts on; the rest is for the printer to escape.
	letters := []*unicode.RangeTable{unicode.L, unicode.N, unicode.P, unicode.S}
	text := rapid.StringOfN(rapid.RuneFrom([]rune{' ', '\n'}, letters...), 0, 12, -1)
	name := rapid.StringOfN(rapid.RuneFrom(nil, letters...), 1, 12, -1)
	return rapid.MakeConfig{
		Types: map[reflectType]*rapid.Generator[any]{
			typeOf[string]():        text.AsAny(),
			typeOf[time.Time]():     anyTime.AsAny(),
			typeOf[netip.Addr]():    addr.AsAny(),
			typeOf[q.MemberID]():    memberID.AsAny(),
			typeOf[q.Entry]():       entry.AsAny(),
			typeOf[q.PodOwner]():    rapid.SampledFrom([]q.PodOwner{q.PodOwnerGuard, q.PodOwnerOldGuard, q.PodOwnerOther}).AsAny(),
			typeOf[q.Mode]():        rapid.SampledFrom([]q.Mode{q.ModeFull, q.ModeGuard}).AsAny(),
			typeOf[time.Duration](): rapid.Map(rapid.Int64Range(0, int64(1000*time.Hour)), func(n int64) time.Duration { return time.Duration(n) }).AsAny(),
		},
		Fields: map[reflectType]map[string]*rapid.Generator[any]{
			typeOf[q.Machine]():  {"Name": name.AsAny()},
			typeOf[q.Node]():     {"Name": name.AsAny()},
			typeOf[q.Member]():   {"Leader": nobody},
			typeOf[q.Ring]():     {"Leader": nobody},
			typeOf[q.Alarm]():    {"Member": nobody},
			typeOf[q.Snapshot](): {"Desired": rapid.IntRange(0, 9).AsAny(), "Began": rapid.Just(time.Time{}).AsAny()}, // nothing is done on a file
		},
	}
}

// TestRoundTrip: what is written down is read again as it was, from YAML and from JSON.
func TestRoundTrip(t *testing.T) {
	all := generator()
	rapid.Check(t, func(t *rapid.T) {
		want := all.Draw(t, "snapshot")
		raw, err := json.Marshal(snapshotfile.Of(&want, "openshift-machine-api"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.JSONToYAML(raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range [][]byte{raw, text} {
			f, err := snapshotfile.Parse(form)
			if err != nil {
				t.Fatalf("%v\n%s", err, form)
			}
			if diff := cmp.Diff(&want, &f.Snapshot, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Fatalf("(-written +read):\n%s\n%s", diff, form)
			}
			if f.Namespace != "openshift-machine-api" {
				t.Fatalf("namespace %q", f.Namespace)
			}
		}
	})
}

// TestBadInput: an error names the field.
func TestBadInput(t *testing.T) {
	const head = "apiVersion: holdfast.dev/v1alpha1\nkind: Snapshot\n"
	const good = head + "mode: full\nnow: 2026-03-01T12:00:00Z\n"
	for text, field := range map[string]string{
		"":                                      "apiVersion",
		"kind: Pod\n":                           "kind",
		"[":                                     "yaml",
		head + "mode: half\n":                   "mode:",
		head + "mode: full\n":                   "now:",
		head + "mode: full\nnow: noon\n":        "now",
		good + "desired: -1\n":                  "desired:",
		good + "desired: three\n":               "desired",
		good + "voters: 3\n":                    `"voters"`,
		good + "bootstrap: host\n":              "bootstrap:",
		good + "etcd: {leader: xyz}\n":          "etcd.leader:",
		good + "etcd: {readAt: noon}\n":         "etcd.readAt:",
		good + "etcd: {members: [{name: a}]}\n": "etcd.members[0].id:",
		good + "etcd: {members: [{id: a}, {id: '0'}]}\n":           "etcd.members[1].id:",
		good + "etcd: {members: [{id: a, catchUp: soon}]}\n":       "etcd.members[0].catchUp:",
		good + "machines: [{uid: x}]\n":                            "machines[0].name:",
		good + "machines: [{name: a}, {name: a}]\n":                "machines[1].name:",
		good + "machines: [{name: a, hook: yours}]\n":              "machines[0].hook:",
		good + "machines: [{name: a, deletedAt: today}]\n":         "machines[0].deletedAt:",
		good + "machines: [{name: a, addresses: [10.0.0.1, x]}]\n": "machines[0].addresses[1]:",
		good + "machines: [{name: a, instance: {b: c}}]\n":         "machines[0].instance:",
		good + "nodes: [{ready: true}]\n":                          "nodes[0].name:",
		good + "records: ['{}']\n":                                 "records[0]:",
		good + "limits: {deadAfter: -1s}\n":                        "limits.deadAfter:",
	} {
		_, err := snapshotfile.Parse([]byte(text))
		if err == nil {
			t.Errorf("%q is read", text)
		} else if !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %q does not name %s", text, err, field)
		}
	}
}

func memberID() *rapid.Generator[q.MemberID] {
	return rapid.Map(rapid.Uint64Min(1), func(id uint64) q.MemberID { return q.MemberID(id) })
}

// TestEmpty: what is not known keeps nothing else from being written down.
func TestEmpty(t *testing.T) {
	t.Parallel()
	s := &q.Snapshot{Machines: []q.Machine{{Name: "m"}}, QuorumGuard: q.Guard{Managed: true, Pods: []q.GuardPod{{Name: "p"}}}}
	if _, err := json.Marshal(snapshotfile.Of(s, "n")); err != nil {
		t.Error(err)
	}
}
