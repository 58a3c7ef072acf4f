package registrations_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiadmission "k8s.io/apiserver/pkg/admission"
	celplugin "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

const (
	self       = "system:serviceaccount:holdfast-system:holdfast"
	machineAPI = "system:serviceaccount:openshift-machine-api:machine-api-controllers"
)

func identities() admission.Identities {
	ids := admission.DefaultIdentities(self)
	ids.Automation = []string{"ci-*-bot", "deployers", `odd.name+"quoted"\*`}
	ids.Custodians = append(ids.Custodians, "carol")
	ids.EscapeHatch = append(ids.EscapeHatch, "ci-human-bot", "system:serviceaccount:night:*")
	return ids
}

// conditions are the registrations' matchConditions, compiled and run by the API server's own code.
type conditions struct {
	repair, closed, open matchconditions.Matcher
}

func compile(ids admission.Identities) conditions {
	mutating, validating := registrations.Registrations(registrations.Options{URL: "https://127.0.0.1:9443", MachineNamespace: "openshift-machine-api", Identities: ids})
	compiler := celplugin.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	return conditions{
		repair: webhook.NewMutatingWebhookAccessor("0", mutating.Name, &mutating.Webhooks[0]).GetCompiledMatcher(compiler),
		closed: webhook.NewValidatingWebhookAccessor("1", validating.Name, &validating.Webhooks[0]).GetCompiledMatcher(compiler),
		open:   webhook.NewValidatingWebhookAccessor("2", validating.Name, &validating.Webhooks[1]).GetCompiledMatcher(compiler),
	}
}

// TestHome has the requests that reach the rule home, and those beside them.
func TestHome(t *testing.T) {
	_, validating := registrations.Registrations(registrations.Options{URL: "https://127.0.0.1:9443", MachineNamespace: "openshift-machine-api", Identities: identities()})
	matcher := webhook.NewValidatingWebhookAccessor("3", validating.Name, &validating.Webhooks[2]).GetCompiledMatcher(
		celplugin.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())))
	namespace := func(name string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}}
	}
	crd := func(name, scope, label string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": name, "labels": map[string]any{"l": label}},
			"spec":     map[string]any{"scope": scope},
		}}
	}
	const machines = "machines.machine.openshift.io"
	namespaces := corev1.SchemeGroupVersion.WithResource("namespaces")
	crds := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	for _, c := range []struct {
		name      string
		resource  schema.GroupVersionResource
		operation apiadmission.Operation
		old, next runtime.Object
		want      bool
	}{
		{"the namespace is deleted", namespaces, apiadmission.Delete, namespace("openshift-machine-api"), nil, true},
		{"another namespace is deleted", namespaces, apiadmission.Delete, namespace("openshift-machine-api-2"), nil, false},
		{"a namespace of the CRD's name is deleted", namespaces, apiadmission.Delete, namespace(machines), nil, false},
		{"the CRD is deleted", crds, apiadmission.Delete, crd(machines, "Namespaced", ""), nil, true},
		{"another CRD is deleted", crds, apiadmission.Delete, crd("machinesets.machine.openshift.io", "Namespaced", ""), nil, false},
		{"a CRD of the namespace's name is deleted", crds, apiadmission.Delete, crd("openshift-machine-api", "Namespaced", ""), nil, false},
		{"the CRD's spec is changed", crds, apiadmission.Update, crd(machines, "Namespaced", ""), crd(machines, "Cluster", ""), true},
		{"the CRD's labels are changed", crds, apiadmission.Update, crd(machines, "Namespaced", ""), crd(machines, "Namespaced", "x"), false},
		{"another CRD's spec is changed", crds, apiadmission.Update, crd("nodes.example.com", "Namespaced", ""), crd("nodes.example.com", "Cluster", ""), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := c.old.GetObjectKind().GroupVersionKind()
			record := apiadmission.NewAttributesRecord(c.next, c.old, kind, "", "", c.resource, "", c.operation, nil, false, &user.DefaultInfo{Name: "alice"})
			attributes, err := apiadmission.NewVersionedAttributes(record, kind, apiadmission.NewObjectInterfacesFromScheme(runtime.NewScheme()))
			if err != nil {
				t.Fatal(err)
			}
			result := matcher.Match(t.Context(), attributes, nil, nil)
			if result.Error != nil || result.Matches != c.want {
				t.Errorf("matches: %t, %v; want %t", result.Matches, result.Error, c.want)
			}
		})
	}
}

// TestKeepers has the writes of MachineSets and MachineHealthChecks that are looked at, and those that
// are not: how many Machines a set has, what a controller writes, and what is no part of the spec.
func TestKeepers(t *testing.T) {
	_, validating := registrations.Registrations(registrations.Options{URL: "https://127.0.0.1:9443", MachineNamespace: "openshift-machine-api", Identities: identities()})
	matcher := webhook.NewValidatingWebhookAccessor("4", validating.Name, &validating.Webhooks[3]).GetCompiledMatcher(
		celplugin.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())))
	object := func(kind, text string) runtime.Object {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind(kind))
		return u
	}
	const set = "{metadata: {name: s}, spec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {}}}}"
	const check = "{metadata: {name: c}, spec: {maxUnhealthy: 1, selector: {}}}"
	for _, c := range []struct {
		name, kind, old, next string
		want                  bool
	}{
		{"a MachineSet is created", "MachineSet", "", set, true},
		{"one without anything is created", "MachineSet", "", "{metadata: {name: s}, spec: {}}", true},
		{"one is scaled", "MachineSet", set, strings.Replace(set, "replicas: 1", "replicas: 9", 1), false},
		{"its template makes another kind of instance", "MachineSet", set, strings.Replace(set, "spec: {}", "spec: {providerSpec: {value: {x: y}}}", 1), false},
		{"its status is written", "MachineSet", set, strings.Replace(set, "spec:", "status: {replicas: 1}, spec:", 1), false},
		{"it is labelled", "MachineSet", set, strings.Replace(set, "name: s", "name: s, labels: {x: y}", 1), false},
		{"it selects others", "MachineSet", set, strings.Replace(set, "matchLabels: {a: b}", "matchLabels: {a: c}", 1), true},
		{"it selects nothing more", "MachineSet", set, strings.Replace(set, "selector: {matchLabels: {a: b}}, ", "", 1), true},
		{"its Machines get one more label", "MachineSet", set, strings.Replace(set, "{metadata: {labels: {a: b}}", "{metadata: {labels: {a: b, c: d}}", 1), true},
		{"a MachineHealthCheck is created", "MachineHealthCheck", "", check, true},
		{"it acts on more", "MachineHealthCheck", check, strings.Replace(check, "1", "2", 1), true},
		{"it is labelled", "MachineHealthCheck", check, strings.Replace(check, "name: c", "name: c, labels: {x: y}", 1), false},
		{"its status is written", "MachineHealthCheck", check, strings.Replace(check, "spec:", "status: {x: 1}, spec:", 1), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			operation, old := apiadmission.Create, runtime.Object(nil)
			if c.old != "" {
				operation, old = apiadmission.Update, object(c.kind, c.old)
			}
			gvk := machinev1beta1.GroupVersion.WithKind(c.kind)
			record := apiadmission.NewAttributesRecord(object(c.kind, c.next), old, gvk, "openshift-machine-api", "x",
				machinev1beta1.GroupVersion.WithResource(strings.ToLower(c.kind)+"s"), "", operation, nil, false, &user.DefaultInfo{Name: "alice"})
			attributes, err := apiadmission.NewVersionedAttributes(record, gvk, apiadmission.NewObjectInterfacesFromScheme(runtime.NewScheme()))
			if err != nil {
				t.Fatal(err)
			}
			if result := matcher.Match(t.Context(), attributes, nil, nil); result.Error != nil || result.Matches != c.want {
				t.Errorf("matches: %t, %v; want %t", result.Matches, result.Error, c.want)
			}
		})
	}
}

// fataler is what *rapid.T and *testing.B have in common here.
type fataler interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// match evaluates a matcher for a request. A condition that cannot be evaluated is a failure.
func match(t fataler, m matchconditions.Matcher, operation apiadmission.Operation, old, next *machinev1beta1.Machine, who admission.User) bool {
	result := m.Match(context.Background(), attributes(t, operation, old, next, who), nil, nil)
	if result.Error != nil {
		t.Fatalf("condition %s: %v", result.FailedConditionName, result.Error)
	}
	return result.Matches
}

func attributes(t fataler, operation apiadmission.Operation, old, next *machinev1beta1.Machine, who admission.User) *apiadmission.VersionedAttributes {
	gvk := machinev1beta1.GroupVersion.WithKind("Machine")
	record := apiadmission.NewAttributesRecord(object(t, next), object(t, old), gvk, "openshift-machine-api", "m",
		machinev1beta1.GroupVersion.WithResource("machines"), "", operation, nil, false, &user.DefaultInfo{Name: who.Name, Groups: who.Groups})
	attributes, err := apiadmission.NewVersionedAttributes(record, gvk, apiadmission.NewObjectInterfacesFromScheme(runtime.NewScheme()))
	if err != nil {
		t.Fatal(err)
	}
	return attributes
}

// object is a Machine as the API server holds it, nil for none.
func object(t fataler, m *machinev1beta1.Machine) runtime.Object {
	if m == nil {
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(m)
	if err != nil {
		t.Fatal(err)
	}
	if spec := content["spec"].(map[string]any); m.Spec.ProviderID == nil && m.Spec.LifecycleHooks.PreDrain == nil && m.Spec.LifecycleHooks.PreTerminate == nil {
		if delete(spec, "lifecycleHooks"); m.Name == "bare" {
			delete(content, "spec")
		}
	}
	content["apiVersion"], content["kind"] = machinev1beta1.GroupVersion.String(), "Machine"
	return &unstructured.Unstructured{Object: content}
}

func users() *rapid.Generator[admission.User] {
	return rapid.Custom(func(t *rapid.T) admission.User {
		return admission.User{
			Name: rapid.SampledFrom([]string{
				"alice", "carol", "system:admin", "system:node:cp-1", self, "system:serviceaccount:openshift-etcd-operator:etcd-operator", "systemd",
				"ci-7-bot", "ci--bot", "ci-bot", "xci-7-bot", "ci-human-bot", "ci-\n-bot", `odd.name+"quoted"\x`, `oddXname+"quoted"\x`,
				"system:serviceaccount:openshift-kube-apiserver:localhost-recovery-client", "system:serviceaccount:night:watch", "system:serviceaccount:gitops:argocd", machineAPI, "deployers", "",
			}).Draw(t, "name"),
			Groups: rapid.SliceOfN(rapid.SampledFrom([]string{
				"system:masters", "deployers", "deployers2", "openshift-kube-apiserver", "ci-7-bot",
			}), 0, 2).Draw(t, "groups"),
		}
	})
}

func machines() *rapid.Generator[*machinev1beta1.Machine] {
	return rapid.Custom(func(t *rapid.T) *machinev1beta1.Machine {
		pick := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(t, label) }
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: pick("name", "m", "bare")}}
		put := func(to *map[string]string, key, value string) {
			if value != "absent" {
				if *to == nil {
					*to = map[string]string{}
				}
				(*to)[key] = value
			}
		}
		put(&m.Labels, quorum.RoleLabel, pick("role", "absent", "", "worker", "master", "master", "arbiter"))
		put(&m.Labels, quorum.TypeLabel, pick("type", "absent", "worker", "control-plane"))
		put(&m.Annotations, quorum.EvidenceAnnotation, pick("evidence", "absent", "absent", "", "one", "two"))
		put(&m.Annotations, quorum.OverrideAnnotation, pick("override", "absent", "absent", "held: x", "one-too-many: x", "claim: x", "one-too-many, claim: x", "claim"))
		put(&m.Annotations, quorum.OverrideByAnnotation, pick("by", "absent", "absent", "alice", "alice 2026-11-22T10:00:00Z", "system:admin 2026-11-22T10:00:00Z", "bob bob 2026-11-22T10:00:00Z"))
		put(&m.Annotations, quorum.InstanceAnnotations[0].Key, pick("host", "absent", "absent", "", "a", "b"))
		put(&m.Annotations, quorum.InstanceAnnotations[1].Key, pick("server", "absent", "absent", "a"))
		if phase := pick("phase", "", "", "Failed", "Running"); phase != "" {
			m.Status.Phase = &phase
		}
		switch pick("status", "none", "none", "node", "address", "link-local", "name", "provider") {
		case "provider":
			m.Status.ProviderStatus = &runtime.RawExtension{Raw: []byte(`{"instanceId":"a"}`)}
		case "node":
			m.Status.NodeRef = &corev1.ObjectReference{Kind: "Node", Name: "n"}
		case "address":
			m.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
		case "link-local":
			m.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "169.254.0.2"}}
		case "name":
			m.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"}}
		}
		switch pick("owner", "none", "none", "set", "controller", "other", "usual") {
		case "set":
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "machine.openshift.io/v1beta1", Kind: "MachineSet", Name: "s", UID: "s"}}
		case "controller":
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "machine.openshift.io/v1beta1", Kind: "MachineSet", Name: "s", UID: "s", Controller: new(true)}}
		case "other":
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c"}}
		case "usual":
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "machine.openshift.io/v1", Kind: "ControlPlaneMachineSet", Name: "p", UID: "p", Controller: new(true)}}
		}
		entry := func(name, owner string) []machinev1beta1.LifecycleHook {
			switch pick(name, "nil", "empty", "ours", "ours", "ours", "foreign", "other") {
			case "empty":
				return []machinev1beta1.LifecycleHook{}
			case "ours":
				return []machinev1beta1.LifecycleHook{{Name: "Other", Owner: "x"}, {Name: name, Owner: owner}}
			case "foreign":
				return []machinev1beta1.LifecycleHook{{Name: name, Owner: "x"}}
			case "other":
				return []machinev1beta1.LifecycleHook{{Name: "Other", Owner: owner}}
			}
			return nil
		}
		m.Spec.LifecycleHooks.PreDrain = entry(quorum.HookName, quorum.HookOwner)
		m.Spec.LifecycleHooks.PreTerminate = entry(quorum.LatchName, quorum.LatchOwner)
		switch pick("finalizers", "none", "machine", "machine", "other") {
		case "machine":
			m.Finalizers = []string{"example.com/other", quorum.Finalizer}
		case "other":
			m.Finalizers = []string{"example.com/other"}
		}
		if id := pick("providerID", "", "", "a", "b", "A", "a/b"); id != "" {
			m.Spec.ProviderID = &id
		}
		m.Status.AuthoritativeAPI = machinev1beta1.MachineAuthority(pick("authority", "", "", "", "MachineAPI", "ClusterAPI"))
		if pick("deleting", "no", "yes") == "yes" {
			m.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		return m
	})
}

// update draws an UPDATE's objects. One that changes everything at once is rare in life, and hides what
// each change does.
func update(t *rapid.T) (old, next *machinev1beta1.Machine) {
	old, next = machines().Draw(t, "old"), machines().Draw(t, "new")
	drawn := next
	switch rapid.SampledFrom([]string{"all", "nothing", "hooks", "finalizers", "labels", "annotations", "providerID", "owners"}).Draw(t, "what differs") {
	case "nothing":
		next = old.DeepCopy()
	case "hooks":
		next = old.DeepCopy()
		next.Spec.LifecycleHooks = drawn.Spec.LifecycleHooks
	case "finalizers":
		next = old.DeepCopy()
		next.Finalizers = drawn.Finalizers
	case "labels":
		next = old.DeepCopy()
		next.Labels = drawn.Labels
	case "annotations":
		next = old.DeepCopy()
		next.Annotations = drawn.Annotations
	case "owners":
		next = old.DeepCopy()
		next.OwnerReferences = drawn.OwnerReferences
	case "providerID":
		next = old.DeepCopy()
		next.Spec.ProviderID = drawn.Spec.ProviderID
	}
	next.DeletionTimestamp = old.DeletionTimestamp
	return old, next
}

// often has rapid make more than its usual hundred tries: a condition that is wrong in one corner is
// not found by those.
func often(t *testing.T) {
	t.Helper()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("5000"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConditions holds the matchConditions against quorum for any two Machines, any operation and any
// user: whatever a rule may have to say reaches the webhooks, and of the validating entries exactly one.
func TestConditions(t *testing.T) {
	often(t)
	ids := identities()
	compiled := compile(ids)
	rapid.Check(t, func(t *rapid.T) {
		who := users().Draw(t, "user")
		req := admission.Request{User: who, Namespace: "openshift-machine-api"}
		var old, next *machinev1beta1.Machine
		operation := rapid.SampledFrom([]apiadmission.Operation{apiadmission.Create, apiadmission.Update, apiadmission.Update, apiadmission.Delete}).Draw(t, "operation")
		switch operation {
		case apiadmission.Create:
			req.Operation, next = admission.OperationCreate, machines().Draw(t, "new")
		case apiadmission.Update:
			req.Operation = admission.OperationUpdate
			old, next = update(t)
		case apiadmission.Delete:
			req.Operation, old = admission.OperationDelete, machines().Draw(t, "old")
		}
		if old != nil {
			req.Old = new(machineapi.Machine(old))
		}
		if next != nil {
			req.New = new(machineapi.Machine(next))
		}
		closed := match(t, compiled.closed, operation, old, next, who)
		open := match(t, compiled.open, operation, old, next, who)
		if closed && open {
			t.Error("both validating entries match")
		}
		called := closed || open
		repair := operation != apiadmission.Delete && match(t, compiled.repair, operation, old, next, who)
		if repair && !called {
			t.Error("only the mutating webhook is called")
		}
		if called && operation == apiadmission.Update && setsInstance(&req) {
			t.Error("a webhook is called for an update that only says which instance a Machine has")
		}

		d := ids.Admit(&req, nil)
		// The validating handler refuses what still lacks a repair.
		if called && operation != apiadmission.Delete && !repair && (d.Repairs != (admission.Repairs{}) || slices.ContainsFunc(d.Findings, func(f admission.Finding) bool { return f.Verdict == admission.VerdictRepaired })) {
			t.Errorf("the validating webhook is called alone for what quorum decides as:\n%s", d.Describe())
		}
		if req.Old != nil && req.New != nil && (req.Old.Hook == quorum.EntryOurs) == (req.New.Hook == quorum.EntryOurs) && (req.Old.Latch == quorum.EntryOurs) == (req.New.Latch == quorum.EntryOurs) {
			d.Repairs.Latch = admission.FixNone // a pair that was odd before is the reconciler's to mend
		}
		if operation == apiadmission.Update && deniesInstance(&d) {
			return // by the policy, whether a webhook is called or not
		}
		if matters := ids.Needs(&req) != admission.NeedNothing || len(d.Findings) > 0 || d.Repairs != (admission.Repairs{}); matters && !called {
			t.Errorf("no webhook is called for what quorum decides as:\n%s", d.Describe())
		}
		if want := irreparable(&ids, &req); want != closed {
			t.Errorf("fails closed: %t, want %t", closed, want)
		}
		if quiet := quiet(&req); quiet && called {
			t.Error("a webhook is called for nothing")
		}
	})
}

// TestSelfCallCondition: a custodian's dry run that asks whether the webhooks are reached goes to the entry
// that fails closed, and to no other; nothing else does for that.
func TestSelfCallCondition(t *testing.T) {
	compiled := compile(identities())
	machine := func(asked string) *machinev1beta1.Machine {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{quorum.RoleLabel: "master"}}}
		if asked != "" {
			m.Annotations = map[string]string{"holdfast.dev/self-call": asked}
		}
		return m
	}
	for _, c := range []struct {
		name, user string
		dryRun     bool
		old, next  string
		want       bool
	}{
		{"a custodian asks", self, true, "", "x", true},
		{"another one asks", "carol", true, "before", "x", true},
		{"to be stored", self, false, "", "x", false},
		{"a person asks", "alice", true, "", "x", false},
		{"it stays", self, true, "x", "x", false},
		{"it is taken off", self, true, "x", "", false},
	} {
		gvk := machinev1beta1.GroupVersion.WithKind("Machine")
		record := apiadmission.NewAttributesRecord(object(t, machine(c.next)), object(t, machine(c.old)), gvk, "openshift-machine-api", "m",
			machinev1beta1.GroupVersion.WithResource("machines"), "", apiadmission.Update, nil, c.dryRun, &user.DefaultInfo{Name: c.user})
		a, err := apiadmission.NewVersionedAttributes(record, gvk, apiadmission.NewObjectInterfacesFromScheme(runtime.NewScheme()))
		if err != nil {
			t.Fatal(err)
		}
		for name, matcher := range map[string]matchconditions.Matcher{"repair": compiled.repair, "closed": compiled.closed, "open": compiled.open} {
			result := matcher.Match(t.Context(), a, nil, nil)
			if want := c.want && name == "closed"; result.Error != nil || result.Matches != want {
				t.Errorf("%s: %s matches: %t (%v), want %t", c.name, name, result.Matches, result.Error, want)
			}
		}
	}
}

// irreparable says which requests must not pass while Holdfast is down.
func irreparable(ids *admission.Identities, r *admission.Request) bool {
	if r.Old == nil || r.Old.Mirrored {
		return false
	}
	if r.Operation == admission.OperationDelete {
		return (r.Old.ControlPlane() || r.Old.Hook == quorum.EntryOurs || r.Old.Latch == quorum.EntryOurs) && !r.Old.Deleting() && !r.Old.Protected()
	}
	unhooks := r.Old.Hook == quorum.EntryOurs && r.New.Hook != quorum.EntryOurs
	if held := r.Old.Hook == quorum.EntryOurs || r.Old.Latch == quorum.EntryOurs; held && ids.Classify(r.User) == admission.ClassPerson &&
		(r.Old.ProviderID != "" && r.New.ProviderID == "" || r.Old.Instance[0] != "" && r.New.Instance[0] == "" || r.Old.Instance[1] != "" && r.New.Instance[1] == "") {
		return true
	}
	unlatches := r.Old.Deleting() && r.Old.Latch == quorum.EntryOurs && r.New.Latch != quorum.EntryOurs
	return (unhooks || unlatches) && ids.Classify(r.User) != admission.ClassPerson
}

// deniesInstance reports whether an update is refused for the instance that it names.
func deniesInstance(d *admission.Decision) bool {
	return slices.ContainsFunc(d.Findings, func(f admission.Finding) bool {
		return f.Rule == quorum.RuleClaim && f.Verdict == admission.VerdictDenied
	})
}

// setsInstance reports whether an update does nothing but say which instance a Machine has, and takes no name of one off: that is the API server's alone to refuse.
func setsInstance(r *admission.Request) bool {
	if r.Old.ProviderID != "" && r.New.ProviderID == "" {
		return false
	}
	for i := range r.Old.Instance {
		if r.Old.Instance[i] != "" && r.New.Instance[i] == "" {
			return false
		}
	}
	old, next := *r.Old, *r.New
	old.ProviderID, old.Instance, next.ProviderID, next.Instance = "", [2]string{}, "", [2]string{}
	return fmt.Sprint(old) == fmt.Sprint(next)
}

// quiet says which updates and deletes touch nothing guarded.
func quiet(r *admission.Request) bool {
	guarded := func(m *quorum.Machine) bool {
		return m.ControlPlane() || m.Hook == quorum.EntryOurs || m.Latch == quorum.EntryOurs
	}
	switch r.Operation {
	case admission.OperationDelete:
		has := r.Old.InstanceID || r.Old.ProviderID != "" || r.Old.Instance != [2]string{} || r.Old.NodeName != "" || len(r.Old.Addresses)+len(r.Old.HostNames) > 0
		return !guarded(r.Old) && !has || r.Old.Deleting() || r.Old.Mirrored
	case admission.OperationUpdate:
		a, b := *r.Old, *r.New
		same := fmt.Sprint(a) == fmt.Sprint(b)
		overrides := r.Old.Override != r.New.Override || r.Old.OverrideBy != r.New.OverrideBy || r.New.EvidenceRaw != "" && r.New.EvidenceRaw != r.Old.EvidenceRaw
		return same || setsInstance(r) || r.Old.Mirrored || !guarded(r.Old) && !r.New.ControlPlane() && !overrides
	}
	return false
}

// BenchmarkConditions is what a write that touches nothing guarded costs the API server: the three
// webhooks' conditions, and no call.
func BenchmarkConditions(b *testing.B) {
	compiled := compile(identities())
	for _, role := range []string{"master", "worker"} {
		b.Run(role, func(b *testing.B) {
			m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
				Name: "m", Labels: map[string]string{quorum.RoleLabel: role, quorum.TypeLabel: role}, Finalizers: []string{quorum.Finalizer},
			}}
			if role == "master" {
				machineapi.Put(m, true, true, &quorum.Evidence{MachineUID: "u", MemberIDs: []quorum.MemberID{1}})
			}
			heartbeat := m.DeepCopy()
			heartbeat.Labels["heartbeat"] = "1"
			a := attributes(b, apiadmission.Update, m, heartbeat, admission.User{Name: "system:serviceaccount:openshift-machine-api:machine-api-controllers"})
			for b.Loop() {
				for _, matcher := range []matchconditions.Matcher{compiled.repair, compiled.closed, compiled.open} {
					if result := matcher.Match(b.Context(), a, nil, nil); result.Error != nil || result.Matches {
						b.Fatal(result)
					}
				}
			}
		})
	}
}

// TestRegistrations looks at what is not a condition.
func TestRegistrations(t *testing.T) {
	mutating, validating := registrations.Registrations(registrations.Options{
		Service:  &registrations.Service{Namespace: "holdfast-system", Name: "holdfast", Port: 9443},
		CABundle: []byte("ca"), MachineNamespace: "machines", Identities: identities(),
	})
	var out bytes.Buffer
	if err := registrations.WriteYAML(&out, mutating, validating); err != nil {
		t.Fatal(err)
	}
	docs := strings.Split(strings.TrimPrefix(out.String(), "---\n"), "---\n")
	if len(docs) != 2 {
		t.Fatalf("%d documents", len(docs))
	}
	var m admissionregistrationv1.MutatingWebhookConfiguration
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	if err := yaml.UnmarshalStrict([]byte(docs[0]), &m); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(docs[1]), &v); err != nil {
		t.Fatal(err)
	}
	w := m.Webhooks[0]
	if m.Kind != "MutatingWebhookConfiguration" || *w.FailurePolicy != admissionregistrationv1.Ignore || *w.ReinvocationPolicy != admissionregistrationv1.IfNeededReinvocationPolicy ||
		*w.ClientConfig.Service.Path != "/mutate-machine" || *w.TimeoutSeconds != 3 || w.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != "machines" {
		t.Errorf("mutating:\n%s", docs[0])
	}
	if v.Kind != "ValidatingWebhookConfiguration" || len(v.Webhooks) != 4 ||
		*v.Webhooks[0].FailurePolicy != admissionregistrationv1.Fail || *v.Webhooks[1].FailurePolicy != admissionregistrationv1.Ignore ||
		*v.Webhooks[0].ClientConfig.Service.Path != "/validate-machine" || *v.Webhooks[0].SideEffects != admissionregistrationv1.SideEffectClassNone {
		t.Errorf("validating:\n%s", docs[1])
	}
	if home := v.Webhooks[2]; *home.FailurePolicy != admissionregistrationv1.Fail || *home.ClientConfig.Service.Path != "/validate-home" || len(home.NamespaceSelector.MatchLabels) > 0 {
		t.Errorf("the rule home's:\n%s", docs[1])
	}
	if keepers := v.Webhooks[3]; *keepers.FailurePolicy != admissionregistrationv1.Ignore || *keepers.ClientConfig.Service.Path != "/validate-keepers" ||
		keepers.NamespaceSelector == nil || fmt.Sprint(keepers.Rules[0].Resources) != "[machinesets machinehealthchecks]" {
		t.Errorf("MachineSets' and MachineHealthChecks':\n%s", docs[1])
	}
	_, validating = registrations.Registrations(registrations.Options{URL: "https://127.0.0.1:9443", MachineNamespace: "machines", EtcdNamespace: "openshift-etcd", Identities: identities()})
	if len(validating.Webhooks) != 6 {
		t.Fatalf("full mode has %d validating webhooks", len(validating.Webhooks))
	}
	if set := validating.Webhooks[4]; *set.FailurePolicy != admissionregistrationv1.Ignore || *set.ClientConfig.URL != "https://127.0.0.1:9443/validate-control-plane-set" ||
		set.Rules[0].APIVersions[0] != "v1" || set.Rules[0].Resources[0] != "controlplanemachinesets" || set.NamespaceSelector == nil {
		t.Errorf("the set's: %+v", set)
	}
	if scale := validating.Webhooks[5]; *scale.FailurePolicy != admissionregistrationv1.Fail || *scale.ClientConfig.URL != "https://127.0.0.1:9443/validate-control-plane-set" ||
		fmt.Sprint(scale.Rules[0].Resources) != "[controlplanemachinesets controlplanemachinesets/scale]" {
		t.Errorf("the rule scale-in's: %+v", scale)
	}
	for e, want := range map[admission.Enforcement]string{admission.Enforce: "[Deny Audit]", admission.Warn: "[Warn Audit]", admission.Audit: "[Audit]"} {
		o := registrations.Options{URL: "https://127.0.0.1:9443", MachineNamespace: "machines", Identities: identities(), Enforcement: e}
		_, validating = registrations.Registrations(o)
		closed := slices.ContainsFunc(validating.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
			return *w.FailurePolicy == admissionregistrationv1.Fail
		})
		if closed != (e == admission.Enforce) {
			t.Errorf("%s: a webhook fails closed: %t", e, closed)
		}
		for _, p := range registrations.Policies(o) {
			if b, ok := p.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding); ok && (fmt.Sprint(b.Spec.ValidationActions) != want || registrations.EnforcementOf(b) != e) {
				t.Errorf("%s: binding %s has %v", e, b.Name, b.Spec.ValidationActions)
			}
		}
	}
	if strings.Contains(out.String(), "creationTimestamp") {
		t.Error("the YAML holds a creationTimestamp")
	}
}
