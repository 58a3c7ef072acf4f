package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// warned are the Warnings that a client was given.
type warned struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader makes it client-go's rest.WarningHandler.
func (w *warned) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warned) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	texts := strings.Join(w.texts, "\n")
	w.texts = nil
	return texts
}

// TestReportOnly: with --enforcement=warn and audit requests that rules deny or repair pass as they are, on record, and with warn the requester is
// told. Holdfast writes on no Machine.
func TestReportOnly(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	for _, e := range []string{"warn", "audit"} {
		t.Run(e, func(t *testing.T) {
			t.Parallel()
			c := start(t, sandbox.Options{Replicas: 3, Mode: "guard", KeepsRegistrations: e == "warn", HoldfastArgs: []string{"--enforcement=" + e}})
			heard := &warned{}
			config := c.Config(sandbox.GitOps)
			sandboxtest.Again(config)
			config.WarningHandler = heard
			gitops, err := client.New(config, client.Options{Scheme: c.as(sandbox.Admin).Scheme()})
			must(t, err)
			c.comesToSay(t, []string{"NOT in force: policies: Holdfast runs with --enforcement=" + e}, "status")

			const name, hook = "master-0", `{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`
			merge := func(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
			m, err := c.machine(t.Context(), name)
			must(t, err)
			must(t, c.as(sandbox.EtcdOperator).Patch(t.Context(), m, merge(hook)))
			if seen := machineapi.Machine(m); seen.Hook != quorum.EntryOurs || seen.Latch == quorum.EntryOurs {
				t.Fatalf("hooks %+v: a latch is a repair", m.Spec.LifecycleHooks)
			}
			kept, err := c.machine(t.Context(), "master-1")
			must(t, err)
			must(t, c.as(sandbox.EtcdOperator).Patch(t.Context(), kept, merge(hook)))
			heard.take()
			requests := map[string]func(context.Context) error{
				"keep-hook": func(ctx context.Context) error {
					return gitops.Patch(ctx, m, merge(`{"spec":{"lifecycleHooks":null}}`))
				},
				"keep-status": func(ctx context.Context) error {
					return gitops.Status().Patch(ctx, m, merge(`{"status":{"phase":"Failed"}}`), client.DryRunAll)
				},
				"held": func(ctx context.Context) error { return gitops.Delete(ctx, m, client.DryRunAll) },
			}
			for _, rule := range []string{"keep-hook", "held", "keep-status"} {
				must(t, requests[rule](t.Context()))
				if told := heard.take(); strings.Contains(told, "("+rule+")") != (e == "warn") {
					t.Errorf("%s: told %q", rule, told)
				}
			}
			if seen := machineapi.Machine(m); seen.Hook != quorum.EntryAbsent {
				t.Errorf("the hook was put back: %+v", m.Spec.LifecycleHooks)
			}
			own := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: machineapi.LedgerName}}
			must(t, gitops.Create(t.Context(), own, client.DryRunAll)) // own-records
			for _, record := range []string{machineapi.RecordsName, machineapi.LedgerName} {
				if err := c.as(sandbox.Admin).Get(t.Context(), client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: record}, own); !apierrors.IsNotFound(err) {
					t.Errorf("Holdfast wrote ConfigMap %s: %v", record, err)
				}
			}
			eventually(t, quickly, "the request is on record", func(context.Context) error {
				text, err := os.ReadFile(c.AuditLogs()[0])
				if err == nil && (!strings.Contains(string(text), `"holdfast.dev/enforcement":"`+e+`"`) || !strings.Contains(string(text), `"holdfast.dev/rule":"keep-hook"`)) {
					err = errors.New("it is not")
				}
				return err
			})
			eventually(t, quickly, "an Event says so", func(ctx context.Context) error {
				var all corev1.EventList
				err := c.as(sandbox.Admin).List(ctx, &all, client.InNamespace(sandbox.MachineNamespace))
				for i := range all.Items {
					if all.Items[i].Reason == "NotEnforced" {
						return err
					}
				}
				return errors.Join(err, fmt.Errorf("none of %d Events does", len(all.Items)))
			})
			if kept, err = c.machine(t.Context(), "master-1"); err != nil || machineapi.Machine(kept).Latch == quorum.EntryOurs || machineapi.Machine(kept).EvidenceRaw != "" {
				t.Errorf("the reconciler writes on Machines: %+v, %v, %v", kept.Spec.LifecycleHooks, kept.Annotations, err)
			}
			c.says(t, 1, []string{"--enforcement=" + e, "all fail open"}, "check")
		})
	}
}
