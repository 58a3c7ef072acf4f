package webhooks_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/webhooks"
)

func machineSet(role string) *machinev1beta1.MachineSet {
	set := &machinev1beta1.MachineSet{ObjectMeta: metav1.ObjectMeta{GenerateName: "set-", Namespace: namespace}}
	set.Spec.Selector.MatchLabels = map[string]string{quorum.RoleLabel: role}
	set.Spec.Template.Labels = map[string]string{quorum.RoleLabel: role}
	return set
}

func healthCheck(most *intstr.IntOrString, selector metav1.LabelSelector) *machinev1beta1.MachineHealthCheck {
	check := &machinev1beta1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{GenerateName: "check-", Namespace: namespace}}
	check.Spec.Selector, check.Spec.MaxUnhealthy = selector, most
	check.Spec.UnhealthyConditions = []machinev1beta1.UnhealthyCondition{{Type: "Ready", Status: "Unknown", Timeout: metav1.Duration{Duration: 1e9}}}
	return check
}

// testKeepers writes MachineSets and MachineHealthChecks. Two guarded Machines are there, of three wanted.
func (f *fixture) testKeepers(t *testing.T) {
	masters := metav1.LabelSelector{MatchLabels: map[string]string{quorum.RoleLabel: "master"}}
	workers := metav1.LabelSelector{MatchLabels: map[string]string{quorum.RoleLabel: "worker"}}
	number := func(n int) *intstr.IntOrString { return new(intstr.FromInt32(int32(n))) }
	text := func(s string) *intstr.IntOrString { return new(intstr.FromString(s)) }
	other := machineSet("worker")
	other.Spec.Selector.MatchLabels = map[string]string{quorum.TypeLabel: "master"}
	makes := machineSet("worker")
	makes.Spec.Template.Labels[quorum.TypeLabel] = "arbiter"
	nothing := machineSet("worker")
	nothing.Spec.Selector.MatchLabels = nil
	external := healthCheck(number(2), masters)
	external.Spec.RemediationTemplate = &corev1.ObjectReference{Kind: "Reboot", Name: "r"}
	for _, c := range []struct {
		name     string
		object   client.Object
		blind    bool
		recorded []string
	}{
		{"a MachineSet of control-plane Machines", machineSet("master"), false, []string{"adopt allowed"}},
		{"a MachineSet of workers", machineSet("worker"), false, nil},
		{"a MachineSet that selects control-plane Machines by type", other, false, []string{"adopt allowed"}},
		{"a MachineSet that makes arbiters", makes, false, []string{"adopt allowed"}},
		{"a MachineSet with an empty selector selects nothing", nothing, false, nil},
		{"the Machines cannot be read, and the template says enough", machineSet("master"), true, []string{"adopt allowed"}},
		{"the Machines cannot be read", other.DeepCopy(), true, nil},
		{"a MachineHealthCheck as it is by default", healthCheck(nil, masters), false, []string{"health-check allowed"}},
		{"one of all Machines", healthCheck(text("100%"), metav1.LabelSelector{}), false, []string{"health-check allowed"}},
		{"one of workers", healthCheck(nil, workers), false, nil},
		{"one that acts on one", healthCheck(number(1), masters), false, nil},
		{"one that acts on two", healthCheck(number(2), masters), false, []string{"health-check allowed"}},
		{"one that acts on two, in letters", healthCheck(text("2"), masters), false, []string{"health-check allowed"}},
		{"one that acts on a half", healthCheck(text("50%"), masters), false, nil},
		{"one that acts on two thirds", healthCheck(text("67%"), masters), false, []string{"health-check allowed"}},
		{"one that has them rebooted", external, false, []string{"health-check allowed"}},
		{"the Machines cannot be read, and its selector says enough", healthCheck(nil, masters), true, []string{"health-check allowed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, dryRun := range []bool{true, false} {
				f.guard.set(ring())
				if c.blind {
					f.guard.set(nil)
				}
				var said warnings
				var options []client.CreateOption
				if dryRun {
					options = append(options, client.DryRunAll)
				}
				object := c.object.DeepCopyObject().(client.Object)
				err := f.client(t, person, &said).Create(t.Context(), object, options...)
				f.answered(t, &verdictCase{recorded: c.recorded}, dryRun, err, said.lines)
				if calls := f.guard.calls[webhooks.KeepersPath]; calls != 1 || f.guard.total() != 1 {
					t.Errorf("dry run %t: calls %v", dryRun, f.guard.calls)
				}
			}
		})
	}
	f.testKeepersChange(t)
}

// testKeepersChange changes what is there: who is called, and what they say.
func (f *fixture) testKeepersChange(t *testing.T) {
	ctx, c := t.Context(), f.client(t, gitops, nil)
	f.guard.set(ring())
	set := machineSet("worker")
	must(t, c.Create(ctx, set))
	check := healthCheck(new(intstr.FromInt32(1)), metav1.LabelSelector{})
	must(t, c.Create(ctx, check))
	patch := func(o client.Object, body string) error {
		return c.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(body)))
	}
	f.guard.set(ring())
	must(t, patch(set, `{"spec":{"replicas":7}}`))
	must(t, patch(set, `{"metadata":{"labels":{"a":"b"}},"spec":{"template":{"spec":{"metadata":{"labels":{"a":"b"}}}}}}`))
	must(t, c.SubResource("scale").Patch(ctx, set.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":8}}`))))
	must(t, c.Status().Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(`{"status":{"replicas":8}}`))))
	must(t, patch(check, `{"metadata":{"labels":{"a":"b"}}}`))
	must(t, c.Status().Patch(ctx, check, client.RawPatch(types.MergePatchType, []byte(`{"status":{"expectedMachines":3}}`))))
	must(t, c.Delete(ctx, machineSetNamed(set.Name)))
	if n := f.guard.total(); n != 0 {
		t.Errorf("the webhooks were called %d times", n)
	}
	set = machineSet("worker")
	must(t, c.Create(ctx, set))
	for _, change := range []struct {
		object         client.Object
		body, recorded string
	}{
		{set, `{"spec":{"selector":{"matchLabels":{"machine.openshift.io/cluster-api-machine-role":"master"}}}}`, "adopt allowed"},
		{set, `{"spec":{"template":{"metadata":{"labels":{"machine.openshift.io/cluster-api-machine-role":"master"}}}}}`, "adopt allowed"},
		{check, `{"spec":{"maxUnhealthy":"80%"}}`, "health-check allowed"},
	} {
		f.caughtUp(t, change.object)
		f.guard.set(ring())
		must(t, patch(change.object, change.body))
		var got []string
		for _, r := range f.guard.records() {
			got = append(got, string(r.Rule)+" "+r.Verdict.String())
		}
		if diff := cmp.Diff([]string{change.recorded}, got); diff != "" {
			t.Errorf("%s: recorded (-want +got):\n%s", change.body, diff)
		}
	}
}

func machineSetNamed(name string) *machinev1beta1.MachineSet {
	return &machinev1beta1.MachineSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
}

// TestKeepersBadInput: what is about something else is refused, and what cannot be read, or is none of
// Holdfast's, passes.
func TestKeepersBadInput(t *testing.T) {
	g := &guard{calls: map[string]int{}}
	g.set(ring())
	metrics := webhooks.NewMetrics(prometheus.NewRegistry())
	handler := &ctrladmission.Webhook{Handler: (&webhooks.Handlers{Identities: identities(), MachineNamespace: namespace, Observer: g, Recorder: g, Metrics: metrics}).SetsAndHealthChecks()}
	const set = `{"metadata":{"name":"s"},"spec":{"selector":{"matchLabels":{"machine.openshift.io/cluster-api-machine-role":"master"}}}}`
	of := func(kind string) func(*admissionv1.AdmissionRequest) {
		return func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = kind }
	}
	elsewhere := func(r *admissionv1.AdmissionRequest) { r.Kind.Kind, r.Namespace = "MachineSet", "elsewhere" }
	for name, c := range map[string]struct {
		body    []byte
		allowed bool
		warned  bool
	}{
		"as it is":               {review(t, admissionv1.Create, "null", set, of("MachineSet")), true, true},
		"a Machine":              {review(t, admissionv1.Create, "null", set), false, false},
		"in another namespace":   {review(t, admissionv1.Create, "null", set, elsewhere), true, false},
		"a DELETE":               {review(t, admissionv1.Delete, set, "null", of("MachineSet")), true, false},
		"no selector at all":     {review(t, admissionv1.Create, "null", `{}`, of("MachineSet")), true, false},
		"a selector that is odd": {review(t, admissionv1.Create, "null", `{"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}}`, of("MachineHealthCheck")), true, false},
		"a selector of numbers":  {review(t, admissionv1.Create, "null", `{"spec":{"selector":[1]}}`, of("MachineHealthCheck")), true, false},
		"maxUnhealthy is a word": {review(t, admissionv1.Create, "null", `{"spec":{"selector":{},"maxUnhealthy":"all"}}`, of("MachineHealthCheck")), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			answer := ask(t, handler, "application/json", c.body)
			if answer.Allowed != c.allowed || (len(answer.Warnings) > 0) != c.warned {
				t.Errorf("allowed %t with %q, %v", answer.Allowed, answer.Warnings, answer.Result)
			}
		})
	}
}
