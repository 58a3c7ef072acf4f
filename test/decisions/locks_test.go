package decisions_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestLocks: what is made under the membership lock is what changes etcd, a final release in full mode, and what lowers the quorum guard's
// budget, by which another replica may be about to promote a member.
func TestLocks(t *testing.T) {
	known := q.Snapshot{Mode: q.ModeFull, Ring: q.Ring{Known: true}, QuorumGuard: q.Guard{MinAvailable: new(3)}}
	guard, unknown, none := known, known, known
	guard.Mode, unknown.Ring.Known, none.QuorumGuard.MinAvailable = q.ModeGuard, false, nil
	for _, c := range []struct {
		change membership.Change
		s      *q.Snapshot
		want   bool
	}{
		{membership.Promote{}, &known, true},
		{membership.AddLearner{}, &known, true},
		{membership.RemoveVoter{}, &known, true},
		{membership.AddHook{}, &known, false},
		{membership.RecordRelease{}, &known, false}, // by the ledger's version
		{membership.ReleaseHook{Hook: true}, &known, false},
		{membership.ReleaseHook{Final: true}, &known, true},
		{membership.ReleaseHook{Final: true}, &guard, false},   // guard mode writes nothing to etcd
		{membership.ReleaseHook{Final: true}, &unknown, false}, // etcd is not known, so nobody can lock it
		{membership.SizeGuard{MinAvailable: 2}, &known, true},
		{membership.SizeGuard{MinAvailable: 4}, &known, false},
		{membership.SizeGuard{MinAvailable: 2}, &none, false},
	} {
		a := membership.Action{Change: c.change, Machine: "master-0"}
		if got := a.Locks(c.s); got != c.want {
			t.Errorf("%s, mode %d: %t", a.Describe(), c.s.Mode, got)
		}
	}
}
