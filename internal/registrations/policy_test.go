package registrations_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiadmission "k8s.io/apiserver/pkg/admission"
	celplugin "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"pgregory.net/rapid"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

var rewrite = flag.Bool("update", false, "write deploy/base/policy.yaml anew")

// validator is a policy as the API server runs it.
type validator struct{ validating.Validator }

// newValidator compiles a policy as the API server's own plugin does, whose function for that is its own.
func newValidator(t testing.TB, p *admissionregistrationv1.ValidatingAdmissionPolicy) validator {
	t.Helper()
	compiler, err := celplugin.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	options := celplugin.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, v := range p.Spec.Variables {
		if compiled := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, options, environment.StoredExpressions); compiled.Error != nil {
			t.Fatal(compiled.Error)
		}
	}
	var matches, validations, messages []celplugin.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		matches = append(matches, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
	}
	matcher := matchconditions.NewMatcher(compiler.CompileCondition(matches, options, environment.StoredExpressions), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	return validator{validating.NewValidator(
		compiler.CompileCondition(validations, options, environment.StoredExpressions), matcher,
		compiler.CompileCondition(nil, options, environment.StoredExpressions),
		compiler.CompileCondition(messages, celplugin.OptionalVariableDeclarations{}, environment.StoredExpressions),
		p.Spec.FailurePolicy, nil,
	)}
}

// denials are the rules by which a policy denies an update, and whether its conditions let it look at
// the update at all. What the policy cannot evaluate, and words that it cannot make, are a failure.
func (v validator) denials(t fataler, old, next *machinev1beta1.Machine, who admission.User) (denied map[quorum.Rule]bool, looked bool) {
	resource := machinev1beta1.GroupVersion.WithResource("machines")
	result := v.Validate(context.Background(), resource, attributes(t, apiadmission.Update, old, next, who), nil, nil, celconfig.RuntimeCELCostBudget, nil)
	denied = map[quorum.Rule]bool{}
	for _, d := range result.Decisions {
		switch {
		case d.Evaluation == validating.EvalError:
			t.Fatalf("cannot be evaluated: %s", d.Message)
		case d.Action == validating.ActionDeny:
			rule, text, ok := strings.Cut(strings.TrimPrefix(d.Message, "Refused ("), "): ")
			if !ok || !strings.Contains(text, "Machine "+old.Name) || d.Reason != metav1.StatusReasonForbidden {
				t.Fatalf("denied with reason %s and the words %q", d.Reason, d.Message)
			}
			denied[quorum.Rule(rule)] = true
		}
	}
	return denied, len(result.Decisions) > 0
}

func policies(t testing.TB, o registrations.Options) (machines, status validator) {
	t.Helper()
	objects := registrations.Policies(o)
	return newValidator(t, objects[0].(*admissionregistrationv1.ValidatingAdmissionPolicy)), newValidator(t, objects[2].(*admissionregistrationv1.ValidatingAdmissionPolicy))
}

// TestMachinePolicy holds the policy against quorum, rule by rule, for any update of a Machine by any
// user: it denies by a rule if and only if Admit has a denial or repair by that rule to give, whatever
// a look at etcd would show. So the two differ by design in this alone:
//
//   - A custodian's drop of a live Machine's hook passes the policy. Admit repairs it by keep-hook
//     unless the Machine hosts nothing, which only etcd knows. ClosedWebhook fails for it.
//   - So does a custodian's release of a deleting Machine, and a person's removal of its hook: early-release is not the policy's,
//     and of escape-hatch it has that a person does not take the latch off.
//   - A latch that Admit puts or drops to go with the hook is no finding, and no denial.
//   - keep-finalizer puts the name of an instance back, too: the API server refuses that by claim (TestInstancePolicy).
//   - Warnings of owners are not the policy's. Of overrides it lets pass what nobody stamped: that lifts nothing.
func TestMachinePolicy(t *testing.T) {
	often(t)
	ids := identities()
	policy, _ := policies(t, registrations.Options{MachineNamespace: "openshift-machine-api", Identities: ids})
	unknown, nothing := (*quorum.Snapshot)(nil), &quorum.Snapshot{Ring: quorum.Ring{Known: true}}
	seen := map[quorum.Rule]int{}
	rapid.Check(t, func(t *rapid.T) {
		who := users().Draw(t, "user")
		old, next := update(t)
		req := admission.Request{
			Operation: admission.OperationUpdate, User: who, Namespace: "openshift-machine-api",
			Old: new(machineapi.Machine(old)), New: new(machineapi.Machine(next)), At: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC),
		}
		want := map[quorum.Rule]bool{}
		whenUnknown, whenNothing := findings(&ids, &req, unknown), findings(&ids, &req, nothing)
		for _, rule := range []quorum.Rule{quorum.RuleKeepHook, quorum.RuleNoRegain, quorum.RuleAutomationRelease, quorum.RuleKeepFinalizer, quorum.RuleKeepRole, quorum.RuleAdopt} {
			if rule == quorum.RuleKeepFinalizer && (!req.Old.Finalizer || req.New.Finalizer) {
				continue
			}
			if whenUnknown[rule] && whenNothing[rule] {
				want[rule] = true
				seen[rule]++
			}
		}
		fix := ids.Admit(&req, nothing).Repairs
		if _, escapes := whenNothing[quorum.RuleEscapeHatch]; escapes && fix.Latch == admission.FixAsOld && req.Old.Latch == quorum.EntryOurs {
			want[quorum.RuleEscapeHatch] = true
			seen[quorum.RuleEscapeHatch]++
		}
		user, at := quorum.ParseStamp(req.New.OverrideBy)
		own := user == who.Name && req.New.OverrideBy == quorum.Stamp(user, at)
		if fix.Override == admission.FixAsOld || fix.OverrideBy == admission.FixAsOld || fix.OverrideBy == admission.FixPut && req.New.OverrideBy != "" && !own {
			want[quorum.RuleOverride] = true
			seen[quorum.RuleOverride]++
		}
		brings := fix.Evidence == admission.FixDrop && req.New.EvidenceRaw != req.Old.EvidenceRaw && !slices.Contains(ids.Custodians, who.Name)
		if fix.Evidence == admission.FixAsOld || brings {
			want[quorum.RuleKeepHook] = true
		}
		denied, looked := policy.denials(t, old, next, who)
		if looked && quiet(&req) {
			t.Error("the policy is evaluated for nothing")
		}
		if diff := cmp.Diff(want, denied); diff != "" {
			d := ids.Admit(&req, nil)
			t.Errorf("denied by (-want +got):\n%s\nquorum decides:\n%s", diff, d.Describe())
		}
	})
	if len(seen) < 8 {
		t.Errorf("not every rule came up: %v", seen)
	}
}

// TestInstancePolicy holds the policy for instances against Admit, for any update of a Machine by any user and for any new Machine: it denies if and
// only if Admit denies or puts back which instance the Machine has, or takes the override out of a new one. Of an override that lifts the rule it asks neither the age nor
// the reason, nor whether another Machine has that instance or a member is on record here.
func TestInstancePolicy(t *testing.T) {
	often(t)
	ids := identities()
	policy := newValidator(t, registrations.Policies(registrations.Options{MachineNamespace: "openshift-machine-api", Identities: ids})[4].(*admissionregistrationv1.ValidatingAdmissionPolicy))
	seen := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		who := users().Draw(t, "user")
		req := admission.Request{User: who, Namespace: "openshift-machine-api", At: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)}
		var old, next *machinev1beta1.Machine
		operation := rapid.SampledFrom([]apiadmission.Operation{apiadmission.Create, apiadmission.Update, apiadmission.Update}).Draw(t, "operation")
		var want bool
		if operation == apiadmission.Create {
			next = machines().Draw(t, "new")
			req.Operation, req.New = admission.OperationCreate, new(machineapi.Machine(next))
			d := ids.Admit(&req, &quorum.Snapshot{})
			want = deniesInstance(&d) || d.Repairs.Override == admission.FixDrop || d.Repairs.OverrideBy == admission.FixDrop
		} else {
			old, next = update(t)
			req.Operation, req.Old, req.New = admission.OperationUpdate, new(machineapi.Machine(old)), new(machineapi.Machine(next))
			twin := *req.Old
			twin.Name, twin.Role = "twin", "master"
			if names, _, ok := strings.Cut(req.Old.Override, ":"); ok && req.Old.OverrideBy != "" && slices.Contains(strings.Split(names, ", "), string(quorum.RuleClaim)) {
				req.Old.Override, req.Old.OverrideBy, req.Old.Evidence = "claim: a reason", quorum.Stamp("alice", req.At), quorum.Evidence{}
			}
			d := ids.Admit(&req, &quorum.Snapshot{Machines: []quorum.Machine{twin}})
			want = deniesInstance(&d) || d.Repairs.ProviderID == admission.FixAsOld || slices.Contains(d.Repairs.Instance[:], admission.FixAsOld)
		}
		seen[want]++
		resource := machinev1beta1.GroupVersion.WithResource("machines")
		result := policy.Validate(context.Background(), resource, attributes(t, operation, old, next, who), nil, nil, celconfig.RuntimeCELCostBudget, nil)
		denied := false
		for _, d := range result.Decisions {
			if d.Evaluation == validating.EvalError {
				t.Fatalf("cannot be evaluated: %s", d.Message)
			}
			if d.Action == validating.ActionDeny {
				denied = true
				if !strings.HasPrefix(d.Message, "Refused (claim): ") || !strings.Contains(d.Message, "Machine "+next.Name+" ") {
					t.Errorf("denied with the words %q", d.Message)
				}
			}
		}
		if denied != want {
			d := ids.Admit(&req, nil)
			t.Errorf("denied: %t, want %t; Admit decides:\n%s", denied, want, d.Describe())
		}
	})
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("one answer never came up: %v", seen)
	}
}

func findings(ids *admission.Identities, req *admission.Request, s *quorum.Snapshot) map[quorum.Rule]bool {
	rules := map[quorum.Rule]bool{}
	d := ids.Admit(req, s)
	for _, f := range d.Findings {
		rules[f.Rule] = f.Verdict == admission.VerdictDenied || f.Verdict == admission.VerdictRepaired
	}
	return rules
}

func statuses() *rapid.Generator[machinev1beta1.MachineStatus] {
	return rapid.Custom(func(t *rapid.T) (s machinev1beta1.MachineStatus) {
		pick := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(t, label) }
		s.Phase = new(pick("phase", "Running", "Deleting"))
		s.LastUpdated = &metav1.Time{Time: time.Unix(int64(rapid.IntRange(1, 2).Draw(t, "updated")), 0)}
		s.Conditions = []machinev1beta1.Condition{{Type: "Drained", Status: corev1.ConditionStatus(pick("drained", "True", "False"))}}
		if raw := pick("providerStatus", "", "{}", `{"instanceId":"a"}`, `{"instanceId":"b"}`, `{"INSTANCEID":"b"}`, `{"taskRef":"t"}`, `{"somethingNew":{"id":[1]}}`); raw != "" {
			s.ProviderStatus = &runtime.RawExtension{Raw: []byte(raw)}
		}
		if node := pick("nodeRef", "", "a", "b"); node != "" {
			s.NodeRef = &corev1.ObjectReference{Kind: "Node", Name: node}
		}
		switch pick("addresses", "nil", "empty", "a", "b") {
		case "empty":
			s.Addresses = []corev1.NodeAddress{}
		case "a":
			s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
		case "b":
			s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "10.0.0.1"}}
		}
		s.AuthoritativeAPI = machinev1beta1.MachineAuthority(pick("authority", "", "MachineAPI", "ClusterAPI"))
		return s
	})
}

// TestStatusPolicy holds keep-status: no rule in Go knows it, so it is written down here once more.
func TestStatusPolicy(t *testing.T) {
	often(t)
	const added = "system:serviceaccount:test:writer"
	_, usual := policies(t, registrations.Options{MachineNamespace: "openshift-machine-api", Identities: identities()})
	others := identities()
	others.MachineAPI = []string{added}
	_, other := policies(t, registrations.Options{MachineNamespace: "openshift-machine-api", Identities: others})
	where := func(s machinev1beta1.MachineStatus) (out [5]any) {
		var provider map[string]any
		if s.ProviderStatus != nil {
			if err := json.Unmarshal(s.ProviderStatus.Raw, &provider); err != nil {
				t.Fatal(err)
			}
		}
		phase := ""
		if s.Phase != nil {
			phase = *s.Phase
		}
		return [5]any{fmt.Sprint(provider), fmt.Sprint(s.NodeRef), fmt.Sprint(s.Addresses), s.AuthoritativeAPI, phase}
	}
	rapid.Check(t, func(t *rapid.T) {
		m := machines().Draw(t, "machine")
		old, next := m.DeepCopy(), m.DeepCopy()
		old.Status = statuses().Draw(t, "old")
		next.Status = statuses().Draw(t, "new")
		drawn := next.Status
		switch rapid.SampledFrom([]string{"all", "nothing", "phase", "providerStatus", "nodeRef", "addresses", "authoritativeAPI"}).Draw(t, "what differs") {
		case "nothing":
			next.Status = old.Status
		case "phase":
			next.Status = old.Status
			next.Status.Phase, next.Status.Conditions, next.Status.LastUpdated = drawn.Phase, drawn.Conditions, drawn.LastUpdated
		case "providerStatus":
			next.Status = old.Status
			next.Status.ProviderStatus = drawn.ProviderStatus
		case "nodeRef":
			next.Status = old.Status
			next.Status.NodeRef = drawn.NodeRef
		case "addresses":
			next.Status = old.Status
			next.Status.Addresses = drawn.Addresses
		case "authoritativeAPI":
			next.Status = old.Status
			next.Status.AuthoritativeAPI = drawn.AuthoritativeAPI
		}
		moved := where(old.Status) != where(next.Status)
		if before, after := machineapi.Machine(old), machineapi.Machine(next); !moved && (before.InstanceID != after.InstanceID || before.Mirrored != after.Mirrored ||
			before.NodeName != after.NodeName || fmt.Sprint(before.Addresses, before.HostNames) != fmt.Sprint(after.Addresses, after.HostNames)) {
			t.Fatal("a change of where the Machine runs is not among those that this test knows")
		}
		who := users().Draw(t, "user")
		if rapid.Bool().Draw(t, "a writer") {
			who.Name = rapid.SampledFrom(append(identities().MachineAPI, added)).Draw(t, "writer")
		}
		for _, c := range []struct {
			policy  validator
			writers []string
		}{{usual, identities().MachineAPI}, {other, []string{added}}} {
			want := map[quorum.Rule]bool{}
			writes := false
			for _, w := range c.writers {
				writes = writes || w == who.Name
			}
			if moved && !writes {
				want["keep-status"] = true
			}
			denied, _ := c.policy.denials(t, old, next, who)
			if diff := cmp.Diff(want, denied); diff != "" {
				t.Errorf("writers %q: denied by (-want +got):\n%s", c.writers, diff)
			}
		}
	})
}

// TestManyOwners: the policy refuses more owners than Holdfast looks at, as Holdfast does.
func TestManyOwners(t *testing.T) {
	policy, _ := policies(t, registrations.Options{MachineNamespace: "openshift-machine-api", Identities: identities()})
	machine := func(role string, owners int) *machinev1beta1.Machine {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{quorum.RoleLabel: role}}}
		for i := range owners {
			m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: types.UID(fmt.Sprint(i))})
		}
		return m
	}
	const most = admission.MostOwners
	relabelled := machine("master", most+1)
	relabelled.Labels[quorum.TypeLabel] = "master"
	for _, c := range []struct {
		name     string
		old, new *machinev1beta1.Machine
		denied   bool
	}{
		{"as many as may be", machine("master", most-1), machine("master", most), false},
		{"one more", machine("master", most), machine("master", most+1), true},
		{"too many, and they stay", machine("master", most+1), relabelled, false},
		{"a worker with too many becomes the control plane's", machine("worker", most+1), machine("master", most+1), true},
	} {
		if denied, _ := policy.denials(t, c.old, c.new, admission.User{Name: "alice"}); denied[quorum.RuleAdopt] != c.denied {
			t.Errorf("%s: denied by %v", c.name, denied)
		}
	}
}

// TestPolicyFile holds deploy/base/policy.yaml, which is what Policies says without any flag.
func TestPolicyFile(t *testing.T) {
	path := filepath.Join("..", "..", "deploy", "base", "policy.yaml")
	var out bytes.Buffer
	out.WriteString("# Generated: go test ./internal/registrations -update. With other flags than the default ones: holdfast manifests.\n")
	if err := registrations.WriteYAML(&out, registrations.Policies(registrations.Options{MachineNamespace: "openshift-machine-api", HoldfastNamespace: "holdfast-system", Identities: admission.DefaultIdentities(self)})...); err != nil {
		t.Fatal(err)
	}
	if *rewrite {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(out.String(), string(is)); diff != "" {
		t.Errorf("%s is not so any more (-want +got; -update writes it anew):\n%s", path, diff)
	}
}

// BenchmarkPolicies is what a write that touches nothing guarded costs the API server.
func BenchmarkPolicies(b *testing.B) {
	machines, status := policies(b, registrations.Options{MachineNamespace: "openshift-machine-api", Identities: identities()})
	m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		Name: "m", Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master"}, Finalizers: []string{quorum.Finalizer},
	}}
	machineapi.Put(m, true, true, &quorum.Evidence{MachineUID: "u", MemberIDs: []quorum.MemberID{1}})
	heartbeat := m.DeepCopy()
	heartbeat.Labels["heartbeat"] = "1"
	heartbeat.Status.Phase = new("Running")
	a := attributes(b, apiadmission.Update, m, heartbeat, admission.User{Name: "alice"})
	for name, policy := range map[string]validator{"machines": machines, "status": status} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				result := policy.Validate(b.Context(), a.GetResource(), a, nil, nil, celconfig.RuntimeCELCostBudget, nil)
				for _, d := range result.Decisions {
					if d.Action == validating.ActionDeny {
						b.Fatal(d.Message)
					}
				}
			}
		})
	}
}
