package waysin_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// hung pauses Holdfast's processes, both: each takes connections and never answers, so every request
// waits for the webhooks' timeout. Tools still cannot release or delete what nothing holds, people still can
// act, and once it runs again it repairs what is missing. Master-0 is being deleted, and held.
func (c *cluster) hung(t *testing.T) {
	ctx := t.Context()
	bare, done, err := c.stray(ctx, map[string]string{quorum.RoleLabel: "master"}, quorum.Finalizer)
	must(t, err)
	alice, _ := c.as(t, sandbox.Alice)
	gitops, heard := c.as(t, sandbox.GitOps)
	operator, _ := c.as(t, sandbox.EtcdOperator)
	release := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`))
	// timed says how a request ended, which is by the timeouts: 3 s for each webhook that has to be asked.
	timed := func(what string, webhooks int, send func(context.Context) error) error {
		t.Helper()
		began := time.Now()
		err := send(ctx)
		took := time.Since(began)
		t.Logf("%s: %.1f s: %v", what, took.Seconds(), err)
		// Twice: the API server begins a patch anew where the Machine API wrote the Machine meanwhile.
		if most := 2*time.Duration(webhooks)*3*time.Second + 3*time.Second; took > most {
			t.Errorf("%s took %v, more than %v", what, took, most)
		}
		return err
	}
	closed := func(what string, err error) {
		t.Helper()
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), registrations.ClosedWebhook) {
			t.Errorf("%s: %v", what, err)
		}
	}

	for _, replica := range c.Holdfasts() {
		must(t, replica.Pause())
		t.Cleanup(func() {
			if err := replica.Resume(); err != nil {
				t.Error(err)
			}
		})
	}
	err = timed("a tool's release", 2, func(ctx context.Context) error {
		return gitops.Patch(ctx, c.get(ctx, t, "master-0"), release)
	})
	if outcomeOf(err, heard.lines) != denied(quorum.RuleAutomationRelease) {
		t.Errorf("a tool's release: %v", err)
	}
	err = timed("a tool's override, signed by a person", 2, func(ctx context.Context) error {
		return gitops.Patch(ctx, c.get(ctx, t, "master-1"), client.RawPatch(types.MergePatchType, []byte(override)))
	})
	if outcomeOf(err, heard.lines) != denied(quorum.RuleOverride) {
		t.Errorf("a tool's override, signed by a person: %v", err)
	}
	closed("the operator's release", timed("the operator's release", 2, func(ctx context.Context) error {
		return operator.Patch(ctx, c.get(ctx, t, "master-0"), release)
	}))
	closed("a tool's DELETE of a Machine without hook", timed("a tool's DELETE of a Machine without hook", 1, func(ctx context.Context) error {
		return gitops.Delete(ctx, bare.DeepCopy())
	}))
	must(t, timed("a person's DELETE of a hooked Machine", 1, func(ctx context.Context) error {
		_, err := c.run(ctx, sandbox.Alice, nil, "delete", "machine", "master-1", "--wait=false")
		return err
	}))
	for _, name := range []string{"master-0", "master-1"} {
		if m := c.seen(ctx, t, name); !m.Protected() || !m.Deleting() {
			t.Errorf("Machine %s: protected %t, deleting %t", name, m.Protected(), m.Deleting())
		}
	}
	if m := c.get(ctx, t, bare.Name); m.UID == "" || m.DeletionTimestamp != nil {
		t.Errorf("the Machine without hook is being deleted: %v", m.DeletionTimestamp)
	}
	must(t, timed("a person's escape hatch", 2, func(ctx context.Context) error {
		return alice.Patch(ctx, c.get(ctx, t, "master-0"), release)
	}))
	if m := c.seen(ctx, t, "master-0"); m.Hook != quorum.EntryAbsent {
		t.Errorf("Machine master-0 has its hook: %v", m.Hook)
	}
	if err := c.whole(ctx); err != nil {
		t.Error(err)
	}

	for _, replica := range c.Holdfasts() {
		must(t, replica.Resume())
	}
	// The latch stayed, because nothing was there to take it off. Now it goes, and the Machine with it; the other one is held. In guard mode it goes once
	// alice says so: etcd may be about to lose the other's voter, too, by cluster-etcd-operator.
	if c.guard {
		eventually(t, func(ctx context.Context) error {
			var events corev1.EventList
			err := c.admin.List(ctx, &events, client.InNamespace(sandbox.MachineNamespace))
			for _, e := range events.Items {
				if e.InvolvedObject.Name == "master-0" && strings.Contains(e.Message, "cluster-etcd-operator may remove") {
					return nil
				}
			}
			return cmp.Or(err, errors.New("no Event says that Machine master-0 is held"))
		})
		must(t, alice.Patch(ctx, c.get(ctx, t, "master-0"), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"holdfast.dev/override":"escape-hatch: two of three is enough"}}}`))))
	}
	eventually(t, func(ctx context.Context) error {
		if m := c.get(ctx, t, "master-0"); m.UID != "" {
			return fmt.Errorf("Machine master-0 is there, with hooks %v", m.Spec.LifecycleHooks)
		}
		return nil
	})
	heard.lines = nil
	err = timed("a tool's release, again", 0, func(ctx context.Context) error { return gitops.Patch(ctx, c.get(ctx, t, "master-1"), release) })
	if outcomeOf(err, heard.lines) != warned(quorum.RuleAutomationRelease) {
		t.Errorf("a tool's release, again: %v, %q", err, heard.lines)
	}
	if m := c.seen(ctx, t, "master-1"); !m.Protected() {
		t.Error("Machine master-1 is not protected")
	}
	if h, ok := c.Host("master-1"); !ok || h.Etcd == nil {
		t.Error("instance master-1 does not run")
	}
	must(t, done())
}

// seen is the Machine as the guard sees it.
func (c *cluster) seen(ctx context.Context, t *testing.T, name string) quorum.Machine {
	t.Helper()
	return machineapi.Machine(c.get(ctx, t, name))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
