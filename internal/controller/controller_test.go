package controller

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestAge: how long a member has been as it is counts from when this process first saw it so.
func TestAge(t *testing.T) {
	g := &Gatherer{}
	at := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }
	look := func(now time.Time, members ...quorum.Member) []quorum.Member {
		s := &quorum.Snapshot{Now: now, Ring: quorum.Ring{Known: true, Members: members}}
		g.age(s)
		return s.Ring.Members
	}
	up := quorum.Member{ID: 1, Healthy: true, Applied: 10}
	down := quorum.Member{ID: 1}

	for i, step := range []struct {
		now             time.Time
		member          quorum.Member
		since, progress time.Time
	}{
		{at(0), up, at(0), at(0)},
		{at(5), up, at(0), at(0)},
		{at(6), quorum.Member{ID: 1, Healthy: true, Applied: 11}, at(0), at(6)},
		{at(7), down, at(7), at(6)},
		{at(9), down, at(7), at(6)},
		{at(10), up, at(10), at(6)}, // applied fell and came back: no progress
	} {
		got := look(step.now, step.member)[0]
		if got.Since != step.since || got.ProgressAt != step.progress {
			t.Errorf("step %d: since %v, progress %v; want %v, %v", i, got.Since, got.ProgressAt, step.since, step.progress)
		}
	}

	unknown := &quorum.Snapshot{Now: at(11), Ring: quorum.Ring{Members: []quorum.Member{down}}}
	g.age(unknown)
	if !unknown.Ring.Members[0].Since.IsZero() {
		t.Error("a read that is not known aged a member")
	}
	if got := look(at(12), up)[0]; got.Since != at(10) {
		t.Errorf("a read that was not known made the process forget: since %v", got.Since)
	}
	look(at(13))
	if got := look(at(14), up)[0]; got.Since != at(14) {
		t.Errorf("a member that was removed and listed again counts from %v", got.Since)
	}
}

// TestPassing: what etcd refuses for now and what it may have done is no failure; anything else is.
func TestPassing(t *testing.T) {
	for _, err := range []error{
		rpctypes.ErrMemberLearnerNotReady, rpctypes.ErrTooManyLearners, rpctypes.ErrUnhealthy,
		rpctypes.ErrMemberNotFound, etcd.ErrAmbiguous, etcd.ErrLockLost,
	} {
		if !errors.As(passing(fmt.Errorf("promote: %w", err)), new(notYet)) {
			t.Errorf("%v counts as a failure", err)
		}
	}
	if err := passing(rpctypes.ErrPermissionDenied); errors.As(err, new(notYet)) {
		t.Errorf("%v counts as passing", err)
	}
	if err := passing(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

// TestEventReasons: every rule has a reason, or has none on purpose.
func TestEventReasons(t *testing.T) {
	got := map[string]string{}
	for _, rule := range quorum.Rules {
		for _, verdict := range []quorum.Verdict{quorum.Allowed, quorum.Denied} {
			got[string(rule)+" "+verdict.String()] = eventReason(quorum.Finding{Rule: rule, Verdict: verdict})
		}
	}
	want := map[string]string{
		"claim allowed": "ChangeBlocked", "claim denied": "ChangeBlocked",
		"keep-hook allowed": "HookRestored", "keep-hook denied": "HookRestored",
		"no-regain allowed": "HookRegainPrevented", "no-regain denied": "HookRegainPrevented",
		"early-release allowed": "HookRestored", "early-release denied": "HookRestored",
		"automation-release allowed": "HookRestored", "automation-release denied": "HookRestored",
		"escape-hatch allowed": "EscapeHatchUsed", "escape-hatch denied": "ReleaseBlocked",
		"keep-finalizer allowed": "ChangeBlocked", "keep-finalizer denied": "ChangeBlocked",
		"keep-role allowed": "ChangeBlocked", "keep-role denied": "ChangeBlocked",
		"unprotected-delete allowed": "OverrideUsed", "unprotected-delete denied": "DeletionBlocked",
		"one-too-many allowed": "OverrideUsed", "one-too-many denied": "DeletionBlocked",
		"degraded-delete allowed": "OverrideUsed", "degraded-delete denied": "DeletionBlocked",
		"held allowed": "DeletionHeld", "held denied": "DeletionHeld",
		"home allowed": "", "home denied": "",
		"override allowed": "", "override denied": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
