package waysin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// Who sends requests, beside the sandbox's own identities.
const (
	collector  sandbox.Identity = "system:serviceaccount:kube-system:generic-garbage-collector"
	namespaces sandbox.Identity = "system:serviceaccount:kube-system:namespace-controller"
)

func people() []sandbox.Identity { return []sandbox.Identity{sandbox.Alice, sandbox.Admin} }

func automation() []sandbox.Identity {
	return []sandbox.Identity{sandbox.GitOps, sandbox.MachineAPI}
}

func everyone() []sandbox.Identity {
	return slices.Concat(people(), automation(), []sandbox.Identity{sandbox.EtcdOperator})
}

// anybody is everyone and Holdfast itself.
func anybody() []sandbox.Identity { return append(everyone(), sandbox.Holdfast) }

// notTheMachineAPI is everyone whose business Machines' status is not.
func notTheMachineAPI() []sandbox.Identity {
	return slices.Concat(people(), []sandbox.Identity{sandbox.GitOps, sandbox.EtcdOperator})
}

// keepStatus is a policy's rule, which quorum does not know.
const keepStatus quorum.Rule = "keep-status"

// ownRecords is one, too.
const ownRecords quorum.Rule = "own-records"

func worker() map[string]string { return map[string]string{quorum.RoleLabel: "worker"} }

// request is one request on its way: who sends it about which Machine.
type request struct {
	*cluster
	who    sandbox.Identity
	client client.Client // of that identity
	on     *machinev1beta1.Machine
	other  *machinev1beta1.Machine // another control-plane Machine
	dry    bool
}

func (r *request) patchOptions(more ...client.PatchOption) []client.PatchOption {
	if r.dry {
		more = append(more, client.DryRunAll)
	}
	return more
}

// sender sends a request and returns what kubectl was warned of; a client's Warnings are its own to collect.
type sender func(ctx context.Context, r *request) (heard []string, err error)

// when a row's Machine stands: the live master-1, or master-0 once its deletion is held.
type when string

const (
	live     when = "live"
	deleting when = "deleting"
)

// way is one row of the table.
type way struct {
	name string
	on   when
	who  []sandbox.Identity
	want outcome
	send sender
	// dryOnly rows would change what the following rows start from.
	dryOnly bool
	// realOnly rows are of a client that knows no dry run.
	realOnly bool
	// padded rows are about a Machine that a tool nested too deep before.
	padded bool
	// undo takes back what a row that passes left behind.
	undo sender
	note string
}

func patch(kind types.PatchType, body string) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		m := r.on.DeepCopy()
		return nil, r.client.Patch(ctx, m, client.RawPatch(kind, []byte(body)), r.patchOptions()...)
	}
}

func merge(body string) sender   { return patch(types.MergePatchType, body) }
func json6902(ops string) sender { return patch(types.JSONPatchType, ops) }

// put reads, changes and writes the whole Machine.
func put(change func(m *machinev1beta1.Machine)) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		m := r.on.DeepCopy()
		change(m)
		if r.dry {
			return nil, r.client.Update(ctx, m, client.DryRunAll)
		}
		return nil, r.client.Update(ctx, m)
	}
}

// apply is server-side apply of a manifest with that spec.
func apply(force bool, spec string) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		u := &unstructured.Unstructured{}
		text := fmt.Sprintf(`{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":%q,"namespace":%q},"spec":%s}`, r.on.Name, r.on.Namespace, spec)
		if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
			return nil, err
		}
		options := []client.ApplyOption{client.FieldOwner("waysin-" + r.who.File())}
		if force {
			options = append(options, client.ForceOwnership)
		}
		if r.dry {
			options = append(options, client.DryRunAll)
		}
		return nil, r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...)
	}
}

func remove(options ...client.DeleteOption) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		if r.dry {
			options = append(slices.Clone(options), client.DryRunAll)
		}
		return nil, r.client.Delete(ctx, r.on.DeepCopy(), options...)
	}
}

// collection is deletecollection of all Machines.
func collection(options ...client.DeleteAllOfOption) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		options := append(slices.Clone(options), client.InNamespace(sandbox.MachineNamespace))
		if r.dry {
			options = append(options, client.DryRunAll)
		}
		return nil, r.client.DeleteAllOf(ctx, &machinev1beta1.Machine{}, options...)
	}
}

// kubectl runs a command, in which MACHINE stands for the Machine's name.
func kubectl(args ...string) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		var out []string
		for _, a := range args {
			out = append(out, strings.ReplaceAll(a, "MACHINE", r.on.Name))
		}
		if r.dry {
			out = append(out, "--dry-run=server")
		}
		return r.run(ctx, r.who, nil, out...)
	}
}

// replace is kubectl replace of the Machine as it was before Holdfast came.
func replace(flags ...string) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		m := r.on.DeepCopy()
		m.TypeMeta = metav1.TypeMeta{APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine"}
		m.ManagedFields, m.ResourceVersion, m.UID, m.Annotations = nil, "", "", nil
		m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
		args := append([]string{"replace", "-f", "-"}, flags...)
		if r.dry {
			args = append(args, "--dry-run=server")
		}
		return r.run(ctx, r.who, m, args...)
	}
}

// create sends a new Machine, made from the row's and another one's.
func create(change func(m, other *machinev1beta1.Machine)) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "newcomer", Namespace: r.on.Namespace}}
		m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{}`)}
		change(m, r.on)
		if r.dry {
			return nil, r.client.Create(ctx, m, client.DryRunAll)
		}
		return nil, r.client.Create(ctx, m)
	}
}

// adopting is a MachineSet whose selector meets the control plane's Machines, and that wants none.
func adopting(ctx context.Context, r *request) ([]string, error) {
	role := map[string]string{quorum.RoleLabel: "master"}
	set := &machinev1beta1.MachineSet{ObjectMeta: metav1.ObjectMeta{Name: "adopter", Namespace: r.on.Namespace}}
	set.Spec.Replicas = new(int32)
	set.Spec.Selector.MatchLabels = role
	set.Spec.Template.Labels = role
	if r.dry {
		return nil, r.client.Create(ctx, set, client.DryRunAll)
	}
	return nil, r.client.Create(ctx, set)
}

// checking is a MachineHealthCheck of the control plane's Machines.
func checking(most *intstr.IntOrString) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		check := &machinev1beta1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Name: "checking", Namespace: r.on.Namespace}}
		check.Spec.Selector.MatchLabels = map[string]string{quorum.RoleLabel: "master"}
		check.Spec.MaxUnhealthy = most
		check.Spec.UnhealthyConditions = []machinev1beta1.UnhealthyCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Timeout: metav1.Duration{Duration: time.Hour}}}
		if r.dry {
			return nil, r.client.Create(ctx, check, client.DryRunAll)
		}
		return nil, r.client.Create(ctx, check)
	}
}

func namespaceDelete(ctx context.Context, r *request) ([]string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: sandbox.MachineNamespace}}
	if r.dry {
		return nil, r.client.Delete(ctx, ns, client.DryRunAll)
	}
	return nil, r.client.Delete(ctx, ns)
}

const crd = "machines.machine.openshift.io"

func crdDelete(ctx context.Context, r *request) ([]string, error) {
	o := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crd}}
	if r.dry {
		return nil, r.client.Delete(ctx, o, client.DryRunAll)
	}
	return nil, r.client.Delete(ctx, o)
}

func crdCollection(ctx context.Context, r *request) ([]string, error) {
	options := []client.DeleteAllOfOption{}
	if r.dry {
		options = append(options, client.DryRunAll)
	}
	return nil, r.client.DeleteAllOf(ctx, &apiextensionsv1.CustomResourceDefinition{}, options...)
}

// crdPrune takes the place for lifecycle hooks out of the Machine CRD.
func crdPrune(ctx context.Context, r *request) ([]string, error) {
	return changeCRD(ctx, r, func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
		spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
		delete(spec.Properties, "lifecycleHooks")
		v.Schema.OpenAPIV3Schema.Properties["spec"] = spec
	})
}

// crdWithoutStatus takes the status subresource away: then the status is anybody's who may write the Machine.
func crdWithoutStatus(ctx context.Context, r *request) ([]string, error) {
	return changeCRD(ctx, r, func(v *apiextensionsv1.CustomResourceDefinitionVersion) { v.Subresources = nil })
}

// crdUnserved leaves the Machines stored, where nobody gets at them.
func crdUnserved(ctx context.Context, r *request) ([]string, error) {
	return changeCRD(ctx, r, func(v *apiextensionsv1.CustomResourceDefinitionVersion) { v.Served = false })
}

// crdFull lets no hook in any more.
func crdFull(ctx context.Context, r *request) ([]string, error) {
	return changeCRD(ctx, r, func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
		hooks := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["lifecycleHooks"]
		list := hooks.Properties["preDrain"]
		list.MaxItems = new(int64(0))
		hooks.Properties["preDrain"] = list
	})
}

// crdConverts has Machines converted by a server of somebody's, which may leave out what it likes.
func crdConverts(ctx context.Context, r *request) ([]string, error) {
	o := &apiextensionsv1.CustomResourceDefinition{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: crd}, o); err != nil {
		return nil, err
	}
	next := *o.Spec.Versions[0].DeepCopy()
	next.Name, next.Storage = "v1beta9", false
	o.Spec.Versions = append(o.Spec.Versions, next)
	o.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: new("https://127.0.0.1:1/convert")}, ConversionReviewVersions: []string{"v1"},
	}}
	if r.dry {
		return nil, r.client.Update(ctx, o, client.DryRunAll)
	}
	return nil, r.client.Update(ctx, o)
}

// crdOneHook takes one list of hooks and no more.
func crdOneHook(ctx context.Context, r *request) ([]string, error) {
	return changeCRD(ctx, r, func(v *apiextensionsv1.CustomResourceDefinitionVersion) {
		spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
		hooks := spec.Properties["lifecycleHooks"]
		hooks.MaxProperties = new(int64(1))
		spec.Properties["lifecycleHooks"] = hooks
		v.Schema.OpenAPIV3Schema.Properties["spec"] = spec
	})
}

func changeCRD(ctx context.Context, r *request, change func(*apiextensionsv1.CustomResourceDefinitionVersion)) ([]string, error) {
	o := &apiextensionsv1.CustomResourceDefinition{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: crd}, o); err != nil {
		return nil, err
	}
	for i := range o.Spec.Versions {
		change(&o.Spec.Versions[i])
	}
	if r.dry {
		return nil, r.client.Update(ctx, o, client.DryRunAll)
	}
	return nil, r.client.Update(ctx, o)
}

// pad puts a value into the Machine's provider spec, as any tool may. It replaces the Machine: for a merge patch nested
// this deep the API server itself takes 8 s of CPU.
func (c *cluster) pad(ctx context.Context, t *testing.T, name, value string) {
	t.Helper()
	cl, _ := c.as(t, sandbox.GitOps)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		m := c.get(ctx, t, name)
		spec := map[string]json.RawMessage{}
		if err := json.Unmarshal(m.Spec.ProviderSpec.Value.Raw, &spec); err != nil {
			return err
		}
		spec["pad"] = json.RawMessage(value)
		raw, err := json.Marshal(spec)
		if err != nil {
			return err
		}
		m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
		return cl.Update(ctx, m)
	})
	if err != nil {
		t.Fatalf("the padding itself: %v", err)
	}
}

// onSubresource patches a subresource of the Machine.
func onSubresource(name, body string) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		m := r.on.DeepCopy()
		options := []client.SubResourcePatchOption{}
		if r.dry {
			options = append(options, client.DryRunAll)
		}
		return nil, r.client.SubResource(name).Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(body)), options...)
	}
}

const (
	foreign  = `{"lifecycleHooks":{"preDrain":[{"name":"Mine","owner":"example/me"}]}}`
	stolen   = `{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"example/me"}]}}`
	setOwner = `{"metadata":{"ownerReferences":[{"apiVersion":"machine.openshift.io/v1beta1","kind":"MachineSet","name":"adopter","uid":"00000000-0000-4000-8000-000000000000","controller":true}]}}`
	forgery  = `{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{\"machineUID\":\"x\",\"memberIDs\":[\"1\"]}"}}}`
	override = `{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: I said so","holdfast.dev/override-by":"alice 2026-11-22T10:00:00Z"}}}`
)

// large takes the finalizers off beside so much that the API server cannot ask Holdfast in 7 MiB.
func large() string {
	return `{"metadata":{"finalizers":null},"spec":{"providerSpec":{"value":{"pad":"` + strings.Repeat("<", 2_500_000) + `"}}}}`
}

// ways is the table. The Machine of the live rows is master-1; that of the deleting ones master-0,
// whose deletion is held because it has no replacement.
func ways() []way {
	noHooks := func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{} }
	return []way{
		// The hook of a live Machine.
		{name: "PUT without hooks", on: live, who: everyone(), want: warned(quorum.RuleKeepHook), send: put(noHooks)},
		{name: "merge patch lifecycleHooks: null", on: live, who: everyone(), want: warned(quorum.RuleKeepHook), send: merge(`{"spec":{"lifecycleHooks":null}}`)},
		{name: "merge patch preDrain: []", on: live, who: everyone(), want: warned(quorum.RuleKeepHook), send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[]}}}`)},
		{name: "merge patch preDrain: another's list", on: live, who: people(), want: warned(quorum.RuleKeepHook), send: merge(`{"spec":` + foreign + `}`), undo: merge(`{"spec":{"lifecycleHooks":{"preDrain":[]}}}`)},
		{name: "merge patch spec: null", on: live, who: people(), want: warned(quorum.RuleClaim), send: merge(`{"spec":null}`), dryOnly: true, note: "hook, latch and provider ID stay; the rest of the spec would be gone"},
		{name: "merge patch that gives the hook another owner", on: live, who: everyone(), want: warned(quorum.RuleKeepHook), send: merge(`{"spec":` + stolen + `}`)},
		{name: "merge patch of a list with null in it", on: live, who: people(), want: invalid, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[null]}}}`)},
		{name: "merge patch of the hook's name with a space behind it", on: live, who: people(), want: invalid, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator ","owner":"clusteroperator/etcd"}]}}}`)},
		{name: "JSON patch remove preDrain/0", on: live, who: everyone(), want: warned(quorum.RuleKeepHook), send: json6902(`[{"op":"remove","path":"/spec/lifecycleHooks/preDrain/0"}]`)},
		{name: "JSON patch remove lifecycleHooks", on: live, who: everyone(), want: warned(quorum.RuleKeepHook), send: json6902(`[{"op":"remove","path":"/spec/lifecycleHooks"}]`)},
		{name: "JSON patch move of the hook to preTerminate", on: live, who: people(), want: warned(quorum.RuleKeepHook), send: json6902(`[{"op":"move","from":"/spec/lifecycleHooks/preDrain/0","path":"/spec/lifecycleHooks/preTerminate/0"}]`), dryOnly: true, note: "an entry of the hook's name stays in preTerminate"},
		{name: "strategic merge patch", on: live, who: people(), want: invalid, send: patch(types.StrategicMergePatchType, `{"spec":{"lifecycleHooks":{"preDrain":[{"$patch":"delete","name":"EtcdQuorumOperator"}]}}}`)},
		{name: "apply with its own hook list", on: live, who: automation(), want: passes, send: apply(false, foreign), undo: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`), note: "lists merge by name"},
		{name: "apply with force with its own hook list", on: live, who: automation(), want: passes, send: apply(true, foreign), undo: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`), note: "lists merge by name"},
		{name: "apply that gives the hook another owner", on: live, who: []sandbox.Identity{sandbox.GitOps}, want: warned(quorum.RuleKeepHook), send: apply(false, stolen), note: "a restored hook has no field owner, so there is no conflict"},
		{name: "apply with force that gives the hook another owner", on: live, who: automation(), want: warned(quorum.RuleKeepHook), send: apply(true, stolen)},
		{name: "apply with the hook twice", on: live, who: automation(), want: invalid, send: apply(true, `{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"a"},{"name":"EtcdQuorumOperator","owner":"b"}]}}`)},
		{name: "kubectl patch of preTerminate alone", on: live, who: everyone(), want: warned(quorum.RuleKeepHook), send: kubectl("patch", "machine", "MACHINE", "--type=merge", "-p", `{"spec":{"lifecycleHooks":{"preTerminate":null}}}`)},
		{name: "kubectl replace with a manifest of before", on: live, who: people(), want: warned(quorum.RuleKeepHook), send: replace()},

		// What makes a Machine a control-plane Machine.
		{name: "kubectl label role=worker", on: live, who: everyone(), want: denied(quorum.RuleKeepRole), send: kubectl("label", "machine", "MACHINE", "--overwrite", quorum.RoleLabel+"=worker")},
		{name: "kubectl label type-", on: live, who: everyone(), want: denied(quorum.RuleKeepRole), send: kubectl("label", "machine", "MACHINE", quorum.TypeLabel+"-")},
		{name: "merge patch labels: null, and no hook", on: live, who: everyone(), want: denied(quorum.RuleKeepRole), send: merge(`{"metadata":{"labels":null},"spec":{"lifecycleHooks":null}}`)},

		// What powers the host off.
		{name: "kubectl annotate external-remediation", on: live, who: []sandbox.Identity{sandbox.GitOps}, want: denied(quorum.RuleKeepHost), send: kubectl("annotate", "machine", "MACHINE", quorum.RemediationAnnotation+"=")},
		{name: "merge patch external-remediation, by those who may restart a host", on: live, who: []sandbox.Identity{sandbox.Alice, sandbox.MachineAPI}, want: warned(quorum.RuleKeepHost), dryOnly: true, send: merge(`{"metadata":{"annotations":{"host.metal3.io/external-remediation":""}}}`), note: "one host at a time, and only while every other voter is healthy; TestRemediation sends it for real"},

		// Finalizer, evidence, latch, override.
		{name: "merge patch finalizers: null", on: live, who: everyone(), want: denied(quorum.RuleKeepFinalizer), send: merge(`{"metadata":{"finalizers":null}}`)},
		{name: "merge patch finalizers: null, with 2.5 MB beside it", on: live, who: everyone(), want: unreadable, send: merge(large()), dryOnly: true, note: "too large to be read; an object that loses its last finalizer is never stored, so etcd's limit does not stop it"},
		{name: "merge patch finalizers: null, after padding nested 9996 deep", on: live, who: everyone(), want: unreadable, send: merge(`{"metadata":{"finalizers":null}}`), padded: true, dryOnly: true, note: "too deep to be read; the padding itself passes"},
		{name: "merge patch providerID: null", on: live, who: everyone(), want: warned(quorum.RuleClaim), send: merge(`{"spec":{"providerID":null}}`)},
		{name: "JSON patch that puts another finalizer in its place", on: live, who: everyone(), want: denied(quorum.RuleKeepFinalizer), send: json6902(`[{"op":"replace","path":"/metadata/finalizers","value":["example.com/mine"]}]`)},
		{name: "merge patch of the evidence", on: live, who: slices.Concat(people(), automation()), want: warned(quorum.RuleKeepHook), send: merge(forgery)},
		{name: "merge patch annotations: null", on: live, who: slices.Concat(people(), automation()), want: warned(quorum.RuleKeepHook), send: merge(`{"metadata":{"annotations":null}}`)},
		{name: "override set by automation, signed by a person", on: live, who: slices.Concat(automation(), []sandbox.Identity{sandbox.EtcdOperator}), want: warned(quorum.RuleOverride), send: merge(override)},
		{name: "override set by a person", on: live, who: []sandbox.Identity{sandbox.Alice}, want: warned(quorum.RuleOverride), send: merge(override), undo: merge(`{"metadata":{"annotations":{"holdfast.dev/override":null}}}`), note: "it lifts one rule for one Machine, under their own name"},

		// Copies and claims.
		{name: "CREATE with another's evidence and override", on: live, who: slices.Concat(people(), automation()), want: warned(quorum.RuleClaim), dryOnly: true, note: "the Machine would get an instance", send: create(func(m, other *machinev1beta1.Machine) {
			m.Labels = map[string]string{quorum.RoleLabel: "master"}
			m.Annotations = map[string]string{quorum.EvidenceAnnotation: other.Annotations[quorum.EvidenceAnnotation], quorum.OverrideAnnotation: "one-too-many: copied", quorum.OverrideByAnnotation: "alice"}
		})},
		{name: "CREATE with generateName and another's evidence", on: live, who: people(), want: warned(quorum.RuleClaim), dryOnly: true, note: "the Machine would get an instance", send: create(func(m, other *machinev1beta1.Machine) {
			m.Name, m.GenerateName = "", "newcomer-"
			m.Labels = map[string]string{quorum.TypeLabel: "master"}
			m.Annotations = map[string]string{quorum.EvidenceAnnotation: other.Annotations[quorum.EvidenceAnnotation]}
		})},
		{name: "CREATE of a worker with a control-plane Machine's providerID", on: live, who: slices.Concat(people(), automation()), want: denied(quorum.RuleClaim), send: create(func(m, other *machinev1beta1.Machine) {
			m.Labels = map[string]string{quorum.RoleLabel: "worker", quorum.TypeLabel: "worker"}
			m.Spec.ProviderID = other.Spec.ProviderID
		})},
		{name: "merge patch of a worker's bare metal host", on: live, who: notTheMachineAPI(), want: denied(quorum.RuleClaim), send: onStray(worker(), merge(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":"machines/host"}}}`)), note: "no webhook is called: the API server refuses it alone"},
		{name: "merge patch of a worker's providerID", on: live, who: notTheMachineAPI(), want: denied(quorum.RuleClaim), send: onStray(worker(), func(ctx context.Context, r *request) ([]string, error) {
			return put(func(m *machinev1beta1.Machine) { m.Spec.ProviderID = r.other.Spec.ProviderID })(ctx, r)
		})},
		{name: "CREATE under the Machine's own name", on: live, who: people(), want: invalid, send: create(func(m, other *machinev1beta1.Machine) { m.Name = other.Name })},
		{name: "PUT with another control-plane Machine's providerID", on: live, who: everyone(), want: denied(quorum.RuleClaim), send: func(ctx context.Context, r *request) ([]string, error) {
			return put(func(m *machinev1beta1.Machine) { m.Spec.ProviderID = r.other.Spec.ProviderID })(ctx, r)
		}},
		{name: "DELETE of a worker that the Machine API has joined to a control-plane Machine's Node", on: live, who: everyone(), want: denied(quorum.RuleClaim), send: reaching(remove()), note: "its Node would be drained and deleted"},
		{name: "kubectl delete --force --grace-period=0 of such a worker", on: live, who: people(), want: denied(quorum.RuleClaim), send: reaching(kubectl("delete", "machine", "MACHINE", "--force", "--grace-period=0", "--wait=false"))},
		{name: "override of claim set by automation on such a worker", on: live, who: automation(), want: warned(quorum.RuleOverride), send: reaching(merge(`{"metadata":{"annotations":{"holdfast.dev/override":"claim: I said so","holdfast.dev/override-by":"alice 2026-11-22T10:00:00Z"}}}`))},

		{name: "CREATE without role labels and with another's evidence, then the label", on: live, who: slices.Concat(people(), automation()), want: warned(quorum.RuleClaim), send: createdAndPromoted, note: "the evidence is taken out at once"},
		{name: "evidence written on a worker, then the label", on: live, who: slices.Concat(people(), automation()), want: warned(quorum.RuleKeepHook), send: planted, note: "the evidence is taken out at once"},

		// Who is said to own it.
		{name: "merge patch that makes a MachineSet its controller", on: live, who: everyone(), want: denied(quorum.RuleAdopt), send: merge(setOwner)},
		{name: "apply with force that makes a MachineSet its controller", on: live, who: automation(), want: denied(quorum.RuleAdopt), send: func(ctx context.Context, r *request) ([]string, error) {
			m := r.on.DeepCopy()
			body := `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine",` + strings.TrimPrefix(setOwner, "{")
			return nil, r.client.Patch(ctx, m, client.RawPatch(types.ApplyPatchType, []byte(body)), r.patchOptions(client.FieldOwner("waysin"), client.ForceOwnership)...)
		}},
		{name: "CREATE of a control-plane Machine that a MachineSet controls", on: live, who: automation(), want: denied(quorum.RuleAdopt), send: create(func(m, _ *machinev1beta1.Machine) {
			m.Labels = map[string]string{quorum.RoleLabel: "master"}
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: machinev1beta1.GroupVersion.String(), Kind: "MachineSet", Name: "adopter", UID: "00000000-0000-4000-8000-000000000000", Controller: new(true)}}
		})},
		{name: "ownerReference to an owner that does not exist", on: live, who: slices.Concat(people(), automation()), want: warned(quorum.RuleAdopt),
			send: merge(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"00000000-0000-4000-8000-000000000000"}]}}`), dryOnly: true,
			note: "the garbage collector (not run here) would send a DELETE, which is judged like any: see its rows"},
		{name: "MachineSet with replicas 0 that selects the control plane", on: live, who: people(), want: warned(quorum.RuleAdopt), send: adopting, dryOnly: true, note: "its controller (not run here) adopts first, which is denied"},
		{name: "MachineHealthCheck of the control plane, maxUnhealthy as by default", on: live, who: people(), want: warned(quorum.RuleHealthCheck), send: checking(nil), dryOnly: true, note: "its controller would send DELETEs, which are judged like any"},
		{name: "MachineHealthCheck of the control plane, maxUnhealthy 2", on: live, who: people(), want: warned(quorum.RuleHealthCheck), send: checking(new(intstr.FromInt32(2))), dryOnly: true, note: "its controller would send DELETEs, which are judged like any"},
		{name: "MachineHealthCheck of the control plane, maxUnhealthy 1", on: live, who: people(), want: passes, send: checking(new(intstr.FromInt32(1))), dryOnly: true, note: "what etcd can lose"},

		// Subresources, and what does not exist.
		{name: "patch of machines/status with spec and metadata in it", on: live, who: []sandbox.Identity{sandbox.MachineAPI}, want: passes, send: onSubresource("status", `{"metadata":{"finalizers":null,"annotations":null},"spec":{"lifecycleHooks":null}}`), note: "the API server takes nothing but the status"},
		{name: "PUT of a worker's machines/status with a control-plane Machine's providerStatus", on: live, who: notTheMachineAPI(), want: denied(keepStatus), send: onStray(worker(), misdirected), note: "else deleting the worker would end that instance"},
		{name: "kubectl patch --subresource=status of a worker with a control-plane Machine's providerStatus", on: live, who: notTheMachineAPI(), want: denied(keepStatus), send: onStray(worker(), misdirectedByPatch)},
		{name: "patch of machines/status: providerStatus null", on: live, who: notTheMachineAPI(), want: denied(keepStatus), send: onSubresource("status", `{"status":{"providerStatus":null}}`)},
		{name: "patch of machines/status: nodeRef null", on: live, who: notTheMachineAPI(), want: denied(keepStatus), send: onSubresource("status", `{"status":{"nodeRef":null}}`), note: "the machine controller does not drain without one"},
		{name: "patch of machines/status: addresses", on: live, who: notTheMachineAPI(), want: denied(keepStatus), send: onSubresource("status", `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`)},
		{name: "patch of machines/status: authoritativeAPI", on: live, who: notTheMachineAPI(), want: passes, send: onSubresource("status", `{"status":{"authoritativeAPI":"ClusterAPI"}}`), note: "the CRD of the default feature set has no such field; where it has, `keep-status` denies"},
		{name: "merge patch of the Machine with a status in it", on: live, who: people(), want: passes, send: merge(`{"status":{"nodeRef":null,"addresses":null,"providerStatus":null}}`), note: "the API server takes the status at machines/status alone"},
		{name: "patch of machines/scale", on: live, who: people(), want: unknown, send: onSubresource("scale", `{"spec":{"replicas":0}}`)},
		{name: "patch of machines/finalize", on: live, who: people(), want: unknown, send: onSubresource("finalize", `{}`)},
		{name: "patch of another name", on: live, who: people(), want: invalid, send: merge(`{"metadata":{"name":"renamed"}}`)},
		{name: "patch of the deletionTimestamp", on: live, who: people(), want: invalid, send: merge(`{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}`)},

		// What a decision reads beside the Machines. None of it frees a Machine whose voter etcd lists.
		{name: "kubectl label node that hides a control-plane Node", on: live, who: slices.Concat(people(), []sandbox.Identity{sandbox.GitOps}), want: passes, send: kubectl("label", "node", "MACHINE", "node-role.kubernetes.io/master-"), undo: kubectl("label", "node", "MACHINE", "node-role.kubernetes.io/master="), note: "a member there is joined to its Machine all the same"},
		{name: "kubectl annotate node as one whose learner gave way", on: live, who: people(), want: passes, send: kubectl("annotate", "node", "MACHINE", "--overwrite", quorum.GaveWayAnnotation+"=2026-01-01T00:00:00Z"), undo: kubectl("annotate", "node", "MACHINE", quorum.GaveWayAnnotation+"-"), note: "it says who comes first, and nothing else"},
		{name: "patch of a Node's status: the address of another", on: live, who: people(), want: passes, send: nodeAddress, note: "the other one's member is then joined to two Machines, so no hook is released; its kubelet puts it right"},
		{name: "kubectl label machine with another failure domain", on: live, who: people(), want: passes, send: kubectl("label", "machine", "MACHINE", "--overwrite", "machine.openshift.io/zone=elsewhere"), undo: kubectl("label", "machine", "MACHINE", "machine.openshift.io/zone-"), note: "it says who goes first, and nothing else"},
		{name: "install-config with one control-plane replica", on: live, who: people(), want: passes, send: installConfig("replicas: 3", "replicas: 1"), undo: installConfig("replicas: 1", "replicas: 3"), realOnly: true, note: "as many voters are wanted as before: the greatest number on record counts"},
		{name: "patch of the release ledger", on: live, who: slices.Concat(people(), automation()), want: denied(ownRecords), send: kubectl("patch", "configmap", "holdfast-releases", "--type=merge", "-p", `{"data":{"zz":"garbage"},"immutable":true}`)},
		{name: "patch of the ring that Holdfast publishes", on: live, who: slices.Concat(people(), []sandbox.Identity{sandbox.GitOps}), want: denied(ownRecords), send: kubectl("patch", "configmap", "holdfast-ring", "--namespace=holdfast-system", "--type=merge", "-p", `{"data":{"snapshot.yaml":""}}`)},

		// What the Machines live in.
		{name: "namespace DELETE", on: live, who: people(), want: denied(quorum.RuleHome), send: namespaceDelete},
		{name: "kubectl delete namespace --force --grace-period=0", on: live, who: people(), want: denied(quorum.RuleHome), send: kubectl("delete", "namespace", sandbox.MachineNamespace, "--force", "--grace-period=0", "--wait=false")},
		{name: "the namespace's name label changed", on: live, who: people(), want: passes, send: kubectl("label", "namespace", sandbox.MachineNamespace, "kubernetes.io/metadata.name=elsewhere", "--overwrite"), note: "the API server sets it back"},
		{name: "CRD DELETE", on: live, who: people(), want: denied(quorum.RuleHome), send: crdDelete},
		{name: "CRD deletecollection", on: live, who: people(), want: denied(quorum.RuleHome), send: crdCollection, dryOnly: true, note: "the other CRDs would be gone"},
		{name: "CRD update that prunes lifecycleHooks", on: live, who: people(), want: denied(quorum.RuleHome), send: crdPrune},
		{name: "CRD update that serves no version", on: live, who: people(), want: denied(quorum.RuleHome), send: crdUnserved},
		{name: "CRD update that lets no hook in (maxItems: 0)", on: live, who: people(), want: denied(quorum.RuleHome), send: crdFull},
		{name: "CRD update that has Machines converted", on: live, who: people(), want: denied(quorum.RuleHome), send: crdConverts},
		{name: "CRD update that takes one hook (maxProperties: 1)", on: live, who: people(), want: denied(quorum.RuleHome), send: crdOneHook},
		{name: "CRD update that takes the status subresource away", on: live, who: people(), want: denied(quorum.RuleHome), send: crdWithoutStatus},

		// DELETE of a live Machine, while no other Machine is being deleted: held, whatever its flags. For
		// real it is done once, between the live rows and the deleting ones.
		{name: "DELETE", on: live, who: everyone(), want: warned(quorum.RuleHeld), send: remove(), dryOnly: true, note: "for real: the next rows' Machine"},
		{name: "DELETE by the garbage collector", on: live, who: []sandbox.Identity{collector}, want: warned(quorum.RuleHeld), dryOnly: true, note: "for real: the next rows' Machine", send: remove(client.PropagationPolicy(metav1.DeletePropagationBackground))},
		{name: "DELETE, foreground", on: live, who: people(), want: warned(quorum.RuleHeld), dryOnly: true, note: "for real: of the second, below", send: remove(client.PropagationPolicy(metav1.DeletePropagationForeground))},
		{name: "kubectl delete --cascade=orphan", on: live, who: people(), want: warned(quorum.RuleHeld), dryOnly: true, note: "for real: of the second, below", send: kubectl("delete", "machine", "MACHINE", "--cascade=orphan", "--wait=false")},
		{name: "kubectl delete --force --grace-period=0", on: live, who: people(), want: warned(quorum.RuleHeld), dryOnly: true, note: "for real: of the second, below", send: kubectl("delete", "machine", "MACHINE", "--force", "--grace-period=0", "--wait=false")},
		{name: "kubectl delete --all", on: live, who: people(), want: warned(quorum.RuleHeld), dryOnly: true, note: "of a dry run each is the first; for real: below", send: kubectl("delete", "machine", "--all", "--wait=false")},
		{name: "deletecollection", on: live, who: slices.Concat(people(), []sandbox.Identity{namespaces}), want: warned(quorum.RuleHeld), dryOnly: true, note: "of a dry run each is the first; for real: below", send: collection()},

		// DELETE of another live Machine while one is being deleted.
		{name: "DELETE of the second", on: deleting, who: slices.Concat(everyone(), []sandbox.Identity{collector, namespaces}), want: denied(quorum.RuleOneTooMany), send: second(remove())},
		{name: "DELETE of the second, foreground", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: second(remove(client.PropagationPolicy(metav1.DeletePropagationForeground)))},
		{name: "DELETE of the second, orphan, grace period 0", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: second(remove(client.PropagationPolicy(metav1.DeletePropagationOrphan), client.GracePeriodSeconds(0)))},
		{name: "kubectl delete --force --grace-period=0 of the second", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: second(kubectl("delete", "machine", "MACHINE", "--force", "--grace-period=0", "--wait=false"))},
		{name: "kubectl delete --cascade=foreground of the second", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: second(kubectl("delete", "machine", "MACHINE", "--cascade=foreground", "--wait=false"))},
		{name: "kubectl delete --cascade=orphan of the second", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: second(kubectl("delete", "machine", "MACHINE", "--cascade=orphan", "--wait=false"))},
		{name: "kubectl delete --all", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: kubectl("delete", "machine", "--all", "--wait=false")},
		{name: "kubectl replace --force of the second", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: second(replace("--force", "--timeout=2s")), realOnly: true},
		{name: "deletecollection", on: deleting, who: slices.Concat(people(), []sandbox.Identity{namespaces}), want: denied(quorum.RuleOneTooMany), send: collection()},
		{name: "deletecollection by label", on: deleting, who: people(), want: denied(quorum.RuleOneTooMany), send: collection(client.MatchingLabels{quorum.RoleLabel: "master"})},

		// The hook of a deleting Machine.
		{name: "DELETE again", on: deleting, who: everyone(), want: passes, send: remove(client.GracePeriodSeconds(0)), note: "a repeated DELETE changes nothing"},
		{name: "PUT without hooks, by automation", on: deleting, who: automation(), want: warned(quorum.RuleAutomationRelease), send: put(noHooks)},
		{name: "merge patch preDrain: null, by automation", on: deleting, who: automation(), want: warned(quorum.RuleAutomationRelease), send: merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`)},
		{name: "JSON patch remove lifecycleHooks, by automation", on: deleting, who: automation(), want: warned(quorum.RuleAutomationRelease), send: json6902(`[{"op":"remove","path":"/spec/lifecycleHooks"}]`)},
		{name: "merge patch preDrain: null, by etcd's operator", on: deleting, who: []sandbox.Identity{sandbox.EtcdOperator}, want: warned(quorum.RuleEarlyRelease), send: merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`)},
		{name: "merge patch preDrain: null, by a person", on: deleting, who: people(), want: warned(quorum.RuleEscapeHatch), send: merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`), dryOnly: true, note: "the escape hatch"},
		{name: "PUT without hooks, by a person", on: deleting, who: people(), want: warned(quorum.RuleEscapeHatch), send: put(noHooks), dryOnly: true, note: "the escape hatch"},
		{name: "JSON patch remove preDrain/0, by a person", on: deleting, who: people(), want: warned(quorum.RuleEscapeHatch), send: json6902(`[{"op":"remove","path":"/spec/lifecycleHooks/preDrain/0"}]`), dryOnly: true, note: "the escape hatch"},
		{name: "merge patch preTerminate: null", on: deleting, who: everyone(), want: warned(quorum.RuleKeepHook), send: merge(`{"spec":{"lifecycleHooks":{"preTerminate":null}}}`)},
		{name: "merge patch that gives the hook another owner", on: deleting, who: everyone(), want: warned(quorum.RuleKeepHook), send: merge(`{"spec":` + stolen + `}`)},
		{name: "merge patch that adds a hook of one's own", on: deleting, who: people(), want: upstream, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"},{"name":"Mine","owner":"example/me"}]}}}`)},
		{name: "apply with its own hook list", on: deleting, who: automation(), want: upstream, send: apply(true, foreign)},
		{name: "apply with its own hook list and without force", on: deleting, who: automation(), want: upstream, send: apply(false, foreign)},
		{name: "merge patch that makes a MachineSet its controller", on: deleting, who: everyone(), want: passes, send: merge(setOwner), undo: merge(`{"metadata":{"ownerReferences":null}}`), note: "it is on its way out already, and the hook holds it"},
		{name: "merge patch finalizers: null", on: deleting, who: everyone(), want: denied(quorum.RuleKeepFinalizer), send: merge(`{"metadata":{"finalizers":null}}`)},
		{name: "merge patch finalizers: null, with 2.5 MB beside it", on: deleting, who: everyone(), want: unreadable, send: merge(large()), dryOnly: true, note: "too large to be read; an object that loses its last finalizer is never stored, so etcd's limit does not stop it"},
		{name: "merge patch finalizers: null, after padding nested 9996 deep", on: deleting, who: everyone(), want: unreadable, send: merge(`{"metadata":{"finalizers":null}}`), padded: true, dryOnly: true, note: "too deep to be read; the padding itself passes"},
		{name: "merge patch finalizers and hooks: null", on: deleting, who: everyone(), want: denied(quorum.RuleKeepFinalizer), send: merge(`{"metadata":{"finalizers":null},"spec":{"lifecycleHooks":null}}`)},
		{name: "kubectl label role=worker", on: deleting, who: everyone(), want: denied(quorum.RuleKeepRole), send: kubectl("label", "machine", "MACHINE", "--overwrite", quorum.RoleLabel+"=worker")},
		{name: "kubectl annotate external-remediation", on: deleting, who: []sandbox.Identity{sandbox.GitOps}, want: denied(quorum.RuleKeepHost), send: kubectl("annotate", "machine", "MACHINE", quorum.RemediationAnnotation+"=")},
		{name: "merge patch of the evidence", on: deleting, who: slices.Concat(people(), automation()), want: warned(quorum.RuleKeepHook), send: merge(forgery)},
		{name: "override set by automation, signed by a person", on: deleting, who: automation(), want: warned(quorum.RuleOverride), send: merge(override)},
		{name: "annotation exclude-node-draining", on: deleting, who: everyone(), want: passes, send: merge(`{"metadata":{"annotations":{"machine.openshift.io/exclude-node-draining":""}}}`), note: "the machine controller then skips the hook, and the latch holds"},

		// The hook of a deleting Machine that has let go of it: another one, which hosts nothing.
		{name: "merge patch that puts the hook back", on: deleting, who: anybody(), want: warned(quorum.RuleNoRegain), send: onLeaving(merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`))},
		{name: "JSON patch that puts hook and latch back", on: deleting, who: []sandbox.Identity{sandbox.Alice, sandbox.Holdfast}, want: warned(quorum.RuleNoRegain), send: onLeaving(json6902(`[{"op":"add","path":"/spec/lifecycleHooks","value":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}],"preTerminate":[{"name":"EtcdQuorumLatch","owner":"holdfast"}]}}]`))},
		{name: "apply with force with the hook in it", on: deleting, who: automation(), want: warned(quorum.RuleNoRegain), send: onLeaving(apply(true, `{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}`))},
		{name: "merge patch that puts the latch alone back", on: deleting, who: anybody(), want: warned(quorum.RuleNoRegain), send: onLeaving(merge(`{"spec":{"lifecycleHooks":{"preTerminate":[{"name":"EtcdQuorumLatch","owner":"holdfast"}]}}}`))},
	}
}

// second sends a request about the other Machine.
func second(send sender) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		about := *r
		about.on = r.other
		return send(ctx, &about)
	}
}
