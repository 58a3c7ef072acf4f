package webhooks_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// request is how a change is sent. m is the Machine as stored.
type request func(ctx context.Context, c client.Client, m *machinev1beta1.Machine, dryRun bool) error

// put replaces the Machine by a changed copy.
func put(change func(*machinev1beta1.Machine)) request {
	return func(ctx context.Context, c client.Client, m *machinev1beta1.Machine, dryRun bool) error {
		next := m.DeepCopy()
		change(next)
		var options []client.UpdateOption
		if dryRun {
			options = append(options, client.DryRunAll)
		}
		return c.Update(ctx, next, options...)
	}
}

func patched(kind types.PatchType, body string) request {
	return func(ctx context.Context, c client.Client, m *machinev1beta1.Machine, dryRun bool) error {
		var options []client.PatchOption
		if dryRun {
			options = append(options, client.DryRunAll)
		}
		if kind == types.ApplyPatchType {
			options = append(options, client.FieldOwner("gitops"), client.ForceOwnership)
		}
		body := strings.NewReplacer("NAME", m.Name, "UID", string(m.UID)).Replace(body)
		return c.Patch(ctx, m.DeepCopy(), client.RawPatch(kind, []byte(body)), options...)
	}
}

func merge(body string) request     { return patched(types.MergePatchType, body) }
func jsonPatch(body string) request { return patched(types.JSONPatchType, body) }

// apply is server-side apply with force, as GitOps tools use it.
func apply(body string) request { return patched(types.ApplyPatchType, body) }

func remove(ctx context.Context, c client.Client, m *machinev1beta1.Machine, dryRun bool) error {
	var options []client.DeleteOption
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	return c.Delete(ctx, m.DeepCopy(), options...)
}

// removeAll is a deletecollection that matches the Machine alone.
func removeAll(ctx context.Context, c client.Client, m *machinev1beta1.Machine, dryRun bool) error {
	options := []client.DeleteAllOfOption{client.InNamespace(namespace), client.MatchingFields{"metadata.name": m.Name}}
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	return c.DeleteAllOf(ctx, &machinev1beta1.Machine{}, options...)
}

// remediate has bare metal's actuator restart the Machine's host.
func remediate(ctx context.Context, c client.Client, m *machinev1beta1.Machine, dryRun bool) error {
	return merge(`{"metadata":{"annotations":{"host.metal3.io/external-remediation":""}}}`)(ctx, c, m, dryRun)
}

func unhook(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{} }

// The manifests that a GitOps tool applies: with an entry of its own, and without any.
const (
	appliedOwn = `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"NAME"},
		"spec":{"lifecycleHooks":{"preDrain":[{"name":"Backup","owner":"gitops"}]}}}`
	appliedHook = `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"NAME"},
		"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`
	applied = `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"NAME"},"spec":{}}`
)

// verdictCase is one request and what must come of it.
type verdictCase struct {
	name    string
	state   state
	cluster *quorum.Snapshot // ring() if nil
	blind   bool             // no Snapshot can be read
	user    string
	send    request

	stored   string   // describe of the Machine afterwards
	recorded []string // rule and verdict of each finding; their lines are what the user must be told
}

const protected = "hook latch evidence"

// controllers is the Machine API's own account.
const controllers = "system:serviceaccount:openshift-machine-api:machine-api-controllers"

// owned is a merge patch that gives a Machine an owner.
func owned(version, kind string, controller bool) string {
	return fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":"owner","uid":"u","controller":%t}]}}`, version, kind, controller)
}

func cases() []verdictCase {
	lost := ring(sick(1))
	return slices.Concat([]verdictCase{
		// claim
		{name: "claim: a host of its own", user: controllers, send: merge(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":"machines/host-1"}}}`),
			stored: protected + " host machines/host-1"},
		{name: "claim: the host is dropped", state: state{host: "machines/host-1"}, user: gitops, send: merge(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":null}}}`),
			stored: protected + " host machines/host-1", recorded: []string{"claim repaired"}},
		{name: "claim: the host is dropped by the Machine API", state: state{host: "machines/host-1"}, user: controllers, send: merge(`{"metadata":{"annotations":{"metal3.io/BareMetalHost":null}}}`),
			stored: protected + " host machines/host-1", recorded: []string{"claim repaired"}},
		{name: "claim: the provider ID is dropped from a Machine that nothing holds, by a person", state: state{bare: true, provider: "process:///own"}, user: person, send: merge(`{"spec":{"providerID":null}}`),
			stored: "evidence", recorded: []string{"keep-finalizer allowed"}},

		{name: "claim: who was first is deleted", state: state{worker: true, provider: "process:///first"}, cluster: ring(late), user: gitops, send: remove,
			stored: "provider process:///first", recorded: []string{"claim denied"}},
		{name: "claim: who was first is deleted with others", state: state{worker: true, provider: "process:///first"}, cluster: ring(late), user: person, send: removeAll,
			stored: "provider process:///first", recorded: []string{"claim denied"}},
		{name: "claim: overridden", state: state{worker: true, provider: "process:///first", override: "claim: it was a mistake"}, cluster: ring(late), user: person, send: remove,
			stored: `override "claim: it was a mistake" by system:admin provider process:///first deleting`, recorded: []string{"claim overridden"}},
		{name: "claim: a worker's deletion, and nothing can be read", state: state{worker: true, provider: "process:///own"}, blind: true, user: gitops, send: remove,
			stored: "provider process:///own", recorded: []string{"claim denied"}},
		{name: "claim: a worker of its own is deleted", state: state{worker: true, provider: "process:///own"}, cluster: ring(elsewhere), user: gitops, send: remove, stored: "provider process:///own deleting"},
		{name: "claim: automation lifts nothing", state: state{worker: true}, user: gitops, send: merge(`{"metadata":{"annotations":{"holdfast.dev/override":"claim: I know"}}}`),
			recorded: []string{"override repaired"}},

		// adopt, besides testKeepers
		{name: "adopt: a MachineSet", user: controllers, send: merge(owned("machine.openshift.io/v1beta1", "MachineSet", true)),
			stored: protected, recorded: []string{"adopt denied"}},
		{name: "adopt: a MachineSet under another kind", cluster: ring(func(s *quorum.Snapshot) { s.MachineSets = []string{"u"} }), user: gitops,
			send: merge(owned("machine.openshift.io/v1", "ControlPlaneMachineSet", true)), stored: protected, recorded: []string{"adopt denied"}},
		{name: "adopt: a MachineSet, by PUT of a person", user: person, send: put(func(m *machinev1beta1.Machine) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "machine.openshift.io/v1beta1", Kind: "MachineSet", Name: "owner", UID: "u", Controller: new(true)}}
		}), stored: protected, recorded: []string{"adopt denied"}},
		{name: "adopt: a MachineDeployment of Cluster API", user: gitops, send: apply(`{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine",` +
			strings.Replace(strings.TrimPrefix(owned("cluster.x-k8s.io/v1beta1", "MachineDeployment", true), "{"), `"metadata":{`, `"metadata":{"name":"NAME",`, 1)),
			stored: protected, recorded: []string{"adopt denied"}},
		{name: "adopt: a ControlPlaneMachineSet", cluster: ring(func(s *quorum.Snapshot) { s.ControlPlaneMachineSets = []string{"u"} }), user: controllers,
			send: merge(owned("machine.openshift.io/v1", "ControlPlaneMachineSet", true)), stored: protected + " owned by ControlPlaneMachineSet"},
		{name: "adopt: a ControlPlaneMachineSet that does not exist", user: controllers, send: merge(owned("machine.openshift.io/v1", "ControlPlaneMachineSet", true)),
			stored: protected, recorded: []string{"adopt denied"}},
		{name: "adopt: a ConfigMap", user: person, send: merge(owned("v1", "ConfigMap", false)),
			stored: protected + " owned by ConfigMap", recorded: []string{"adopt allowed"}},
		{name: "adopt: a worker", state: state{worker: true}, user: controllers, send: merge(owned("machine.openshift.io/v1beta1", "MachineSet", true)),
			stored: "owned by MachineSet"},
		{name: "adopt: a deleting Machine", state: state{deleting: true}, user: controllers, send: merge(owned("machine.openshift.io/v1beta1", "MachineSet", true)),
			stored: protected + " owned by MachineSet deleting"},

		// keep-hook
		{name: "keep-hook: PUT without hooks", user: gitops, send: put(unhook),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: merge patch with an empty list", user: robot, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[]}}}`),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: merge patch with null", user: deployer, send: merge(`{"spec":{"lifecycleHooks":null}}`),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: JSON patch", user: person, send: jsonPatch(`[{"op":"remove","path":"/spec/lifecycleHooks"}]`),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: PUT of other entries keeps their order", state: state{
			before: []machinev1beta1.LifecycleHook{{Name: "AAA", Owner: "aaa"}}, after: []machinev1beta1.LifecycleHook{{Name: "BBB", Owner: "bbb"}},
		}, user: gitops, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"AAA","owner":"aaa"},{"name":"BBB","owner":"bbb"}]}}}`),
			stored: "AAA=aaa hook BBB=bbb latch evidence", recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: another owner", user: gitops, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"mine"}]}}}`),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: the latch alone", user: person, send: merge(`{"spec":{"lifecycleHooks":{"preTerminate":null}}}`),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: the evidence", user: gitops, send: merge(`{"metadata":{"annotations":null}}`),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: another's evidence", user: person, send: merge(`{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{}"}}}`),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: all at once", user: gitops, send: put(func(m *machinev1beta1.Machine) { unhook(m); m.Annotations = nil }),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: a custodian, and it hosts a member", user: operator, send: put(unhook),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: a custodian, and it hosts nothing", cluster: ring(elsewhere), user: operator, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`),
			stored: "evidence"},
		{name: "keep-hook: a custodian, and etcd is unknown", cluster: ring(unknown), user: operator, send: put(unhook),
			stored: protected, recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: of a deleting Machine the latch alone", state: state{deleting: true}, user: gitops, send: merge(`{"spec":{"lifecycleHooks":{"preTerminate":[]}}}`),
			stored: protected + " deleting", recorded: []string{"keep-hook repaired"}},
		{name: "keep-hook: of a deleting Machine the owner", state: state{deleting: true}, user: person, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"mine"}]}}}`),
			stored: protected + " deleting", recorded: []string{"keep-hook repaired"}},
		{name: "the latch comes with the hook", state: state{bare: true, naked: true}, user: operator, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`),
			stored: "hook latch"},
		{name: "a tool applies its own entry", user: gitops, send: apply(appliedOwn),
			stored: "hook Backup=gitops latch evidence"},

		// no-regain
		{name: "no-regain: a tool", state: state{escaped: true}, user: gitops, send: apply(appliedHook),
			stored: "latch evidence deleting", recorded: []string{"no-regain repaired"}},
		{name: "no-regain: a custodian", state: state{escaped: true}, user: holdfast, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`),
			stored: "latch evidence deleting", recorded: []string{"no-regain repaired"}},
		{name: "no-regain: a person, beside an entry of their own", state: state{escaped: true}, user: person, send: put(func(m *machinev1beta1.Machine) {
			m.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{{Name: "AAA", Owner: "aaa"}, hookEntry()}
			m.Spec.LifecycleHooks.PreTerminate = []machinev1beta1.LifecycleHook{latchEntry()}
		}), stored: "AAA=aaa latch evidence deleting", recorded: []string{"no-regain repaired"}},
		{name: "no-regain: the latch alone", state: state{freed: true}, user: operator, send: merge(`{"spec":{"lifecycleHooks":{"preTerminate":[{"name":"EtcdQuorumLatch","owner":"holdfast"}]}}}`),
			stored: "evidence deleting", recorded: []string{"no-regain repaired"}},

		// early-release
		{name: "early-release: it hosts a member", state: state{deleting: true}, user: operator, send: put(unhook),
			stored: protected + " deleting", recorded: []string{"early-release repaired"}},
		{name: "early-release: etcd is unknown", state: state{deleting: true}, cluster: ring(unknown), user: holdfast, send: put(unhook),
			stored: protected + " deleting", recorded: []string{"early-release repaired"}},
		{name: "early-release: nothing can be read", state: state{deleting: true}, blind: true, user: operator, send: put(unhook),
			stored: protected + " deleting", recorded: []string{"early-release repaired"}},
		{name: "early-release: in order, the latch goes with it", state: state{deleting: true}, cluster: ring(elsewhere), user: operator, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`),
			stored: "evidence deleting"},

		// automation-release
		{name: "automation-release: PUT", state: state{deleting: true}, user: gitops, send: put(unhook),
			stored: protected + " deleting", recorded: []string{"automation-release repaired"}},
		{name: "automation-release: by a pattern", state: state{deleting: true}, user: robot, send: merge(`{"spec":{"lifecycleHooks":null}}`),
			stored: protected + " deleting", recorded: []string{"automation-release repaired"}},
		{name: "automation-release: by a group", state: state{deleting: true}, user: deployer, send: jsonPatch(`[{"op":"remove","path":"/spec/lifecycleHooks/preDrain/0"}]`),
			stored: protected + " deleting", recorded: []string{"automation-release repaired"}},
		{name: "automation-release: though it hosts nothing", state: state{deleting: true}, cluster: ring(elsewhere), user: gitops, send: put(unhook),
			stored: protected + " deleting", recorded: []string{"automation-release repaired"}},

		// escape-hatch
		{name: "escape-hatch: a person", state: state{deleting: true}, user: person, send: merge(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`),
			stored: "latch evidence deleting", recorded: []string{"escape-hatch allowed"}},
		{name: "escape-hatch: system:admin with kubectl edit", state: state{deleting: true}, user: admin, send: put(unhook),
			stored: "latch evidence deleting", recorded: []string{"escape-hatch allowed"}},
		{name: "escape-hatch: a responder's service account", state: state{deleting: true}, user: emergency, send: put(unhook),
			stored: "latch evidence deleting", recorded: []string{"escape-hatch allowed"}},
		{name: "escape-hatch: etcd is unknown", state: state{deleting: true}, cluster: ring(unknown), user: person, send: put(unhook),
			stored: "latch evidence deleting", recorded: []string{"escape-hatch allowed"}},
		{name: "escape-hatch: quorum would be lost", state: state{deleting: true}, cluster: lost, user: person, send: put(unhook),
			stored: "latch evidence deleting", recorded: []string{"escape-hatch allowed"}},
		{name: "escape-hatch: quorum would be lost, overridden", state: state{deleting: true, override: "escape-hatch: the rack is on fire"}, cluster: lost, user: person, send: put(unhook),
			stored: `latch evidence override "escape-hatch: the rack is on fire" by system:admin deleting`, recorded: []string{"escape-hatch overridden"}},
		{name: "escape-hatch: an override of another rule", state: state{deleting: true, override: "one-too-many: not this"}, cluster: lost, user: person, send: put(unhook),
			stored: `latch evidence override "one-too-many: not this" by system:admin deleting`, recorded: []string{"escape-hatch allowed"}},
		{name: "escape-hatch: never put back", state: state{escaped: true}, user: holdfast, send: put(func(m *machinev1beta1.Machine) {
			m.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{hookEntry()}
		}), stored: "latch evidence deleting", recorded: []string{"no-regain repaired"}},

		// keep-finalizer
		{name: "keep-finalizer: live", user: gitops, send: merge(`{"metadata":{"finalizers":null}}`),
			stored: protected, recorded: []string{"keep-finalizer denied"}},
		{name: "keep-finalizer: deleting, a person", state: state{deleting: true}, user: person, send: jsonPatch(`[{"op":"remove","path":"/metadata/finalizers"}]`),
			stored: protected + " deleting", recorded: []string{"keep-finalizer denied"}},
		{name: "keep-finalizer: together with the hook", state: state{deleting: true}, user: person, send: put(func(m *machinev1beta1.Machine) { unhook(m); m.Finalizers = nil }),
			stored: protected + " deleting", recorded: []string{"keep-finalizer denied"}},
		{name: "keep-finalizer: the latch alone", state: state{escaped: true}, user: gitops, send: merge(`{"metadata":{"finalizers":null}}`),
			stored: "latch evidence deleting", recorded: []string{"keep-finalizer denied"}},
		{name: "keep-finalizer: let go, and a tool replaces it", state: state{freed: true, provider: "process:///own"}, user: gitops, send: put(func(m *machinev1beta1.Machine) {
			m.Finalizers, m.Spec.ProviderID, m.Annotations = nil, nil, nil
		}), stored: "evidence provider process:///own deleting", recorded: []string{"keep-finalizer repaired", "keep-hook repaired"}},
		{name: "keep-finalizer: let go, and a person takes it off", state: state{freed: true, provider: "process:///own"}, user: person, send: merge(`{"metadata":{"finalizers":null}}`),
			stored: "gone", recorded: []string{"keep-finalizer allowed"}},
		{name: "keep-finalizer: let go, and the machine controller is done", state: state{freed: true, provider: "process:///own"}, user: controllers, send: merge(`{"metadata":{"finalizers":null}}`), stored: "gone"},

		// keep-role
		{name: "keep-role: dropped", user: gitops, send: merge(`{"metadata":{"labels":null}}`),
			stored: protected, recorded: []string{"keep-role denied"}},
		{name: "keep-role: changed", state: state{deleting: true}, user: person, send: merge(`{"metadata":{"labels":{"machine.openshift.io/cluster-api-machine-role":"worker"}}}`),
			stored: protected + " deleting", recorded: []string{"keep-role denied"}},
		{name: "keep-role: the latch alone", state: state{escaped: true}, user: person, send: merge(`{"metadata":{"labels":null}}`),
			stored: "latch evidence deleting", recorded: []string{"keep-role denied"}},

		// keep-host
		{name: "keep-hook: a worker's evidence", state: state{worker: true}, user: gitops, send: merge(`{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{}"}}}`), recorded: []string{"keep-hook repaired"}},
		{name: "keep-host: a tool", user: gitops, send: remediate,
			stored: protected, recorded: []string{"keep-host denied"}},
		{name: "keep-host: a tool, by server-side apply", user: robot, send: apply(`{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"NAME","annotations":{"host.metal3.io/external-remediation":"x"}},"spec":{}}`),
			stored: protected, recorded: []string{"keep-host denied"}},
		{name: "keep-host: a MachineHealthCheck", user: controllers, send: remediate,
			stored: protected + " remediating", recorded: []string{"keep-host allowed"}},
		{name: "keep-host: by PUT of a person", user: person, send: put(func(m *machinev1beta1.Machine) { m.Annotations[quorum.RemediationAnnotation] = "" }),
			stored: protected + " remediating", recorded: []string{"keep-host allowed"}},
		{name: "keep-host: another host is being restarted", cluster: ring(restarting), user: controllers, send: remediate,
			stored: protected, recorded: []string{"keep-host denied"}},
		{name: "keep-host: another Machine is being deleted", cluster: ring(going), user: person, send: remediate,
			stored: protected, recorded: []string{"keep-host denied"}},
		{name: "keep-host: another voter is unhealthy", cluster: lost, user: controllers, send: remediate,
			stored: protected, recorded: []string{"keep-host denied"}},
		{name: "keep-host: overridden", state: state{override: "keep-host: I stand beside it"}, cluster: lost, user: person, send: remediate,
			stored: protected + ` override "keep-host: I stand beside it" by system:admin remediating`, recorded: []string{"keep-host overridden"}},
		{name: "keep-host: an override is for people", state: state{override: "keep-host: I stand beside it"}, cluster: lost, user: controllers, send: remediate,
			stored: protected + ` override "keep-host: I stand beside it" by system:admin`, recorded: []string{"keep-host denied"}},
		{name: "keep-host: its own voter is unhealthy", cluster: ring(sick(0)), user: controllers, send: remediate,
			stored: protected + " remediating", recorded: []string{"keep-host allowed"}},
		{name: "keep-host: etcd is unknown", cluster: ring(unknown), user: person, send: remediate,
			stored: protected, recorded: []string{"keep-host denied"}},
		{name: "keep-host: nothing can be read", blind: true, user: controllers, send: remediate,
			stored: protected, recorded: []string{"keep-host denied"}},
		{name: "keep-host: it hosts nothing", cluster: ring(elsewhere), user: controllers, send: remediate, stored: protected + " remediating"},
		{name: "keep-host: a worker", state: state{worker: true}, blind: true, user: gitops, send: remediate, stored: "remediating"},

		// unprotected-delete
		{name: "unprotected-delete", state: state{bare: true}, user: person, send: remove,
			stored: "evidence", recorded: []string{"unprotected-delete denied"}},
		{name: "unprotected-delete: deletecollection", state: state{bare: true}, user: gitops, send: removeAll,
			stored: "evidence", recorded: []string{"unprotected-delete denied"}},
		{name: "unprotected-delete: overridden", state: state{bare: true, override: "unprotected-delete: rebuilt by hand"}, user: person, send: remove,
			stored: `evidence override "unprotected-delete: rebuilt by hand" by system:admin deleting`, recorded: []string{"unprotected-delete overridden"}},
		{name: "unprotected-delete: it hosts nothing", state: state{bare: true}, cluster: ring(elsewhere), user: gitops, send: remove, stored: "evidence deleting"},
		{name: "unprotected-delete: etcd is unknown", state: state{bare: true}, cluster: ring(unknown), user: person, send: remove,
			stored: "evidence", recorded: []string{"unprotected-delete denied"}},
		{name: "unprotected-delete: nothing can be read", state: state{bare: true}, blind: true, user: person, send: remove,
			stored: "evidence", recorded: []string{"unprotected-delete denied"}},

		// one-too-many
		{name: "one-too-many", cluster: ring(going), user: person, send: remove,
			stored: protected, recorded: []string{"one-too-many denied"}},
		{name: "one-too-many: deletecollection", cluster: ring(going), user: gitops, send: removeAll,
			stored: protected, recorded: []string{"one-too-many denied"}},
		{name: "one-too-many: overridden", state: state{override: "one-too-many: both racks move"}, cluster: ring(going), user: person, send: remove,
			stored: protected + ` override "one-too-many: both racks move" by system:admin deleting`, recorded: []string{"one-too-many overridden", "held allowed"}},
		{name: "one-too-many: a dead voter's Machine passes", cluster: ring(going, sick(0)), user: person, send: remove,
			stored: protected + " deleting", recorded: []string{"held allowed"}},

		// degraded-delete
		{name: "degraded-delete", cluster: ring(sick(1)), user: gitops, send: remove,
			stored: protected, recorded: []string{"degraded-delete denied"}},
		{name: "degraded-delete: overridden", state: state{override: "degraded-delete: it is the sick one's turn next"}, cluster: ring(sick(1)), user: person, send: remove,
			stored: protected + ` override "degraded-delete: it is the sick one's turn next" by system:admin deleting`, recorded: []string{"degraded-delete overridden", "held allowed"}},

		// held
		{name: "held", user: gitops, send: remove,
			stored: protected + " deleting", recorded: []string{"held allowed"}},
		{name: "held: deletecollection", user: person, send: removeAll,
			stored: protected + " deleting", recorded: []string{"held allowed"}},
		{name: "held: etcd is unknown", cluster: ring(unknown), user: person, send: remove,
			stored: protected + " deleting", recorded: []string{"held allowed"}},
		{name: "held: deleted again", state: state{deleting: true}, cluster: ring(going), user: person, send: remove,
			stored: protected + " deleting"},

		// escape-hatch, of the latch that stands alone; etcd_test.go has the hook's
		{name: "escape-hatch: the latch alone", state: state{escaped: true}, user: person, send: merge(`{"spec":{"lifecycleHooks":{"preTerminate":null}}}`),
			stored: "latch evidence deleting", recorded: []string{"escape-hatch repaired"}},

		// override
		{name: "override: a person's is stamped", user: person, send: merge(`{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: planned"}}}`),
			stored: protected + ` override "one-too-many: planned" by alice`, recorded: []string{"override allowed"}},
		{name: "override: with another's stamp", user: person, send: merge(`{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: planned","holdfast.dev/override-by":"bob"}}}`),
			stored: protected + ` override "one-too-many: planned" by alice`, recorded: []string{"override allowed"}},
		{name: "override: a stamp alone", state: state{override: "one-too-many: planned"}, user: person, send: merge(`{"metadata":{"annotations":{"holdfast.dev/override-by":"bob"}}}`),
			stored: protected + ` override "one-too-many: planned" by system:admin`, recorded: []string{"override repaired"}},
		{name: "override: automation's", user: gitops, send: merge(`{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: planned"}}}`),
			stored: protected, recorded: []string{"override repaired"}},
		{name: "override: unclear", user: person, send: merge(`{"metadata":{"annotations":{"holdfast.dev/override":"please"}}}`),
			stored: protected + ` override "please" by alice`, recorded: []string{"override allowed"}},
		{name: "override: taken back", state: state{override: "one-too-many: planned"}, user: person, send: merge(`{"metadata":{"annotations":{"holdfast.dev/override":null,"holdfast.dev/override-by":null}}}`),
			stored: protected, recorded: []string{"override allowed"}},
	})
}

// TestAPIServer has every case against a real API server with the real Machine CRD.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	f := start(t)
	t.Run("rules", func(t *testing.T) {
		for i, c := range cases() {
			t.Run(c.name, func(t *testing.T) { f.check(t, fmt.Sprintf("case-%d", i), c) })
		}
	})
	t.Run("audit log", f.testAuditLog) // of the cases before
	t.Run("create", f.testCreate)
	t.Run("stale", f.testStale)
	t.Run("padded resourceVersion", f.testPaddedVersion)
	t.Run("unprotected-delete while the Machine API is not functional", f.testInstalling)
	t.Run("converges", f.testConverges)
	t.Run("server-side apply drops what it owned", f.testApply)
	t.Run("not called", f.testNotCalled)
	t.Run("undone by another webhook", f.testUndone)
	t.Run("not asked for", f.testNotAsked)
	t.Run("deletecollection of several", f.testCollection)
	t.Run("keepers", f.testKeepers)
	t.Run("control-plane set", f.testControlPlaneSet)
	t.Run("rbac", f.testRBAC)
	t.Run("down", f.testDown) // the last: it stops the webhook server
}

// check sends a case's request twice: as a dry run, which must be answered alike and leave nothing
// behind, and for good.
func (f *fixture) check(t *testing.T, name string, c verdictCase) {
	m := f.machine(t, name, c.state)
	for _, dryRun := range []bool{true, false} {
		switch {
		case c.blind:
			f.guard.set(nil)
		case c.cluster != nil:
			f.guard.set(c.cluster)
		default:
			f.guard.set(ring())
		}
		f.caughtUp(t, m)
		var said warnings
		err := c.send(t.Context(), f.client(t, c.user, &said), m, dryRun)
		f.answered(t, &c, dryRun, err, said.lines)
		now := f.get(t, name)
		if dryRun && (now == nil || now.ResourceVersion != m.ResourceVersion) {
			t.Errorf("the dry run changed the Machine: %s", describe(now))
		}
		if !dryRun {
			if diff := cmp.Diff(c.stored, describe(now)); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
			if now != nil && now.Spec.ProviderSpec.Value != nil && !strings.Contains(string(now.Spec.ProviderSpec.Value.Raw), `"as":"is"`) {
				t.Errorf("what is not Holdfast's changed: %s", now.Spec.ProviderSpec.Value.Raw)
			}
		}
	}
}

// answered checks that the user was told what the rules had to say, all of it and nothing else, and
// that each finding was recorded once.
func (f *fixture) answered(t *testing.T, c *verdictCase, dryRun bool, err error, warned []string) {
	t.Helper()
	var recorded, denial, warnings []string
	for _, f := range f.guard.records() {
		recorded = append(recorded, fmt.Sprintf("%s %s", f.Rule, f.Verdict))
		if f.dryRun != dryRun {
			t.Errorf("dry run %t: recorded as dry run %t", dryRun, f.dryRun)
		}
		if f.Verdict == admission.VerdictDenied {
			denial = append(denial, append(f.Lines, "The rule: "+f.Rule.Page())...)
		} else {
			warnings = append(warnings, f.Lines...)
		}
		if !strings.Contains(f.Lines[0], "("+string(f.Rule)+")") {
			t.Errorf("the text does not name rule %s: %s", f.Rule, f.Lines[0])
		}
	}
	if diff := cmp.Diff(c.recorded, recorded); diff != "" {
		t.Errorf("dry run %t: recorded (-want +got):\n%s", dryRun, diff)
	}
	if diff := cmp.Diff(warnings, warned); diff != "" {
		t.Errorf("dry run %t: warnings (-want +got):\n%s", dryRun, diff)
	}
	switch {
	case denial == nil:
		if err != nil {
			t.Errorf("dry run %t: error is %v", dryRun, err)
		}
	case !apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), ": "+strings.Join(denial, "\n")):
		t.Errorf("dry run %t: error is %v, want a 403 with\n%s", dryRun, err, strings.Join(denial, "\n"))
	}
}

// testCreate creates Machines from copied manifests, as the documented resize does.
func (f *fixture) testCreate(t *testing.T) {
	f.guard.set(ring())
	ctx := t.Context()
	var said warnings
	c := f.client(t, person, &said)

	copied := manifest("copied")
	copied.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{hookEntry()}
	copied.Annotations = map[string]string{
		quorum.EvidenceAnnotation: `{"machineUID":"another"}`, quorum.OverrideAnnotation: "held: copied", quorum.OverrideByAnnotation: "bob", "kept": "yes",
	}
	must(t, c.Create(ctx, copied))
	if got := describe(f.get(t, "copied")); got != "hook latch" || copied.Annotations["kept"] != "yes" {
		t.Errorf("stored %q with %v", got, copied.Annotations)
	}
	f.answered(t, &verdictCase{recorded: []string{"claim repaired"}}, false, nil, said.lines)
	for _, what := range []string{quorum.EvidenceAnnotation, quorum.OverrideAnnotation, quorum.OverrideByAnnotation} {
		if !strings.Contains(strings.Join(said.lines, "\n"), what) {
			t.Errorf("no Warning names %s: %q", what, said.lines)
		}
	}

	latched := manifest("latched")
	latched.Spec.LifecycleHooks.PreTerminate = []machinev1beta1.LifecycleHook{latchEntry()}
	must(t, c.Create(ctx, latched))
	if got := describe(f.get(t, "latched")); got != "" {
		t.Errorf("a latch without a hook was stored: %q", got)
	}

	twin := manifest("twin")
	twin.Spec.ProviderID = new(provider)
	err := c.Create(ctx, twin)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Refused (claim)") || f.get(t, "twin") != nil {
		t.Errorf("another's provider ID: %v", err)
	}

	named := manifest("named")
	named.Spec.ProviderID = new("process:///own")
	err = f.client(t, gitops, nil).Create(ctx, named.DeepCopy())
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Refused (claim)") {
		t.Errorf("a provider ID by automation: %v", err)
	}
	f.guard.set(nil)
	err = c.Create(ctx, named.DeepCopy())
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "could not be read") {
		t.Errorf("a provider ID while nothing can be read: %v", err)
	}
	f.guard.set(ring())
	must(t, c.Create(ctx, named.DeepCopy()))

	unnamed := manifest("")
	unnamed.GenerateName = "unnamed-"
	unnamed.Annotations = map[string]string{quorum.EvidenceAnnotation: "{}"}
	must(t, c.Create(ctx, unnamed))
	if unnamed.Annotations != nil {
		t.Errorf("annotations %v", unnamed.Annotations)
	}

	bad := `{"apiVersion":"machine.openshift.io/v1beta1","kind":"Machine","metadata":{"name":"bad","annotations":{"holdfast.dev/override":"x"}},"spec":{"lifecycleHooks":{"preDrain":"all"}}}`
	err = c.Patch(ctx, &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bad"}},
		client.RawPatch(types.ApplyPatchType, []byte(bad)), client.FieldOwner("test"))
	if err == nil || strings.Contains(err.Error(), "internal error") {
		t.Errorf("a Machine whose hooks are no list: %v", err)
	}
}

// testInstalling deletes a bare Machine before any Machine was Running.
func (f *fixture) testInstalling(t *testing.T) {
	custodian := f.client(t, holdfast, nil)
	m := manifest("installing")
	must(t, custodian.Create(t.Context(), m))
	m.Status = machinev1beta1.MachineStatus{Phase: new("Provisioned"), Addresses: addresses()}
	must(t, custodian.Status().Update(t.Context(), m))

	f.guard.set(ring(installing))
	must(t, f.client(t, gitops, nil).Delete(t.Context(), m))
	if got := describe(f.get(t, m.Name)); got != "deleting" {
		t.Errorf("stored %q", got)
	}
}

// testConverges has tools write their own lists again and again: after the first write nothing changes.
func (f *fixture) testConverges(t *testing.T) {
	entry := machinev1beta1.LifecycleHook{Name: "Backup", Owner: "gitops"}
	all := []struct {
		name  string
		state state
		send  request
	}{
		{"PUT without hooks", state{}, put(unhook)},
		{"PUT without annotations and hooks", state{}, put(func(m *machinev1beta1.Machine) { unhook(m); m.Annotations = nil })},
		{"PUT of its own entry", state{after: []machinev1beta1.LifecycleHook{entry}}, put(func(m *machinev1beta1.Machine) {
			m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{PreDrain: []machinev1beta1.LifecycleHook{entry}}
		})},
		{"PUT of a hook that is gone", state{escaped: true}, put(func(m *machinev1beta1.Machine) {
			m.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{hookEntry()}
		})},
		{"PUT of another owner", state{}, put(func(m *machinev1beta1.Machine) { m.Spec.LifecycleHooks.PreDrain[0].Owner = "mine" })},
		{"merge patch", state{}, merge(`{"spec":{"lifecycleHooks":{"preDrain":[{"name":"Backup","owner":"gitops"}],"preTerminate":null}}}`)},
		{"server-side apply of its own entry", state{}, apply(appliedOwn)},
		{"server-side apply of a hook that is gone", state{escaped: true}, apply(appliedHook)},
		{"server-side apply without hooks", state{}, apply(applied)},
		{"automation's override", state{}, merge(`{"metadata":{"annotations":{"holdfast.dev/override":"one-too-many: mine"}}}`)},
	}
	stored := make([]string, len(all)) // resourceVersions
	for i, c := range all {
		f.machine(t, fmt.Sprintf("converges-%d", i), c.state)
	}
	f.guard.set(ring())
	tool := f.client(t, gitops, nil)
	for write := range 5 {
		// managedFields are ordered by their times, in seconds. The first write must not share one with
		// what was before it, or the next may reorder them; and a later second must not matter.
		if write == 0 || write == 3 {
			nextSecond(t)
		}
		for i, c := range all {
			name := fmt.Sprintf("converges-%d", i)
			if err := c.send(t.Context(), tool, f.get(t, name), false); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			m := f.get(t, name)
			if write > 0 && m.ResourceVersion != stored[i] {
				t.Errorf("%s: write %d changed the Machine again: %s", c.name, write+1, describe(m))
			}
			stored[i] = m.ResourceVersion
		}
	}
}

// nextSecond waits until the clock shows another second than now.
func nextSecond(t *testing.T) {
	t.Helper()
	now := time.Now().Unix()
	gomega.NewWithT(t).Eventually(func() int64 { return time.Now().Unix() }).WithTimeout(2 * time.Second).WithPolling(5 * time.Millisecond).ShouldNot(gomega.Equal(now))
}

// testApply has a tool own the hook by itself, so that an apply without it takes it off.
func (f *fixture) testApply(t *testing.T) {
	f.guard.set(ring())
	var said warnings
	ctx, tool := t.Context(), f.client(t, gitops, &said)
	m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "applied", Namespace: namespace}}
	owned := strings.Replace(appliedHook, `"name":"NAME"`, `"name":"NAME","labels":{"machine.openshift.io/cluster-api-machine-role":"master"}`, 1)
	stripped := strings.Replace(applied, `"name":"NAME"`, `"name":"NAME","labels":{"machine.openshift.io/cluster-api-machine-role":"master"}`, 1)
	must(t, apply(owned)(ctx, tool, m, false))
	if got := describe(f.get(t, m.Name)); got != "hook latch" {
		t.Fatalf("created with %q", got)
	}
	var first string
	for i := range 5 {
		f.guard.set(ring())
		said.lines = nil
		must(t, apply(stripped)(ctx, tool, m, false))
		now := f.get(t, m.Name)
		if got := describe(now); got != "hook latch" {
			t.Fatalf("write %d: stored %q", i+1, got)
		}
		if i == 0 {
			f.answered(t, &verdictCase{recorded: []string{"keep-hook repaired"}}, false, nil, said.lines)
			first = now.ResourceVersion
		} else if now.ResourceVersion != first {
			t.Fatalf("write %d changed the Machine again", i+1)
		}
	}
}

// testNotCalled makes the requests that no webhook has to see, and counts.
func (f *fixture) testNotCalled(t *testing.T) {
	f.machine(t, "quiet", state{})
	f.machine(t, "quiet-worker", state{worker: true})
	f.guard.set(ring())
	ctx, c := t.Context(), f.client(t, gitops, nil)
	for _, name := range []string{"quiet", "quiet-worker"} {
		m := f.get(t, name)
		m.Annotations = map[string]string{"heartbeat": "1"}
		if name == "quiet" {
			m.Annotations[quorum.EvidenceAnnotation] = evidenceOf(m)
		}
		m.Labels["heartbeat"] = "1"
		m.Finalizers = append(m.Finalizers, "example.com/other")
		m.Spec.Taints = nil
		must(t, c.Update(ctx, m))
		must(t, c.Update(ctx, m)) // a no-op
		m.Status.Phase = new("Failed")
		must(t, c.Status().Update(ctx, m))
		must(t, c.Get(ctx, client.ObjectKeyFromObject(m), m))
	}
	worker := f.get(t, "quiet-worker")
	worker.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{{Name: "AAA", Owner: "aaa"}}
	worker.Finalizers = nil
	must(t, c.Update(ctx, worker))
	fresh := manifest("new-worker")
	fresh.Labels = nil
	must(t, c.Create(ctx, fresh))
	must(t, c.Delete(ctx, fresh)) // it has no instance
	elsewhere := manifest("elsewhere")
	elsewhere.Namespace = "elsewhere"
	elsewhere.Annotations = map[string]string{quorum.OverrideAnnotation: "x"}
	must(t, c.Create(ctx, elsewhere))
	must(t, c.Delete(ctx, elsewhere))
	if n := f.guard.total(); n != 0 {
		t.Errorf("the webhooks were called %d times", n)
	}

	must(t, c.Delete(ctx, worker))
	if f.guard.calls[webhooks.MutatePath] != 0 || f.guard.calls[webhooks.ValidatePath] != 1 {
		t.Errorf("the deletion of a worker with a Node was answered with calls %v", f.guard.calls)
	}
	f.guard.set(ring())
	must(t, c.Patch(ctx, f.get(t, "quiet"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`))))
	if f.guard.calls[webhooks.MutatePath] != 1 || f.guard.calls[webhooks.ValidatePath] != 0 {
		// Repaired, the object is as it was, so no condition of the validating webhooks holds.
		t.Errorf("a strip was answered with calls %v", f.guard.calls)
	}
}

// testCollection deletes two bare Machines at once: the API server sends one request for each.
func (f *fixture) testCollection(t *testing.T) {
	for _, name := range []string{"both-1", "both-2"} {
		m := f.machine(t, name, state{bare: true})
		m.Labels["both"] = "yes"
		must(t, f.admin.Update(t.Context(), m))
	}
	f.guard.set(ring(elsewhere))
	must(t, f.client(t, person, nil).DeleteAllOf(t.Context(), &machinev1beta1.Machine{}, client.InNamespace(namespace), client.MatchingLabels{"both": "yes"}))
	for _, name := range []string{"both-1", "both-2"} {
		if got := describe(f.get(t, name)); got != "evidence deleting" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if calls := f.guard.calls[webhooks.ValidatePath]; calls != 2 {
		t.Errorf("%d calls", calls)
	}
}
