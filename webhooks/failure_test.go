package webhooks_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"gomodules.xyz/jsonpatch/v2"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/registrations"
)

// stripPath serves somebody else's mutating webhook, which takes every hook off every Machine.
const stripPath = "/strip"

func strip(_ context.Context, req ctrladmission.Request) ctrladmission.Response {
	var m machinev1beta1.Machine
	if err := json.Unmarshal(req.Object.Raw, &m); err != nil {
		return ctrladmission.Errored(http.StatusBadRequest, err)
	}
	if m.Spec.LifecycleHooks.PreDrain == nil {
		return ctrladmission.Allowed("")
	}
	return ctrladmission.Patched("", jsonpatch.NewOperation("remove", "/spec/lifecycleHooks/preDrain", nil))
}

// stripper registers that webhook under a name, which says when it is called: webhooks are called in
// the order of their names. It is at work when stripper returns, and at rest after the test.
func (f *fixture) stripper(t *testing.T, name string, again admissionregistrationv1.ReinvocationPolicyType) {
	t.Helper()
	probe := f.machine(t, name, state{bare: true, naked: true})
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:         "strip.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new(f.server.URL + stripPath), CABundle: f.ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"machine.openshift.io"}, APIVersions: []string{"v1beta1"}, Resources: []string{"machines"}},
			}},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			ReinvocationPolicy:      &again,
		}},
	}
	called := func(ctx context.Context) (bool, error) {
		f.guard.set(ring())
		err := f.admin.Patch(ctx, probe.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(touch)))
		return f.guard.total() > 0, err
	}
	must(t, f.direct.Create(t.Context(), config))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := f.direct.Delete(ctx, config); err != nil {
			t.Error(err)
		}
		gomega.NewWithT(t).Eventually(called).WithArguments(ctx).WithTimeout(2 * time.Minute).WithPolling(20 * time.Millisecond).Should(gomega.BeFalse())
	})
	gomega.NewWithT(t).Eventually(called).WithArguments(t.Context()).WithTimeout(2 * time.Minute).WithPolling(20 * time.Millisecond).Should(gomega.BeTrue())
}

// touch is a change that is nobody's business.
const touch = `{"metadata":{"annotations":{"touched":"yes"}}}`

// testUndone has another webhook take the hook off. Where Holdfast looked at the request the API
// server has it look again, so the hook is put back; where it had no reason to look, the validating
// webhook refuses.
func (f *fixture) testUndone(t *testing.T) {
	for name, again := range map[string]admissionregistrationv1.ReinvocationPolicyType{
		"aa-stripper": admissionregistrationv1.IfNeededReinvocationPolicy,
		"zz-stripper": admissionregistrationv1.NeverReinvocationPolicy,
	} {
		t.Run(name+" and repaired", func(t *testing.T) {
			m := f.machine(t, "undone-"+name, state{})
			f.stripper(t, name, again)
			f.guard.set(ring())
			must(t, f.client(t, gitops, nil).Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`))))
			if got := describe(f.get(t, m.Name)); got != protected {
				t.Errorf("stored %q", got)
			}
		})
	}
	t.Run("and refused", func(t *testing.T) {
		m := f.machine(t, "undone", state{})
		f.stripper(t, "zz-stripper-2", admissionregistrationv1.IfNeededReinvocationPolicy)
		f.guard.set(ring())
		err := f.client(t, gitops, nil).Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(touch)))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "another mutating webhook") {
			t.Error(err)
		}
		f.answered(t, &verdictCase{recorded: []string{"keep-hook denied"}}, false, err, nil)
		if got := describe(f.get(t, m.Name)); got != protected {
			t.Errorf("stored %q", got)
		}
	})
}

// testNotAsked has another webhook take the hook off a deleting Machine, in a request by a person about something else. That is no
// escape hatch. A removal that the person asked for is one, whatever the webhook does, and in whatever form it is asked for.
func (f *fixture) testNotAsked(t *testing.T) {
	for name, again := range map[string]admissionregistrationv1.ReinvocationPolicyType{
		"aa-stripper-3": admissionregistrationv1.NeverReinvocationPolicy, // before Holdfast's
		"zz-stripper-3": admissionregistrationv1.IfNeededReinvocationPolicy,
	} {
		t.Run(name, func(t *testing.T) {
			m := f.machine(t, "not-asked-"+name, state{deleting: true})
			f.stripper(t, name, again)
			f.guard.set(ring())
			err := f.client(t, person, nil).Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(touch)))
			want := &verdictCase{recorded: []string{"automation-release repaired"}}
			if strings.HasPrefix(name, "zz") {
				want.recorded = []string{"automation-release denied"}
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubectl get mutatingwebhookconfigurations") {
					t.Error(err)
				}
			} else if err != nil {
				t.Error(err)
			}
			if got := f.guard.findings(); !slices.Equal(got, want.recorded) {
				t.Errorf("recorded %q, want %q", got, want.recorded)
			}
			if got := describe(f.get(t, m.Name)); got != protected+" deleting" {
				t.Errorf("stored %q", got)
			}

			m = f.get(t, m.Name)
			f.caughtUp(t, m) // else the patch may begin with what the API server has cached, and be asked about twice
			f.guard.set(ring())
			must(t, f.client(t, person, nil).Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`))))
			if got := f.guard.findings(); !slices.Equal(got, []string{"escape-hatch allowed"}) {
				t.Errorf("asked for, and recorded as %q", got)
			}
		})
	}
	for name, patch := range map[string]client.Patch{
		"all-hooks":  client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`)),
		"empty-list": client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":{"preDrain":[]}}}`)),
		"json-patch": client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/lifecycleHooks/preDrain/0"}]`)),
		"put":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			m := f.machine(t, "asked-"+name, state{deleting: true})
			m = f.get(t, m.Name)
			f.caughtUp(t, m)
			f.guard.set(ring())
			human := f.client(t, person, nil)
			if patch == nil {
				m.Spec.LifecycleHooks.PreDrain = nil
				must(t, human.Update(t.Context(), m))
			} else {
				must(t, human.Patch(t.Context(), m, patch))
			}
			if got := f.guard.findings(); !slices.Equal(got, []string{"escape-hatch allowed"}) {
				t.Errorf("recorded %q", got)
			}
		})
	}
}

// testDown stops the webhook server. Requests that the hook alone cannot protect against are refused; a person can act.
func (f *fixture) testDown(t *testing.T) {
	bare := f.machine(t, "down-bare", state{bare: true})
	going := f.machine(t, "down-going", state{deleting: true})
	escaping := f.machine(t, "down-escaping", state{deleting: true})
	held := f.machine(t, "down-held", state{})
	live := f.machine(t, "down-live", state{})
	worker := f.machine(t, "down-worker", state{worker: true})
	f.server.CloseClientConnections()
	f.server.Close()

	ctx := t.Context()
	automation, human, custodian := f.client(t, gitops, nil), f.client(t, person, nil), f.client(t, operator, nil)
	refused := func(what string, err error) {
		t.Helper()
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), registrations.ClosedWebhook) {
			t.Errorf("%s: %v", what, err)
		}
	}
	passed := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	release := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`))
	owner := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"mine"}]}}}`))

	refused("automation's release", automation.Patch(ctx, going.DeepCopy(), release))
	refused("automation's release by another owner", automation.Patch(ctx, going.DeepCopy(), owner))
	refused("a custodian's release", custodian.Patch(ctx, going.DeepCopy(), release))
	refused("automation's strip of a live Machine", automation.Patch(ctx, live.DeepCopy(), release))
	for _, user := range []string{robot, deployer, holdfast} {
		refused("release by "+user, f.client(t, user, nil).Patch(ctx, going.DeepCopy(), release))
	}
	refused("delete of an unhooked Machine", human.Delete(ctx, bare.DeepCopy()))
	refused("deletecollection", automation.DeleteAllOf(ctx, &machinev1beta1.Machine{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": bare.Name}))

	passed("delete of a protected Machine", automation.Delete(ctx, held.DeepCopy()))
	passed("a person's escape hatch", human.Patch(ctx, escaping.DeepCopy(), release))
	passed("a responder's escape hatch", f.client(t, emergency, nil).Patch(ctx, going.DeepCopy(), release))
	passed("a worker's delete", automation.Delete(ctx, worker.DeepCopy()))
	passed("a repeated delete", automation.Delete(ctx, going.DeepCopy()))
	passed("a MachineSet of control-plane Machines", automation.Create(ctx, machineSet("master")))
	passed("a MachineHealthCheck", automation.Create(ctx, healthCheck(nil, metav1.LabelSelector{})))
	for name, want := range map[string]string{
		bare.Name: "evidence", held.Name: protected + " deleting", escaping.Name: "evidence deleting", live.Name: protected,
	} {
		if got := describe(f.get(t, name)); got != want {
			t.Errorf("%s: stored %q, want %q", name, got, want)
		}
	}
}
