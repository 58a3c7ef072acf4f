package webhooks_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// More users: those who write where Machines run.
const (
	machineAPI = "system:serviceaccount:openshift-machine-api:machine-api-controllers"
	migration  = "system:serviceaccount:openshift-cluster-api:machine-api-migration"
)

// TestPolicy has the policies at work, on a CRD whose hooks have got a field with a default, first with every Holdfast process stopped, then with Holdfast up.
func TestPolicy(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.note(t)
	cases := stopped()
	for i, c := range cases { // what they start from is made while Holdfast is there
		f.machine(t, stoppedName(i), c.state)
	}
	probe := f.machine(t, "probe", state{})
	f.server.CloseClientConnections()
	f.server.Close()
	f.enact(t, probe)
	t.Run("stopped", func(t *testing.T) {
		for i, c := range cases {
			t.Run(c.name, func(t *testing.T) { f.checkStopped(t, stoppedName(i), c) })
		}
		t.Run("home", f.testHomeStopped)
		t.Run("claim", f.testInstance)
		t.Run("claim: a new Machine's override", f.testCopied)
	})

	mutating, validating := registrations.Registrations(registrations.Options{MachineNamespace: namespace})
	must(t, f.direct.Delete(t.Context(), mutating))
	must(t, f.direct.Delete(t.Context(), validating))
	f.serve(t)
	t.Run("keep-status", f.testStatus)
	f.guard.set(ring())
	t.Run("claim", f.testInstance)
	if n := f.guard.calls[webhooks.ValidatePath]; n != 1 { // of the creation by the Machine API
		t.Errorf("what only says which instance a Machine has was answered with %d calls", n)
	}
	t.Run("own-records", f.testRecords)
	t.Run("home", f.testHome)
	t.Run("up", func(t *testing.T) {
		for i, c := range up() {
			t.Run(c.name, func(t *testing.T) { f.check(t, fmt.Sprintf("up-%d", i), c) })
		}
	})
}

// note gives hooks a field with a default, as a newer version of the platform may: each entry then carries more than name and owner.
func (f *fixture) note(t *testing.T) {
	t.Helper()
	var patch []string
	for _, list := range []string{"preDrain", "preTerminate"} {
		patch = append(patch, fmt.Sprintf(inHooks, list, "note"))
	}
	operator := f.client(t, "system:serviceaccount:openshift-cluster-version:default", nil)
	must(t, operator.Patch(t.Context(), f.crd(t), client.RawPatch(types.JSONPatchType, []byte("["+strings.Join(patch, ",")+"]"))))
	gomega.NewWithT(t).Eventually(func() (string, error) {
		m := &unstructured.Unstructured{}
		m.SetAPIVersion(machinev1beta1.GroupVersion.String())
		m.SetKind("Machine")
		m.SetNamespace(namespace)
		m.SetName("noted")
		m.Object["spec"] = map[string]any{"lifecycleHooks": map[string]any{"preDrain": []any{map[string]any{"name": "other", "owner": "another"}}}}
		err := f.direct.Create(t.Context(), m, client.DryRunAll)
		return fmt.Sprint(m.Object["spec"]), err
	}).WithTimeout(20 * time.Second).WithPolling(50 * time.Millisecond).Should(gomega.ContainSubstring("note:"))
}

// inHooks is a JSON patch of the CRD, of a list of hooks and the name of a new field with a default.
const inHooks = `{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/lifecycleHooks/properties/%s/items/properties/%s","value":{"type":"string","default":"x"}}`

// enact creates the policies and waits until both are at work. Holdfast's account, which makes the
// cases' Machines, may write where they run.
func (f *fixture) enact(t *testing.T, probe *machinev1beta1.Machine) {
	t.Helper()
	ids := identities()
	ids.MachineAPI = append(ids.MachineAPI, holdfast)
	for _, object := range registrations.Policies(registrations.Options{
		MachineNamespace: namespace, HoldfastNamespace: "holdfast-system", EtcdNamespace: "openshift-etcd", QuorumGuard: true, Identities: ids,
	}) {
		must(t, f.direct.Create(t.Context(), object.(client.Object)))
	}
	c := f.client(t, person, nil)
	for policy, send := range map[string]func() error{ // the API server takes up each on its own
		registrations.MachinePolicy: func() error { return merge(`{"spec":{"lifecycleHooks":null}}`)(t.Context(), c, probe, true) },
		registrations.InstancePolicy: func() error {
			return merge(`{"spec":{"providerID":"process:///another"}}`)(t.Context(), c, probe, true)
		},
		registrations.StatusPolicy: func() error {
			return c.Status().Patch(t.Context(), probe.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodeRef":null}}`)), client.DryRunAll)
		},
		registrations.RecordsPolicy: func() error {
			return c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: machineapi.LedgerName}}, client.DryRunAll)
		},
	} {
		gomega.NewWithT(t).Eventually(func() string { return deniedBy(send()) }).WithTimeout(2 * time.Minute).WithPolling(50 * time.Millisecond).Should(gomega.Equal(policy))
	}
}

// deniedBy is the policy that an error is about, "" if it is none.
func deniedBy(err error) string {
	if !apierrors.IsForbidden(err) {
		return ""
	}
	_, rest, _ := strings.Cut(err.Error(), "ValidatingAdmissionPolicy '")
	name, _, _ := strings.Cut(rest, "'")
	return name
}

// stoppedCase is a request while every Holdfast process is stopped.
type stoppedCase struct {
	name   string
	state  state
	user   string
	send   request
	stored string
	// Who denies: a rule by its policy, registrations.ClosedWebhook because it cannot be called, "" nobody.
	denied string
}

func stoppedName(i int) string { return fmt.Sprintf("stopped-%d", i) }

func stopped() []stoppedCase {
	const going = protected + " deleting"
	var (
		hookOnly = merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}],"preTerminate":null}}}`)
		mine     = merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"mine"}]}}}`)
		all      = merge(`{"spec":{"lifecycleHooks":null}}`)
		regain   = merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`)
		noLabels = merge(`{"metadata":{"labels":null}}`)
		unbound  = merge(`{"metadata":{"finalizers":null}}`)
	)
	return []stoppedCase{
		{"keep-hook: a person", state{}, person, put(unhook), protected, "keep-hook"},
		{"keep-hook: a tool", state{}, gitops, all, protected, "keep-hook"},
		{"keep-hook: another owner", state{}, robot, mine, protected, "keep-hook"},
		{"keep-hook: another owner, by a custodian", state{}, operator, mine, protected, "keep-hook"},
		{"keep-hook: the latch alone", state{}, person, hookOnly, protected, "keep-hook"},
		{"keep-hook: the evidence", state{}, gitops, merge(`{"metadata":{"annotations":null}}`), protected, "keep-hook"},
		{"keep-hook: the evidence of a Machine without hook", state{bare: true}, gitops, merge(`{"metadata":{"annotations":null}}`), "evidence", "keep-hook"},
		{"keep-hook: a worker's evidence", state{worker: true}, person, merge(`{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{}"}}}`), "", "keep-hook"},
		{"keep-hook: evidence that comes with the label", state{worker: true}, gitops, merge(`{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{}"},"labels":{"machine.openshift.io/cluster-api-machine-role":"master"}}}`), "", "keep-hook"},
		{"keep-hook: deleting, the latch alone", state{deleting: true}, gitops, hookOnly, going, "keep-hook"},
		{"keep-hook: deleting, another owner", state{deleting: true}, person, mine, going, "keep-hook"},
		{"keep-hook: a custodian's drop is the webhook's", state{}, operator, all, protected, registrations.ClosedWebhook},
		{"early-release: is the webhook's", state{deleting: true}, operator, all, going, registrations.ClosedWebhook},

		{"no-regain: a tool", state{escaped: true}, gitops, apply(appliedHook), "latch evidence deleting", "no-regain"},
		{"no-regain: a person", state{escaped: true}, person, regain, "latch evidence deleting", "no-regain"},
		{"no-regain: a custodian", state{escaped: true}, operator, regain, "latch evidence deleting", "no-regain"},
		{"no-regain: the latch alone", state{freed: true}, holdfast, merge(`{"spec":{"lifecycleHooks":{"preTerminate":[{"name":"EtcdQuorumLatch","owner":"holdfast"}]}}}`),
			"evidence deleting", "no-regain"},

		{"automation-release: a service account", state{deleting: true}, gitops, put(unhook), going, "automation-release"},
		{"automation-release: by a pattern", state{deleting: true}, robot, all, going, "automation-release"},
		{"automation-release: by a group", state{deleting: true}, deployer, jsonPatch(`[{"op":"remove","path":"/spec/lifecycleHooks/preDrain/0"}]`), going, "automation-release"},

		{"keep-finalizer: live", state{}, gitops, unbound, protected, "keep-finalizer"},
		{"keep-finalizer: deleting, by a custodian", state{deleting: true}, operator, unbound, going, "keep-finalizer"},
		{"keep-finalizer: together with the hook", state{deleting: true}, person, put(func(m *machinev1beta1.Machine) { unhook(m); m.Finalizers = nil }), going, "keep-finalizer"},
		{"keep-finalizer: the latch alone", state{escaped: true}, gitops, unbound, "latch evidence deleting", "keep-finalizer"},
		{"keep-finalizer: let go, a tool", state{freed: true, provider: "process:///own"}, gitops, unbound, "evidence provider process:///own deleting", "keep-finalizer"},
		{"keep-finalizer: let go, a tool drops the provider ID", state{freed: true, provider: "process:///own"}, gitops, merge(`{"spec":{"providerID":null}}`), "evidence provider process:///own deleting", "claim"},
		{"keep-finalizer: let go, a person", state{freed: true, provider: "process:///own"}, person, unbound, "gone", ""},
		{"keep-finalizer: let go, the machine controller is done", state{freed: true, provider: "process:///own"}, machineAPI, unbound, "gone", ""},

		{"keep-role: dropped", state{}, gitops, noLabels, protected, "keep-role"},
		{"keep-role: changed", state{deleting: true}, person, merge(`{"metadata":{"labels":{"machine.openshift.io/cluster-api-machine-type":"worker"}}}`), going, "keep-role"},
		{"keep-role: the latch alone", state{escaped: true}, person, noLabels, "latch evidence deleting", "keep-role"},
		{"keep-role: let go, and its instance runs", state{freed: true}, person, noLabels, "evidence deleting", "keep-role"},

		{"keep-host: a tool", state{}, gitops, remediate, protected, "keep-host"},
		{"keep-host: a tool, and the Machine has no hook", state{bare: true}, deployer, remediate, "evidence", "keep-host"},
		{"keep-host: a MachineHealthCheck's is the webhook's", state{}, machineAPI, remediate, protected, registrations.ClosedWebhook},
		{"keep-host: a person's is the webhook's", state{bare: true}, person, remediate, "evidence", registrations.ClosedWebhook},
		{"keep-host: a custodian's is the webhook's", state{deleting: true}, operator, remediate, going, registrations.ClosedWebhook},
		{"keep-host: a worker", state{worker: true}, gitops, remediate, "remediating", ""},

		{"claim: another provider ID", state{provider: "process:///own"}, gitops, merge(`{"spec":{"providerID":"process:///another"}}`), protected + " provider process:///own", "claim"},
		{"claim: no provider ID, by a person", state{provider: "process:///own"}, person, merge(`{"spec":{"providerID":null}}`), protected + " provider process:///own", "claim"},
		{"claim: a first provider ID", state{}, controllers, merge(`{"spec":{"providerID":"process:///own"}}`), protected + " provider process:///own", ""},
		{"claim: another host", state{host: "machines/own"}, gitops, merge(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":"machines/another"}}}`), protected + " host machines/own", "claim"},
		{"claim: another host, by the Machine API", state{host: "machines/own"}, machineAPI, merge(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":"machines/another"}}}`), protected + " host machines/own", "claim"},
		{"claim: another provider ID, by the Machine API", state{provider: "process:///own"}, machineAPI, merge(`{"spec":{"providerID":"process:///another"}}`), protected + " provider process:///own", "claim"},
		{"claim: the host's UID", state{provider: "baremetalhost:///machines/own"}, machineAPI, merge(`{"spec":{"providerID":"baremetalhost:///machines/own/1"}}`), protected + " provider baremetalhost:///machines/own/1", ""},
		{"claim: none, by the Machine API", state{provider: "process:///own"}, machineAPI, merge(`{"spec":{"providerID":null}}`), protected + " provider process:///own", "claim"},
		{"claim: none, by a person who lifted the rule", state{provider: "process:///own", override: "claim: it is a twin"}, person, merge(`{"spec":{"providerID":null}}`), protected + ` override "claim: it is a twin" by system:admin provider process:///own`, registrations.ClosedWebhook},
		{"claim: a worker's, by a tool", state{worker: true}, gitops, merge(`{"spec":{"providerID":"process:///master"}}`), "", "claim"},
		{"claim: a worker's, by a person", state{worker: true}, person, merge(`{"metadata":{"annotations":{"openstack-resourceId":"master"}}}`), "", "claim"},
		{"claim: a worker's, by a custodian", state{worker: true}, operator, merge(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":"machines/master"}}}`), "", "claim"},
		{"claim: a worker's, by the Machine API", state{worker: true, provider: "process:///own"}, machineAPI, merge(`{"spec":{"providerID":"process:///another"}}`), "provider process:///another", ""},
		{"claim: none of a worker, by a tool", state{worker: true, provider: "process:///own"}, gitops, merge(`{"spec":{"providerID":null}}`), "provider process:///own", "claim"},
		{"claim: none of a worker, by a person", state{worker: true, provider: "process:///own"}, person, merge(`{"spec":{"providerID":null}}`), "", ""},

		{"adopt: a MachineSet", state{}, controllers, merge(owned("machine.openshift.io/v1beta1", "MachineSet", true)), protected, "adopt"},
		{"adopt: a MachineDeployment, by a person", state{bare: true}, person, merge(owned("cluster.x-k8s.io/v1beta1", "MachineDeployment", true)), "evidence", "adopt"},
		{"adopt: a ControlPlaneMachineSet", state{}, controllers, merge(owned("machine.openshift.io/v1", "ControlPlaneMachineSet", true)), protected + " owned by ControlPlaneMachineSet", ""},
		{"adopt: a ConfigMap", state{}, gitops, merge(owned("v1", "ConfigMap", false)), protected + " owned by ConfigMap", ""},
		{"adopt: a worker", state{worker: true}, controllers, merge(owned("machine.openshift.io/v1beta1", "MachineSet", true)), "owned by MachineSet", ""},

		{"escape-hatch: a person, all hooks", state{deleting: true}, person, put(unhook), going, "escape-hatch"},
		{"escape-hatch: a person, and the latch stays behind", state{deleting: true}, person, merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`), "latch evidence deleting", ""},
		{"escape-hatch: a person, the latch that stood alone", state{escaped: true}, person, put(unhook), "latch evidence deleting", "escape-hatch"},
		{"automation-release: the latch that stood alone", state{escaped: true}, gitops, put(unhook), "latch evidence deleting", "automation-release"},
		{"early-release: the latch that stood alone is the webhook's", state{escaped: true}, operator, put(unhook), "latch evidence deleting", registrations.ClosedWebhook},
		{"escape-hatch: system:admin", state{deleting: true}, admin, merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`), "latch evidence deleting", ""},
		{"escape-hatch: a responder's service account", state{deleting: true}, emergency, merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`), "latch evidence deleting", ""},

		{"cluster-etcd-operator adds its hook", state{bare: true, naked: true}, operator, regain, "hook", ""},
		{"Holdfast refreshes the evidence", state{}, holdfast, merge(`{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{}"}}}`), "hook latch other evidence", ""},
		{"override: by automation, signed by a person", state{}, gitops, merge(`{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: forged","holdfast.dev/override-by":"alice 2026-11-22T10:00:00Z"}}}`), protected, "override"},
		{"override: by a person, signed by another", state{}, person, merge(`{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: forged","holdfast.dev/override-by":"bob 2026-11-22T10:00:00Z"}}}`), protected, "override"},
		{"an override", state{}, person, merge(`{"metadata":{"annotations":{"holdfast.dev/override":"held: x"}}}`), protected + ` override "held: x" by `, ""},
		{"a heartbeat", state{}, gitops, merge(`{"metadata":{"labels":{"heartbeat":"1"}}}`), protected, ""},
		{"a tool's own entry", state{}, gitops, apply(appliedOwn), "hook Backup=gitops latch evidence", ""},
		{"another finalizer", state{}, person, jsonPatch(`[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/other"}]`), protected, ""},
		{"a worker's labels and finalizers", state{worker: true}, gitops, merge(`{"metadata":{"labels":null,"finalizers":null}}`), "", ""},
	}
}

func (f *fixture) checkStopped(t *testing.T, name string, c stoppedCase) {
	m := f.get(t, name)
	err := c.send(t.Context(), f.client(t, c.user, nil), m, false)
	switch c.denied {
	case "":
		if err != nil {
			t.Error(err)
		}
	case registrations.ClosedWebhook:
		if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), registrations.ClosedWebhook) {
			t.Errorf("error is %v", err)
		}
	default:
		policy := registrations.MachinePolicy
		if c.denied == string(quorum.RuleClaim) {
			policy = registrations.InstancePolicy
		}
		if deniedBy(err) != policy || !strings.Contains(err.Error(), "denied request: Refused ("+c.denied+"): ") || !strings.Contains(err.Error(), "Machine "+name) {
			t.Errorf("error is %v", err)
		}
	}
	if got := describe(f.get(t, name)); got != c.stored {
		t.Errorf("stored %q, want %q", got, c.stored)
	}
}

// up are the cases of TestAPIServer once more, with the policies at work: f.check wants every denial in
// the webhooks' words and on record, so none may come from a policy. It needs one of each rule and
// kind, not all.
func up() (out []verdictCase) {
	var last string
	for _, c := range cases() {
		kind, _, _ := strings.Cut(c.name, ":")
		if strings.HasPrefix(c.name, "keep-") || strings.Contains(c.name, "deleting") || kind != last || c.user == operator {
			out = append(out, c)
		}
		last = kind
	}
	return out
}

// testRecords has the rule own-records, which no webhook is called for.
func (f *fixture) testRecords(t *testing.T) {
	record := func(in, name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: name}}
	}
	for _, name := range []string{"holdfast-system", "openshift-etcd"} {
		must(t, client.IgnoreAlreadyExists(f.direct.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})))
	}
	denied := func(what string, err error, want bool) {
		t.Helper()
		if want != (deniedBy(err) == registrations.RecordsPolicy) || !want && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct{ in, name string }{
		{namespace, machineapi.RecordsName}, {namespace, machineapi.LedgerName}, {"holdfast-system", "holdfast-ring"},
		{"openshift-etcd", "etcd-membership"}, {"openshift-etcd", "etcd-endpoints"},
	} {
		name := c.name
		garble := client.RawPatch(types.MergePatchType, []byte(`{"data":{"zz":"garbage"},"immutable":true}`))
		for _, user := range []string{person, admin, gitops, deployer, machineAPI} {
			denied(user+" creates "+name, f.client(t, user, nil).Create(t.Context(), record(c.in, name)), true)
		}
		made := record(c.in, name)
		made.Data, made.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
		made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "o", UID: "u"}}
		must(t, f.client(t, holdfast, nil).Create(t.Context(), made))
		stored := record(c.in, name)
		must(t, f.direct.Get(t.Context(), client.ObjectKeyFromObject(stored), stored))
		for what, change := range map[string]func(*corev1.ConfigMap){
			"writes it as it is": func(*corev1.ConfigMap) {}, // as the migration to another encryption key does
			"gives it an owner":  func(m *corev1.ConfigMap) { m.OwnerReferences[0].Name = "gone" },
			"adds data":          func(m *corev1.ConfigMap) { m.BinaryData = map[string][]byte{"zz": {0}} },
			"labels it":          func(m *corev1.ConfigMap) { m.Labels = map[string]string{"a": "b"} },
			"annotates it":       func(m *corev1.ConfigMap) { m.Annotations["a"] = "b" },
			"keeps it":           func(m *corev1.ConfigMap) { m.Finalizers = []string{"example.com/a"} },
		} {
			next := stored.DeepCopy()
			change(next)
			for _, user := range []string{person, gitops} {
				denied(user+" "+what+": "+name, f.client(t, user, nil).Update(t.Context(), next.DeepCopy(), client.DryRunAll), what != "writes it as it is")
			}
		}
		for _, user := range []string{person, admin, gitops, deployer, machineAPI} {
			denied(user+" writes "+name, f.client(t, user, nil).Patch(t.Context(), record(c.in, name), garble), true)
		}
		denied("a tool deletes "+name, f.client(t, gitops, nil).Delete(t.Context(), record(c.in, name)), true)
		denied("a tool deletes all", f.client(t, gitops, nil).DeleteAllOf(t.Context(), record(c.in, name), client.InNamespace(c.in)), true)
		denied("a person deletes "+name, f.client(t, person, nil).Delete(t.Context(), record(c.in, name)), false)
	}
	must(t, f.client(t, gitops, nil).Create(t.Context(), record(namespace, "another")))
	must(t, f.client(t, gitops, nil).Create(t.Context(), record("openshift-etcd", machineapi.LedgerName)))

	// Pods that the quorum guard's budget would count.
	must(t, f.direct.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd", Name: machineapi.GuardName}}))
	form := machineapi.QuorumGuardForm{Namespace: "openshift-etcd", Image: "holdfast", Secret: "etcd-client"}
	pod := func(name string) *corev1.Pod {
		p := form.Pod("n", netip.MustParseAddr("10.0.0.1"), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "u"}})
		p.Name = name
		return p
	}
	bare := pod("bare")
	bare.Labels = nil
	must(t, f.client(t, gitops, nil).Create(t.Context(), bare))
	must(t, f.client(t, holdfast, nil).Create(t.Context(), pod("guard")))
	for _, user := range []string{person, admin, gitops, deployer} {
		c := f.client(t, user, nil)
		denied(user+" creates a guard pod", c.Create(t.Context(), pod("another")), true)
		for what, p := range map[string]struct {
			name, patch string
			denied      bool
		}{
			"labels a pod as a guard":     {"bare", `{"metadata":{"labels":{"app.kubernetes.io/name":"holdfast-quorum-guard"}}}`, true},
			"takes a guard's label":       {"guard", `{"metadata":{"labels":{"app.kubernetes.io/name":null}}}`, true},
			"makes a guard its own":       {"guard", `{"metadata":{"ownerReferences":null}}`, true},
			"changes what a guard runs":   {"guard", `{"spec":{"activeDeadlineSeconds":1}}`, true},
			"annotates a guard":           {"guard", `{"metadata":{"annotations":{"who":"` + user + `"}}}`, false},
			"annotates another":           {"bare", `{"metadata":{"annotations":{"who":"` + user + `"}}}`, false},
			"gives a guard another label": {"guard", `{"metadata":{"labels":{"who":"x"}}}`, false},
		} {
			denied(user+" "+what, c.Patch(t.Context(), pod(p.name), client.RawPatch(types.MergePatchType, []byte(p.patch))), p.denied)
		}
	}
	denied("a tool deletes a guard pod", f.client(t, gitops, nil).Delete(t.Context(), pod("guard"), client.GracePeriodSeconds(0)), false)
}

// testCopied has nobody create a Machine with an override, signed by whomever, while Holdfast is down, which would take it out.
func (f *fixture) testCopied(t *testing.T) {
	for _, annotations := range []map[string]string{
		{quorum.OverrideAnnotation: "one-too-many: copied"}, {quorum.OverrideByAnnotation: quorum.Stamp(person, time.Now())},
		{quorum.OverrideAnnotation: "one-too-many: copied", quorum.OverrideByAnnotation: quorum.Stamp(person, time.Now())},
	} {
		for _, user := range []string{person, gitops, machineAPI, holdfast} {
			m := manifest("copied")
			m.Annotations = annotations
			if err := f.client(t, user, nil).Create(t.Context(), m); deniedBy(err) != registrations.InstancePolicy || !strings.Contains(err.Error(), "denied request: Refused (claim): annotations holdfast.dev/override and ") {
				t.Errorf("%s creates a Machine with %v: %v", user, annotations, err)
			}
		}
	}
	m := manifest("copied-evidence") // it names another Machine, whose UID nobody gives to a new one
	m.Annotations = map[string]string{quorum.EvidenceAnnotation: "{}"}
	must(t, f.client(t, person, nil).Create(t.Context(), m))
}

// testInstance has what the rule claim says without a webhook: of what automation creates, and of a worker's instance.
func (f *fixture) testInstance(t *testing.T) {
	named := func(name string) *machinev1beta1.Machine {
		m := manifest(name)
		m.Labels, m.Spec.ProviderID = map[string]string{quorum.RoleLabel: "worker"}, new("process:///master-0")
		return m
	}
	for _, user := range []string{gitops, operator, deployer} {
		if err := f.client(t, user, nil).Create(t.Context(), named("named")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Refused (claim): only the Machine API says which instance Machine named has") {
			t.Errorf("%s creates a Machine with a provider ID: %v", user, err)
		}
	}
	name := "named-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	must(t, f.client(t, machineAPI, nil).Create(t.Context(), named(name)))
	for _, user := range []string{person, admin, gitops, operator, deployer} {
		err := merge(`{"spec":{"providerID":"process:///master-1"}}`)(t.Context(), f.client(t, user, nil), f.get(t, name), false)
		if deniedBy(err) != registrations.InstancePolicy {
			t.Errorf("%s says which instance a worker has: %v", user, err)
		}
	}
	must(t, merge(`{"spec":{"providerID":"process:///master-1"}}`)(t.Context(), f.client(t, machineAPI, nil), f.get(t, name), false))
}

// testStatus has the rule keep-status, which no webhook is called for.
func (f *fixture) testStatus(t *testing.T) {
	f.machine(t, "status", state{})
	f.machine(t, "status-worker", state{worker: true})
	f.guard.set(ring())
	const (
		harmless = `{"status":{"lastUpdated":"2026-01-01T00:00:00Z","errorMessage":"x","conditions":[{"type":"Drained","status":"False","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
		instance = `{"status":{"providerStatus":{"instanceId":"i-of-a-master"}}}`
		other    = `{"status":{"providerStatus":{"instanceId":"i-of-another"}}}`
		node     = `{"status":{"nodeRef":{"kind":"Node","name":"master-0"}}}`
		noNode   = `{"status":{"nodeRef":null}}`
		moved    = `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.2"}]}}`
		gone     = `{"status":{"addresses":null}}`
		phase    = `{"status":{"phase":"Provisioned"}}`
	)
	for _, name := range []string{"status", "status-worker"} {
		write := func(user, body string) error {
			return f.client(t, user, nil).Status().Patch(t.Context(), f.get(t, name), client.RawPatch(types.MergePatchType, []byte(body)))
		}
		for _, user := range []string{machineAPI, migration} {
			for _, body := range []string{instance, node, moved} {
				if err := write(user, body); err != nil {
					t.Errorf("%s: %s writes %s: %v", name, user, body, err)
				}
			}
		}
		before := f.get(t, name)
		for _, user := range []string{person, admin, gitops, operator, deployer} {
			for _, body := range []string{other, `{"status":{"providerStatus":null}}`, strings.Replace(node, "master-0", "master-1", 1), noNode, strings.Replace(moved, ".2", ".3", 1), gone, phase} {
				err := write(user, body)
				if deniedBy(err) != registrations.StatusPolicy || !strings.Contains(err.Error(), "denied request: Refused (keep-status): where Machine "+name+" runs") {
					t.Errorf("%s: %s writes %s: %v", name, user, body, err)
				}
			}
			for _, body := range []string{harmless, instance, node, moved} { // but for the first they change nothing
				if err := write(user, body); err != nil {
					t.Errorf("%s: %s writes %s: %v", name, user, body, err)
				}
			}
			must(t, f.client(t, user, nil).Patch(t.Context(), f.get(t, name), client.RawPatch(types.MergePatchType, []byte(other)))) // not by this way either
		}
		after := f.get(t, name)
		if after.Status.NodeRef.Name != "master-0" || string(after.Status.ProviderStatus.Raw) != string(before.Status.ProviderStatus.Raw) ||
			!slices.Equal(after.Status.Addresses, before.Status.Addresses) || *after.Status.Phase != "Running" || *after.Status.ErrorMessage != "x" {
			t.Errorf("%s: stored %+v", name, after.Status)
		}
	}
	elsewhere := manifest("status")
	elsewhere.Namespace = "elsewhere"
	must(t, f.admin.Create(t.Context(), elsewhere))
	must(t, f.client(t, person, nil).Status().Patch(t.Context(), elsewhere, client.RawPatch(types.MergePatchType, []byte(instance))))
	if n := f.guard.total(); n != 0 {
		t.Errorf("the webhooks were called %d times", n)
	}
}

// crd is the Machine CRD as stored.
func (f *fixture) crd(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	must(t, f.direct.Get(t.Context(), client.ObjectKey{Name: machineapi.CRDName}, crd))
	return crd
}

// The changes of the CRD that the tests make: one that has no place for the hooks any more, one that
// has, and one of its metadata.
const (
	prunes   = `[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/lifecycleHooks"}]`
	harmless = `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/new","value":{"type":"string"}}]`
	mirrors  = `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/authoritativeAPI","value":{"type":"string","default":"ClusterAPI"}}]`
	labels   = `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`
)

// homeRequests are those that the rule home is about.
func (f *fixture) homeRequests(t *testing.T) map[string]func(c client.Client, dryRun ...string) error {
	t.Helper()
	ctx := t.Context()
	return map[string]func(c client.Client, dryRun ...string) error{
		"namespace delete": func(c client.Client, dryRun ...string) error {
			return c.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, &client.DeleteOptions{DryRun: dryRun})
		},
		"CRD delete": func(c client.Client, dryRun ...string) error {
			return c.Delete(ctx, f.crd(t), &client.DeleteOptions{DryRun: dryRun})
		},
		"CRD delete, orphaning": func(c client.Client, dryRun ...string) error {
			return c.Delete(ctx, f.crd(t), &client.DeleteOptions{DryRun: dryRun, PropagationPolicy: new(metav1.DeletePropagationOrphan)})
		},
		"CRD deletecollection": func(c client.Client, dryRun ...string) error {
			return c.DeleteAllOf(ctx, f.crd(t), client.MatchingFields{"metadata.name": machineapi.CRDName}, &client.DeleteAllOfOptions{DeleteOptions: client.DeleteOptions{DryRun: dryRun}})
		},
		"CRD update that gives hooks a default": func(c client.Client, dryRun ...string) error {
			patch := fmt.Sprintf("["+inHooks+"]", "preDrain", "remark")
			return c.Patch(ctx, f.crd(t), client.RawPatch(types.JSONPatchType, []byte(patch)), &client.PatchOptions{DryRun: dryRun})
		},
		"CRD update that gives the status a default": func(c client.Client, dryRun ...string) error {
			return c.Patch(ctx, f.crd(t), client.RawPatch(types.JSONPatchType, []byte(mirrors)), &client.PatchOptions{DryRun: dryRun})
		},
		"CRD update that prunes": func(c client.Client, dryRun ...string) error {
			return c.Patch(ctx, f.crd(t), client.RawPatch(types.JSONPatchType, []byte(prunes)), &client.PatchOptions{DryRun: dryRun})
		},
	}
}

// testHome has the rule home, for everybody.
func (f *fixture) testHome(t *testing.T) {
	for name, send := range f.homeRequests(t) {
		for _, user := range []string{person, gitops, holdfast} {
			f.guard.set(ring())
			err := send(f.client(t, user, nil))
			f.answered(t, &verdictCase{recorded: []string{"home denied"}}, false, err, nil)
			if f.guard.total() != 1 {
				t.Errorf("%s by %s: %d calls", name, user, f.guard.total())
			}
		}
		f.guard.set(nil)
		if err := send(f.client(t, person, nil)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "could not read the Machines") {
			t.Errorf("%s while the Machines cannot be read: %v", name, err)
		}
		f.guard.set(ring(func(s *quorum.Snapshot) { s.Machines = nil }))
		if err := send(f.client(t, person, nil), metav1.DryRunAll); err != nil || f.guard.total() != 1 {
			t.Errorf("%s while no Machine is hooked: %v, %d calls", name, err, f.guard.total())
		}
	}
	ctx, c := t.Context(), f.client(t, person, nil)
	f.guard.set(ring())
	must(t, c.Patch(ctx, f.crd(t), client.RawPatch(types.JSONPatchType, []byte(harmless))))
	if calls := f.guard.total(); calls != 1 {
		t.Errorf("a change of the CRD's spec was answered with %d calls", calls)
	}
	f.guard.set(ring())
	must(t, c.Patch(ctx, f.crd(t), client.RawPatch(types.JSONPatchType, []byte(labels))))
	other := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "no-home"}}
	must(t, c.Create(ctx, other))
	must(t, c.Delete(ctx, other))
	if calls := f.guard.total(); calls != 0 {
		t.Errorf("requests that are not about the Machines' home were answered with %d calls", calls)
	}
}

// testHomeStopped has the same requests while no webhook answers for the rule.
func (f *fixture) testHomeStopped(t *testing.T) {
	c := f.client(t, person, nil)
	for name, send := range f.homeRequests(t) {
		if err := send(c); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), registrations.HomeWebhook) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, c.Patch(t.Context(), f.crd(t), client.RawPatch(types.JSONPatchType, []byte(labels)), client.DryRunAll))
}
