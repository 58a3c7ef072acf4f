package webhooks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	machinev1 "github.com/openshift/api/machine/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// awsSet is a set of three in two failure domains.
const awsSet = `
spec:
  state: Active
  replicas: 3
  selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: {machine.openshift.io/cluster-api-cluster: demo, machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
      failureDomains: {platform: AWS, aws: [{placement: {availabilityZone: a}}, {placement: {availabilityZone: b}}]}
      spec: {providerSpec: {value: {kind: AWSMachineProviderConfig, apiVersion: machine.openshift.io/v1beta1, instanceType: m5.large, placement: {region: r}}}}
`

// testControlPlaneSet writes ControlPlaneMachineSets. A policy refuses Machines of one instance type, as a platform's own checks do.
func (f *fixture) testControlPlaneSet(t *testing.T) {
	f.refuseType(t, "impossible")
	edit := func(t *testing.T, replace ...string) *machinev1.ControlPlaneMachineSet {
		t.Helper()
		set := &machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cluster"}}
		must(t, yaml.UnmarshalStrict([]byte(strings.NewReplacer(replace...).Replace(awsSet)), set))
		return set
	}
	create := func(t *testing.T, replace ...string) error {
		t.Helper()
		f.guard.set(ring())
		return f.client(t, person, nil).Create(t.Context(), edit(t, replace...), client.DryRunAll)
	}
	t.Run("a second set", func(t *testing.T) {
		second := edit(t)
		second.Name = "second"
		f.guard.set(ring())
		err := f.client(t, person, nil).Create(t.Context(), second, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), `only "cluster" is reconciled`) {
			t.Errorf("refused with %v", err)
		}
	})
	for _, c := range []struct {
		name    string
		replace []string
		want    string // what the refusal says, "" if the set passes
	}{
		{"as it is", nil, ""},
		{"one replica", []string{"replicas: 3", "replicas: 1"}, ""},
		{"no failure domains", []string{"failureDomains: {platform: AWS, aws: [{placement: {availabilityZone: a}}, {placement: {availabilityZone: b}}]}", ""}, ""},
		{"four replicas", []string{"replicas: 3", "replicas: 4"}, "must be odd (1, 3, 5 or 7)"},
		{"no replicas", []string{"replicas: 3", "replicas: 0"}, "spec.replicas"},
		{"nine replicas", []string{"replicas: 3", "replicas: 9"}, "spec.replicas"},
		{"a selector of all Machines of the cluster", []string{"selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}", "selector: {matchLabels: {machine.openshift.io/cluster-api-cluster: demo}}"}, "selects other Machines than the control plane's"},
		{"a selector that does not select what the template creates", []string{"selector: {matchLabels: {", "selector: {matchLabels: {a: b, "}, "does not select what the template creates"},
		{"failure domains of another platform", []string{"{platform: AWS, aws: [{placement: {availabilityZone: a}}, {placement: {availabilityZone: b}}]}", "{platform: GCP, gcp: [{zone: a}]}"}, "the failure domains are those of GCP"},
		{"a failure domain twice", []string{"availabilityZone: b", "availabilityZone: a"}, "is listed twice"},
		{"no provider spec", []string{"spec: {providerSpec: {value: {kind: AWSMachineProviderConfig, apiVersion: machine.openshift.io/v1beta1, instanceType: m5.large, placement: {region: r}}}}", "spec: {}"}, "providerSpec"},
		{"names of 64 characters", []string{"replicas: 3", "replicas: 3\n  machineNamePrefix: " + strings.Repeat("a", 55)}, "at most 54 characters"},
		{"names of 63 characters", []string{"replicas: 3", "replicas: 3\n  machineNamePrefix: " + strings.Repeat("a", 54)}, ""},
		{"an instance type that the platform refuses", []string{"m5.large", "impossible"}, "refused in a trial: machines.machine.openshift.io"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := create(t, c.replace...)
			if c.want == "" {
				must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("refused with %v, want %q", err, c.want)
			}
			for _, r := range f.guard.records() {
				if !r.dryRun || r.Rule != quorum.RuleControlPlaneSet && r.Rule != quorum.RuleScaleIn {
					t.Errorf("recorded: %v, dry run %t", r, r.dryRun)
				}
			}
		})
	}

	ctx, alice := t.Context(), f.client(t, person, nil)
	patch := func(o client.Object, body string) error {
		f.guard.set(ring())
		return alice.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(body)))
	}
	set := edit(t)
	must(t, alice.Create(ctx, set))
	release := func(t *testing.T) {
		t.Helper()
		must(t, f.client(t, holdfast, nil).Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	}
	t.Run("what is no part of the spec is not looked at", func(t *testing.T) {
		must(t, patch(set, `{"metadata":{"finalizers":["example.com/f"]}}`))
		must(t, alice.Status().Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"status":{"replicas":3}}`))))
		must(t, patch(set, `{"metadata":{"finalizers":null}}`))
		if n := f.guard.calls[webhooks.ControlPlaneSetPath]; n != 0 {
			t.Errorf("the webhook was called %d times", n)
		}
	})
	t.Run("a refusal is recorded", func(t *testing.T) {
		f.caughtUp(t, set)
		err := patch(set, `{"spec":{"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":"impossible"}}}}}}}`)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Refused (control-plane-set): Holdfast could not act by ControlPlaneMachineSet cluster") {
			t.Fatal(err)
		}
		records := f.guard.records()
		if len(records) != 1 || records[0].Rule != quorum.RuleControlPlaneSet {
			t.Errorf("recorded: %v", records)
		}
	})
	t.Run("it is scaled", func(t *testing.T) {
		scale := func(replicas string) error {
			return alice.SubResource("scale").Patch(ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":`+replicas+`}}`)))
		}
		must(t, scale("5"))
		if err := scale("4"); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must be odd") {
			t.Errorf("scaled to 4: %v", err)
		}
	})
	t.Run("automation takes no Machines away", func(t *testing.T) {
		const replicas = `{"spec":{"replicas":%d}}`
		must(t, f.direct.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+cpms.Finalizer+`"]}}`))))
		f.caughtUp(t, set)
		for _, user := range []string{gitops, deployer, holdfast, person} {
			var said warnings
			c := f.client(t, user, &said)
			write := func(body string, subresource bool, old *machinev1.ControlPlaneMachineSet) error {
				f.guard.set(ring())
				patch := client.RawPatch(types.MergePatchType, []byte(body))
				if subresource {
					return c.SubResource("scale").Patch(ctx, old.DeepCopy(), patch, client.DryRunAll)
				}
				return c.Patch(ctx, old.DeepCopy(), patch, client.DryRunAll)
			}
			for name, err := range map[string]error{
				"scale":             write(fmt.Sprintf(replicas, 3), true, set),
				"update":            write(fmt.Sprintf(replicas, 3), false, set),
				"without a number":  write(`{"spec":{"replicas":null}}`, false, set), // 3 by default
				"beside other work": write(`{"spec":{"replicas":1,"strategy":{"type":"OnDelete"}}}`, false, set),
			} {
				if user == person {
					must(t, err)
				} else if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Refused (scale-in): only a person may scale ControlPlaneMachineSet cluster from 5 Machines to ") {
					t.Errorf("%s by %s: %v", name, user, err)
				}
			}
			if user == person && (len(said.lines) != 4 || !strings.Contains(strings.Join(said.lines, ""), "tolerates the loss of 1 (now 2)")) {
				t.Errorf("a person is warned: %q", said.lines)
			}
			for _, subresource := range []bool{true, false} {
				must(t, write(fmt.Sprintf(replicas, 7), subresource, set))
			}
		}
		tool := f.client(t, gitops, nil)
		if err := tool.Delete(ctx, set, client.DryRunAll); !refusedBy(err, registrations.ScaleWebhook, "Refused (scale-in): only a person may delete ControlPlaneMachineSet cluster") {
			t.Errorf("deleted by a tool: %v", err)
		}
		must(t, alice.Delete(ctx, set, client.DryRunAll))
		f.guard.set(ring()) // two other live Machines
		release(t)
		f.caughtUp(t, set)
		for n, want := range map[int]bool{1: false, 3: true} { // it begins with these
			err := tool.Patch(ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, replicas, n)), client.DryRunAll)
			if (err == nil) != want {
				t.Errorf("%d replicas of a set that Holdfast does not reconcile yet: %v", n, err)
			}
		}
		must(t, alice.Delete(ctx, set))
		for n, want := range map[string]bool{"1": false, "3": true} {
			if err := tool.Create(ctx, edit(t, "replicas: 3", "replicas: "+n), client.DryRunAll); (err == nil) != want {
				t.Errorf("a new set of %s: %v", n, err)
			}
		}
		must(t, tool.Create(ctx, edit(t, "replicas: 3", "replicas: 1", "state: Active", "state: Inactive")))
		set = edit(t)
		must(t, f.direct.Get(ctx, client.ObjectKeyFromObject(set), set))
		if err := tool.Patch(ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"state":"Active"}}`))); !apierrors.IsForbidden(err) {
			t.Errorf("a set of one is activated: %v", err)
		}
		must(t, alice.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"state":"Active","replicas":3}}`))))
	})
	t.Run("Holdfast alone takes its finalizer off", func(t *testing.T) {
		must(t, f.direct.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+cpms.Finalizer+`"]}}`))))
		f.caughtUp(t, set)
		for _, strip := range []string{`{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":null},"spec":{"strategy":{"type":"OnDelete"}}}`} {
			for _, user := range []string{gitops, person, holdfast} {
				err := f.client(t, user, nil).Patch(ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(strip)), client.DryRunAll)
				if user == holdfast {
					must(t, err)
				} else if !refusedBy(err, registrations.ScaleWebhook, "Refused (control-plane-set): Holdfast's finalizer stays") {
					t.Errorf("taken off by %s: %v", user, err)
				}
			}
		}
		release(t)
	})
	t.Run("the garbage collector does not delete its Machines", func(t *testing.T) {
		foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
		must(t, alice.Delete(ctx, set, foreground, client.DryRunAll)) // Holdfast does not reconcile it: nobody owns Machines by it
		must(t, f.direct.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+cpms.Finalizer+`"]}}`))))
		refused := func(err error) {
			t.Helper()
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "--cascade=background") {
				t.Errorf("deleted with foreground propagation: %v", err)
			}
		}
		f.caughtUp(t, set)
		refused(alice.Delete(ctx, set, foreground))
		must(t, alice.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationOrphan), client.DryRunAll))
		must(t, alice.Delete(ctx, set, client.DryRunAll))
		must(t, f.direct.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["`+cpms.Finalizer+`","`+metav1.FinalizerDeleteDependents+`"]}}`))))
		f.caughtUp(t, set)
		refused(alice.Delete(ctx, set))
		must(t, alice.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationBackground), client.DryRunAll))
		release(t)
	})
	must(t, alice.Delete(ctx, set))
}

// refusedBy reports whether a webhook, which is to be the one that fails closed, has refused a request with these words.
func refusedBy(err error, webhook, words string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `"`+webhook+`"`) && strings.Contains(err.Error(), words)
}

// refuseType has the API server refuse Machines of an instance type, also in a dry run.
func (f *fixture) refuseType(t *testing.T, name string) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "platform"}}
	policy.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"machine.openshift.io"}, APIVersions: []string{"v1beta1"}, Resources: []string{"machines"}},
		},
	}}}
	policy.Spec.Validations = []admissionregistrationv1.Validation{{
		Expression: `object.spec.?providerSpec.?value.?instanceType.orValue("") != "` + name + `"`, Message: "no such instance type",
	}}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "platform"}}
	binding.Spec.PolicyName, binding.Spec.ValidationActions = "platform", []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	must(t, f.direct.Create(t.Context(), policy))
	must(t, f.direct.Create(t.Context(), binding))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		must(t, f.direct.Delete(ctx, policy))
		must(t, f.direct.Delete(ctx, binding))
	})
	gomega.NewWithT(t).Eventually(func() error {
		trial := manifest("of-type")
		trial.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{"instanceType":"` + name + `"}`)}
		return f.direct.Create(t.Context(), trial, client.DryRunAll)
	}).WithTimeout(2 * time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.MatchError(gomega.ContainSubstring("no such instance type")))
}
