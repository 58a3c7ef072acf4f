package recorder

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestEventReasons: every rule has a reason, or has none on purpose.
func TestEventReasons(t *testing.T) {
	got := map[string]string{}
	for _, rule := range quorum.Rules {
		for _, verdict := range []admission.Verdict{admission.VerdictAllowed, admission.VerdictDenied} {
			got[string(rule)+" "+verdict.String()] = eventReason(admission.Finding{Rule: rule, Verdict: verdict})
		}
	}
	want := map[string]string{
		"claim allowed": "InstanceClaimedTwice", "claim denied": "ChangeBlocked",
		"adopt allowed": "OwnerAdded", "adopt denied": "ChangeBlocked",
		"keep-hook allowed": "HookRestored", "keep-hook denied": "HookRestored",
		"no-regain allowed": "HookRegainPrevented", "no-regain denied": "HookRegainPrevented",
		"early-release allowed": "HookRestored", "early-release denied": "HookRestored",
		"automation-release allowed": "HookRestored", "automation-release denied": "HookRestored",
		"escape-hatch allowed": "EscapeHatchUsed", "escape-hatch denied": "EscapeHatchUsed",
		"keep-finalizer allowed": "ChangeBlocked", "keep-finalizer denied": "ChangeBlocked",
		"keep-role allowed": "ChangeBlocked", "keep-role denied": "ChangeBlocked",
		"keep-host allowed": "HostRestarts", "keep-host denied": "ChangeBlocked",
		"unprotected-delete allowed": "OverrideUsed", "unprotected-delete denied": "DeletionBlocked",
		"one-too-many allowed": "OverrideUsed", "one-too-many denied": "DeletionBlocked",
		"degraded-delete allowed": "OverrideUsed", "degraded-delete denied": "DeletionBlocked",
		"held allowed": "DeletionHeld", "held denied": "DeletionHeld",
		"home allowed": "", "home denied": "",
		"health-check allowed": "", "health-check denied": "",
		"control-plane-set allowed": "", "control-plane-set denied": "",
		"scale-in allowed": "", "scale-in denied": "",
		"override allowed": "", "override denied": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
