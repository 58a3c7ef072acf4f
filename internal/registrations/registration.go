// Package registrations makes what the API server has to know of Holdfast: where its webhooks are, for which
// requests it calls them, and the policies that it evaluates itself. It is generated from the flags that quorum decides by, so that
// the two agree (Registrations, Policies).
//
// A running manager keeps all that in the cluster and serves the webhooks with a certificate that the
// registrations vouch for. Every replica runs:
//
//	Registrar           keeps the registrations, above all on the elected replica
//	Files, SelfSigned   where certificate and CA come from
//	Trust               whom the registrations are to trust: the CA in use, and the one before for a day
//	Live                what the registrations hold now
//	Source              serves a new certificate only once they vouch for it, and says whether they do
//	SelfCall            shows that the API server reaches the webhooks, so that they may fail closed
//	FirstRead           whether a replica has asked etcd
//
// The first replica registers itself before it is ready, since a Service routes to no pod that is not ready. So
// readiness waits for the registrations, and not for the self-call, which needs a ready replica; until it has come
// back, the webhooks fail open.
package registrations

import (
	"fmt"
	"io"
	"strings"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// Name is the name of both registrations.
const Name = "holdfast"

// The webhooks, by the names that people see in errors and the audit log.
const (
	RepairWebhook = "repair.machines.holdfast.dev"       // mutating
	ClosedWebhook = "guard-closed.machines.holdfast.dev" // validating; what it guards is refused while it is down
	OpenWebhook   = "guard-open.machines.holdfast.dev"   // validating; what it guards passes while it is down
	HomeWebhook   = "guard-home.machines.holdfast.dev"   // validating; the rule home, refused while it is down
	KeeperWebhook = "warn-keepers.machines.holdfast.dev" // validating; MachineSets and MachineHealthChecks, which it never refuses
	SetWebhook    = "check-set.machines.holdfast.dev"    // validating; full mode: the ControlPlaneMachineSet
	ScaleWebhook  = "guard-scale.machines.holdfast.dev"  // validating; full mode: what may take the set's Machines away, refused while it is down
)

// Service is where the API server finds the webhooks in a cluster.
type Service struct {
	Namespace, Name string
	Port            int32
}

// Options are what the registrations depend on.
type Options struct {
	URL              string   // https://host:port of the webhook server, outside a cluster
	Service          *Service // instead of URL, in a cluster
	Token            string   // the first segment of the webhooks' paths; "" for none
	CABundle         []byte   // PEM: who signs the webhook server's certificate
	MachineNamespace string
	Identities       admission.Identities
	Enforcement      admission.Enforcement

	HoldfastNamespace string // where Holdfast publishes the ring, "" if nowhere
	EtcdNamespace     string // full mode: where Holdfast publishes etcd's membership; "" in guard mode
	QuorumGuard       bool   // Holdfast keeps the quorum guard in EtcdNamespace
}

// Registrations are the webhook configurations. The validating one has two entries for Machines, and a
// request that touches anything guarded matches exactly one of them: ClosedWebhook fails closed, for
// requests that the hook alone cannot protect against; OpenWebhook fails open, so that people can act while Holdfast is
// down. A third entry guards the Machines' namespace and CRD, a fourth warns about MachineSets and MachineHealthChecks; in full mode two
// more check the ControlPlaneMachineSet.
func Registrations(o Options) (*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration) {
	closed := irreparable(&o.Identities)
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: Name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    RepairWebhook,
			ClientConfig:            o.client(webhooks.MutatePath),
			Rules:                   rules([]string{"machines"}, onCreate, onUpdate),
			FailurePolicy:           new(admissionregistrationv1.Ignore),
			MatchPolicy:             new(admissionregistrationv1.Equivalent),
			NamespaceSelector:       o.namespaces(),
			ObjectSelector:          &metav1.LabelSelector{}, // as the API server stores it
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          new(timeout),
			AdmissionReviewVersions: []string{"v1"},
			// Another webhook may take out what this one put back; then it looks again.
			ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy),
			MatchConditions:    conditions("may-need-a-repair", mendable()),
		}},
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: Name},
	}
	add := func(name string, policy admissionregistrationv1.FailurePolicyType, path string, rules []admissionregistrationv1.RuleWithOperations, conditions []admissionregistrationv1.MatchCondition) {
		if o.Enforcement != admission.Enforce {
			policy = admissionregistrationv1.Ignore // a webhook that only warns or audits must not block requests while it is down
		}
		validating.Webhooks = append(validating.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name:                    name,
			ClientConfig:            o.client(path),
			Rules:                   rules,
			FailurePolicy:           &policy,
			MatchPolicy:             new(admissionregistrationv1.Equivalent),
			NamespaceSelector:       o.namespaces(),
			ObjectSelector:          &metav1.LabelSelector{}, // as the API server stores it
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          new(timeout),
			AdmissionReviewVersions: []string{"v1"},
			MatchConditions:         conditions,
		})
	}
	add(ClosedWebhook, admissionregistrationv1.Fail, webhooks.ValidatePath, rules([]string{"machines"}, onCreate, onUpdate, onDelete), conditions("the-hook-cannot-make-it-good", closed))
	add(OpenWebhook, admissionregistrationv1.Ignore, webhooks.ValidatePath, rules([]string{"machines"}, onCreate, onUpdate, onDelete), conditions("the-hook-makes-it-good", all(touched(), not(closed))))
	add(HomeWebhook, admissionregistrationv1.Fail, webhooks.HomePath, []admissionregistrationv1.RuleWithOperations{
		rule(admissionregistrationv1.ClusterScope, "", "v1", []string{"namespaces"}, onDelete),
		rule(admissionregistrationv1.ClusterScope, apiextensionsv1.GroupName, "v1", []string{"customresourcedefinitions"}, onUpdate, onDelete),
		rule(admissionregistrationv1.NamespacedScope, "metal3.io", "v1alpha1", []string{"baremetalhosts"}, onUpdate, onDelete), // without the CRD there are no such requests
	}, conditions("what-the-machines-live-in", homes(o.MachineNamespace)))
	validating.Webhooks[2].NamespaceSelector = &metav1.LabelSelector{} // CRDs and BareMetalHosts are not in the Machines' namespace
	add(KeeperWebhook, admissionregistrationv1.Ignore, webhooks.KeepersPath, rules([]string{"machinesets", "machinehealthchecks"}, onCreate, onUpdate), conditions("what-keeps-machines", keeps()))
	if o.EtcdNamespace != "" {
		takes := some(all(shrinks(), not(person(&o.Identities))), all(strips(), not(custodian(&o.Identities))))
		sets := func() []admissionregistrationv1.RuleWithOperations {
			return []admissionregistrationv1.RuleWithOperations{
				rule(admissionregistrationv1.NamespacedScope, machinev1.GroupName, machinev1.GroupVersion.Version, []string{"controlplanemachinesets", "controlplanemachinesets/scale"}, onCreate, onUpdate, onDelete),
			}
		}
		add(SetWebhook, admissionregistrationv1.Ignore, webhooks.ControlPlaneSetPath, sets(),
			conditions("what-the-set-wants", all(some(operation("CREATE"), operation("DELETE"), "(object.spec != oldObject.spec)"), not(takes))))
		add(ScaleWebhook, admissionregistrationv1.Fail, webhooks.ControlPlaneSetPath, sets(), conditions("may-take-machines-away", takes))
	}
	return mutating, validating
}

// WriteYAML prints objects as the documents of one YAML stream.
func WriteYAML(w io.Writer, objects ...any) error {
	for _, o := range objects {
		doc, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("webhook registrations: %w", err)
		}
		if _, err := fmt.Fprintf(w, "---\n%s", doc); err != nil {
			return fmt.Errorf("webhook registrations: %w", err)
		}
	}
	return nil
}

// client is where a webhook is called. The server takes the path's first segment for the token.
func (o *Options) client(path string) admissionregistrationv1.WebhookClientConfig {
	at := strings.TrimSuffix(o.URL, "/")
	if o.Token != "" {
		at, path = origin(o.URL), "/"+o.Token+path
	}
	if o.Service != nil {
		return admissionregistrationv1.WebhookClientConfig{CABundle: o.CABundle, Service: &admissionregistrationv1.ServiceReference{
			Namespace: o.Service.Namespace, Name: o.Service.Name, Port: &o.Service.Port, Path: &path,
		}}
	}
	return admissionregistrationv1.WebhookClientConfig{CABundle: o.CABundle, URL: new(at + path)}
}

func (o *Options) namespaces() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": o.MachineNamespace}}
}

// timeout is how long the API server waits for an answer, in seconds.
const timeout int32 = 3

const (
	onCreate = admissionregistrationv1.Create
	onUpdate = admissionregistrationv1.Update
	onDelete = admissionregistrationv1.Delete
)

// rules are one rule for resources of the Machine API.
func rules(resources []string, operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{rule(admissionregistrationv1.NamespacedScope, machinev1beta1.GroupName, "v1beta1", resources, operations...)}
}

func rule(scope admissionregistrationv1.ScopeType, group, version string, resources []string, operations ...admissionregistrationv1.OperationType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: operations,
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources, Scope: &scope,
		},
	}
}

func conditions(name, expression string) []admissionregistrationv1.MatchCondition {
	return []admissionregistrationv1.MatchCondition{{Name: name, Expression: expression}}
}
