package webhooks_test

import (
	"fmt"
	"slices"
	"testing"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// testStale: mutating webhooks are called before the API server compares resourceVersions, so a writer with
// an old object seems to strip a hook, or to put one back. The request ends in a conflict, and leaves no
// trace: neither record nor Warning.
func (f *fixture) testStale(t *testing.T) {
	for i, c := range []struct {
		name  string
		state state
		user  string
		seen  func(*machinev1beta1.Machine) // what the writer's old object has
	}{
		{name: "a finalizer is added from before the hook", user: "system:serviceaccount:openshift-machine-api:machine-api-controllers",
			seen: func(m *machinev1beta1.Machine) {
				m.Spec.LifecycleHooks, m.Annotations = machinev1beta1.LifecycleHooks{}, nil
			}},
		{name: "the operator writes from before the escape", state: state{escaped: true}, user: operator,
			seen: func(m *machinev1beta1.Machine) {
				m.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{hookEntry()}
			}},
		{name: "a tool drops the finalizer", user: gitops,
			seen: func(m *machinev1beta1.Machine) { m.Finalizers = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := fmt.Sprintf("stale-%d", i)
			old := f.machine(t, name, c.state)
			now := old.DeepCopy()
			now.Labels["example.com/touched"] = "since"
			must(t, f.admin.Patch(t.Context(), now, client.MergeFrom(old)))
			f.caughtUp(t, now)
			f.guard.set(ring())
			c.seen(old)
			var said warnings
			err := f.client(t, c.user, &said).Update(t.Context(), old)
			denied := old.Finalizers == nil // a denial comes before the comparison
			if denied != apierrors.IsForbidden(err) || !denied && !apierrors.IsConflict(err) {
				t.Errorf("the update: %v", err)
			}
			if records := f.guard.records(); len(records) > 0 || len(said.lines) > 0 {
				t.Errorf("recorded %v, warned %q", records, said.lines)
			}
			if calls := f.guard.total(); calls == 0 {
				t.Error("no webhook was called")
			}
			if got := f.get(t, name); got.ResourceVersion != now.ResourceVersion {
				t.Errorf("the Machine changed: %s", describe(got))
			}
		})
	}
}

// testPaddedVersion: the API server compares resourceVersions as numbers, so "007" is as good as "7". A writer who pads the number leaves
// the same trace as any other.
func (f *fixture) testPaddedVersion(t *testing.T) {
	for i, c := range []struct {
		name     string
		state    state
		user     string
		change   func(*machinev1beta1.Machine)
		recorded []string
	}{
		{name: "a tool strips the hook", user: gitops, change: unhook, recorded: []string{"keep-hook repaired"}},
		{name: "a person's escape", state: state{deleting: true}, user: person, change: unhook, recorded: []string{"escape-hatch allowed"}},
		{name: "a tool's override", user: gitops, recorded: []string{"override repaired"}, change: func(m *machinev1beta1.Machine) {
			m.Annotations[quorum.OverrideAnnotation] = "one-too-many: planned"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := f.machine(t, fmt.Sprintf("padded-%d", i), c.state)
			f.caughtUp(t, m)
			f.guard.set(ring())
			c.change(m)
			m.ResourceVersion = "00" + m.ResourceVersion
			var said warnings
			must(t, f.client(t, c.user, &said).Update(t.Context(), m))
			if got := f.guard.findings(); !slices.Equal(got, c.recorded) || len(said.lines) == 0 {
				t.Errorf("recorded %v, warned %q", got, said.lines)
			}
		})
	}
}
