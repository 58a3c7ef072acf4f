package snapshotfile_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

// TestRingRoundTrip: what Holdfast tells of the ring is read again as it was, and nothing of Machines with it.
func TestRingRoundTrip(t *testing.T) {
	all := generator()
	rapid.Check(t, func(t *rapid.T) {
		s := all.Draw(t, "snapshot")
		data, err := snapshotfile.RingData(&s, "holdfast-0/1", nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := snapshotfile.ParseRing(data)
		if voters, _ := s.Ring.Voters(); s.Ring.Known && (voters == 0 || s.Ring.ReadAt.IsZero()) {
			if err == nil {
				t.Fatal("a known ring without voters or time is read")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		want := &snapshotfile.Ring{By: "holdfast-0/1", Snapshot: &q.Snapshot{
			Mode: s.Mode, Now: s.Now, Desired: s.Desired, DesiredWhy: s.DesiredWhy, Replicas: s.Replicas, Surge: s.Surge, OtherDriver: s.OtherDriver,
			BootstrapWaits: s.BootstrapWaits, APIServersWait: s.APIServersWait, Lock: s.Lock, Failures: s.Failures, Ring: s.Ring, Limits: s.Limits,
		}}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("(-written +read):\n%s", diff)
		}
	})
}

// good is a ring as it stands in the ConfigMap, of one voter.
const good = `apiVersion: holdfast.dev/v1alpha1
kind: Snapshot
mode: full
now: "2026-03-01T12:00:00Z"
etcd: {known: true, readAt: "2026-03-01T12:00:00Z", members: [{id: a0, healthy: true}]}
`

// TestBadRing: a ConfigMap that somebody broke is an error of one line that says where.
func TestBadRing(t *testing.T) {
	if _, err := snapshotfile.ParseRing(map[string]string{"snapshot.yaml": good}); err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{
		"no key snapshot.yaml": "",
		"not a snapshot file":  "}{",
		"apiVersion":           "kind: Pod",
		"etcd.members:":        strings.Replace(good, "id: a0,", "id: a0, learner: true,", 1),
		"etcd.members[0].id":   strings.Replace(good, "id: a0", "id: zz", 1),
		"etcd.readAt":          strings.Replace(good, "readAt: \"2026-03-01T12:00:00Z\", ", "", 1),
		"now:":                 strings.Replace(good, "now: \"2026-03-01T12:00:00Z\"", "now: noon", 1),
	} {
		if _, err := snapshotfile.ParseRing(map[string]string{"snapshot.yaml": text}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v does not say %q in one line", text, err, want)
		}
	}
	if _, err := snapshotfile.ParseRing(map[string]string{"snapshot.yaml": good, "by": strings.Repeat("x", 1000)}); err == nil {
		t.Error("a name without an end is read")
	}
}

// FuzzRing: whatever stands there, it is an error of one line, or a ring that can be decided on.
func FuzzRing(f *testing.F) {
	f.Add(good, "holdfast-0/1")
	f.Add("", "")
	f.Add(strings.Replace(good, "known: true", "known: false, why: x", 1), "\xff")
	f.Fuzz(func(t *testing.T, text, by string) {
		ring, err := snapshotfile.ParseRing(map[string]string{"snapshot.yaml": text, "by": by})
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is no sentence", err)
			}
			return
		}
		s := ring.Snapshot
		if voters, _ := s.Ring.Voters(); s.Ring.Known && voters == 0 || len(s.Machines)+len(s.Nodes) > 0 {
			t.Errorf("it reads %+v", s)
		}
		plan := membership.Decide(s)
		for _, a := range plan.Actions {
			if a.Kind() == membership.KindReleaseHook {
				t.Errorf("it releases %s", a.Machine)
			}
		}
	})
}
