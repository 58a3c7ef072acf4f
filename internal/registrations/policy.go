package registrations

import (
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

// The policies, each with a binding of the same name. The API server evaluates them itself, after the
// mutating webhooks and before the validating ones.
const (
	// MachinePolicy holds the rules that need only the request while Holdfast is down. It cannot repair,
	// so it denies what is left to repair: nothing, where the mutating webhook was called.
	MachinePolicy = "holdfast-machines"
	// StatusPolicy is the rule keep-status, which no webhook knows.
	StatusPolicy = "holdfast-machines-status"
	// InstancePolicy is the rule claim for updates, and for what automation creates: which instance a Machine has is the Machine API's to
	// say. And nobody creates a Machine with an override.
	InstancePolicy = "holdfast-machines-instance"
	// RecordsPolicy is the rule own-records, which no webhook knows either.
	RecordsPolicy = "holdfast-records"
)

// PolicyNames are all of them.
func PolicyNames() []string {
	return []string{MachinePolicy, StatusPolicy, InstancePolicy, RecordsPolicy}
}

// Policies are the policies and their bindings, in the order to apply them in. They
// hold of Options the Machine namespace and the identities; the webhooks' place is nothing to them.
func Policies(o Options) []any {
	var out []any
	for _, p := range o.policies() {
		out = append(out, p, o.binding(p.Name))
	}
	return out
}

func (o *Options) policies() []*admissionregistrationv1.ValidatingAdmissionPolicy {
	return []*admissionregistrationv1.ValidatingAdmissionPolicy{
		o.policy(MachinePolicy, rules([]string{"machines"}, onUpdate), conditions("touches-what-is-guarded", all(ours, some(all(changed(), guarded()), annotates()))), machineVariables(&o.Identities), o.machineValidations()),
		o.policy(StatusPolicy, rules([]string{"machines/status"}, onUpdate), conditions("not-by-the-machine-api", not(o.machineAPI())), nil, o.statusValidations()),
		o.instancePolicy(),
		o.recordsPolicy(),
	}
}

// recordsPolicy is the rule own-records: what Holdfast wrote down of members and of released Machines counts when it decides,
// people read the ring that it publishes, hosts start etcd from what it publishes, and the quorum guard's budget counts every pod
// with the guard's label. So nobody else writes these. A person may delete a ConfigMap, as may what ends a namespace: Holdfast
// makes it anew from what it sees. Anybody may write one as it is, as the migration to another storage version or encryption key does. Anybody
// may delete or evict a pod.
func (o *Options) recordsPolicy() *admissionregistrationv1.ValidatingAdmissionPolicy {
	const (
		object = "(request.operation == 'DELETE' ? oldObject : object)"
		record = object + ".metadata.?name.orValue('')"
	)
	own := []string{o.MachineNamespace + "/" + machineapi.RecordsName, o.MachineNamespace + "/" + machineapi.LedgerName}
	in := []string{o.MachineNamespace}
	if o.HoldfastNamespace != "" {
		own, in = append(own, o.HoldfastNamespace+"/"+snapshotfile.RingName), append(in, o.HoldfastNamespace)
	}
	if o.EtcdNamespace != "" {
		own, in = append(own, o.EtcdNamespace+"/"+hostenv.Name, o.EtcdNamespace+"/"+hostenv.EndpointsName), append(in, o.EtcdNamespace)
	}
	slices.Sort(in)
	mine := []string{all("(request.resource.resource == 'configmaps')", "(request.namespace + '/' + "+record+" in "+list(own)+")",
		not(all(operation("DELETE"), person(&o.Identities))),
		not(all(operation("UPDATE"), same(".?data", "{}"), same(".?binaryData", "{}"), same(".?immutable", "false"), same(".metadata.?labels", "{}"),
			same(".metadata.?annotations", "{}"), same(".metadata.?ownerReferences", "[]"), same(".metadata.?finalizers", "[]"))))}
	rules := []admissionregistrationv1.RuleWithOperations{rule(admissionregistrationv1.NamespacedScope, "", "v1", []string{"configmaps"}, onCreate, onUpdate, onDelete)}
	if o.QuorumGuard {
		mine = append(mine, all("(request.resource.resource == 'pods')", "(request.namespace == "+quote(o.EtcdNamespace)+")",
			some(guardPod("object"), all(operation("UPDATE"), guardPod("oldObject"))),
			not(all(operation("UPDATE"), guardPod("object"), guardPod("oldObject"), "(object.spec == oldObject.spec)",
				"(object.metadata.?ownerReferences.orValue([]) == oldObject.metadata.?ownerReferences.orValue([]))"))))
		rules = append(rules, rule(admissionregistrationv1.NamespacedScope, "", "v1", []string{"pods"}, onCreate, onUpdate))
	}
	p := o.policy(RecordsPolicy, rules, conditions("holdfasts-own", all(not(custodian(&o.Identities)), some(mine...))), nil,
		[]admissionregistrationv1.Validation{{
			Expression: all("(request.resource.resource == 'configmaps')", operation("DELETE"), "namespaceObject.?metadata.?deletionTimestamp.hasValue()"),
			MessageExpression: "request.resource.resource == 'pods' ? " +
				quote("Refused (own-records): the budget of Holdfast's quorum guard counts every pod with label "+machineapi.GuardLabel+"="+machineapi.GuardName+
					", so nobody else makes or changes one. Give pod ") + " + " + record + " + " + quote(" another label; to have the guard's pod made anew, delete it."+more("own-records")) + " : " +
				quote("Refused (own-records): ConfigMap ") + " + " + record + " + " +
				quote(" is Holdfast's own record, by which it decides what may be released. Leave it as it is; a person may delete it, and Holdfast makes it anew."+more("own-records")),
			Reason: new(metav1.StatusReasonForbidden),
		}})
	p.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: slices.Compact(in)},
	}}
	return p
}

// same reports whether an update leaves a field as it is, which is none where it is not set.
func same(field, none string) string {
	return fmt.Sprintf("(object%s.orValue(%s) == oldObject%[1]s.orValue(%[2]s))", field, none)
}

// guardPod reports whether a pod carries the label that the quorum guard's budget selects.
func guardPod(object string) string {
	return "(" + label(object, machineapi.GuardLabel) + " == " + quote(machineapi.GuardName) + ")"
}

// machineVariables name what the rules are about. The API server evaluates only those that an expression uses.
func machineVariables(ids *admission.Identities) []admissionregistrationv1.Variable {
	return []admissionregistrationv1.Variable{
		{Name: "hadHook", Expression: hooked("oldObject")},
		{Name: "hasHook", Expression: hooked("object")},
		{Name: "hadLatch", Expression: latched("oldObject")},
		{Name: "hasLatch", Expression: latched("object")},
		// Under the hook's name, whoever owns it.
		{Name: "hasEntry", Expression: named("object")},
		// quorum.Machine.Held
		{Name: "held", Expression: "(variables.hadHook || variables.hadLatch)"},
		// admission.Request.guarded; who only sets an override may not be
		{Name: "guarded", Expression: guarded()},
		{Name: "deleting", Expression: "has(oldObject.metadata.deletionTimestamp)"},
		{Name: "custodian", Expression: custodian(ids)},
		{Name: "person", Expression: person(ids)},
		// admission.Request.Drops
		{Name: "releases", Expression: some(
			"(variables.hadHook && !variables.hasEntry)",
			"(!variables.hadHook && variables.deleting && variables.hadLatch && !variables.hasLatch)",
		)},
	}
}

// machineValidations are the rules, one each, as admission.Identities.Admit has them. What Admit cannot
// decide without a look at etcd passes: a custodian's release, for which ClosedWebhook fails. A person takes off the hook, and
// never the latch. A latch that is missing beside the hook passes, as where cluster-etcd-operator does not add it: the
// reconciler mends it.
func (o *Options) machineValidations() []admissionregistrationv1.Validation {
	return []admissionregistrationv1.Validation{
		validation(quorum.RuleKeepFinalizer,
			all("variables.held", finalized("oldObject"), not(finalized("object"))),
			"finalizer "+quorum.Finalizer+" of Machine ", " stays while hook "+quorum.HookName+" or "+quorum.LatchName+" is on it. Without the finalizer a deletion removes the Machine at once, even if the hook is on. "+
				"The finalizer goes by itself once the Machine may go; what it waits for: kubectl holdfast status"),
		validation(quorum.RuleKeepFinalizer,
			all("!variables.held", controlPlane("oldObject"), "!variables.person", not(o.machineAPI()), hasInstance("oldObject"),
				finalized("oldObject"), not(finalized("object"))),
			"Machine ", " keeps finalizer "+quorum.Finalizer+" while it has an instance, which nobody would terminate without it. "+
				"Leave it in the change; the machine controller takes it off when the instance is gone. "+down),
		validation(quorum.RuleKeepRole,
			all(some("variables.held", all(controlPlane("oldObject"), hasInstance("oldObject"))), some(loses(quorum.RoleLabel), loses(quorum.TypeLabel))),
			"Machine ", " keeps labels "+quorum.RoleLabel+" and "+quorum.TypeLabel+" while hook "+quorum.HookName+" or "+quorum.LatchName+" is on it, or it has an instance. "+
				"Leave both as they are; to replace the Machine, delete it."),
		validation(quorum.RuleKeepHost,
			all("variables.guarded", remediates(), "!variables.person && !variables.custodian", not(o.machineAPI())),
			"annotation "+quorum.RemediationAnnotation+" has the host of Machine ", " powered off, and no hook holds that. "+
				"Only a MachineHealthCheck or a person restarts the host of a control-plane Machine. Leave the annotation out of the change."),
		validation(quorum.RuleAdopt,
			all("variables.guarded", adopts()),
			"control-plane Machine ", " may not become a MachineSet's: that would count it among its replicas and delete it, and its etcd member with it, to scale down. "+
				"Leave the owner reference out, and narrow the selector of that MachineSet."),
		validation(quorum.RuleNoRegain,
			all("variables.guarded", "variables.deleting", some("(!variables.hadHook && variables.hasHook)", "(!variables.hadLatch && variables.hasLatch)")),
			"Machine ", " is being deleted, and a hook that is gone from such a Machine never returns. "+
				"Leave "+quorum.HookName+" and "+quorum.LatchName+" out of the change; if it comes from a manifest, remove the Machine from it."),
		validation(quorum.RuleAutomationRelease,
			"(variables.deleting && variables.releases && !variables.person && !variables.custodian)",
			"hook "+quorum.HookName+" holds Machine ", ", which is being deleted, until etcd has a replacement. A tool does not release it, only a person does, by hand. "+
				"You need to do nothing: the hook is released once a replacement votes. "+down),
		validation(quorum.RuleEscapeHatch,
			all("variables.deleting", "variables.person", controlPlane("oldObject"), "variables.hadLatch && !variables.hasLatch", "(!variables.hadHook || !variables.hasEntry)"),
			"hook "+quorum.LatchName+" of Machine ", " is Holdfast's to take off, once etcd can do without what the Machine hosts. What it waits for: kubectl holdfast status. "+down),
		validation(quorum.RuleOverride,
			all(some(differs(annotation, quorum.OverrideAnnotation), differs(annotation, quorum.OverrideByAnnotation)), not(setsOverride()),
				some(controlPlane("oldObject"), not(controlPlane("object")))),
			"the override annotations of Machine ", " are a person's to set, and only Holdfast says who did and when. Leave "+quorum.OverrideByAnnotation+" out. "+down),
		validation(quorum.RuleKeepHook,
			some(
				"(variables.hadHook && !variables.hasHook && (variables.hasEntry || !variables.deleting && !variables.custodian))",
				"(variables.hasHook && variables.hadLatch && !variables.hasLatch && (variables.hadHook || !variables.deleting))",
				all(differs(annotation, quorum.EvidenceAnnotation), "!variables.custodian",
					// From a Machine that is labelled only now, claim takes out what it brings along.
					some(isSet(annotation("object", quorum.EvidenceAnnotation)), controlPlane("oldObject"), all(not(controlPlane("object")), "variables.held"))),
			),
			"Machine ", " keeps hooks "+quorum.HookName+" and "+quorum.LatchName+" and annotation "+quorum.EvidenceAnnotation+": they hold a deletion until etcd has a replacement. "+
				"Leave them in the change; to replace the Machine, delete it. "+down),
	}
}

// setsOverride reports whether a change of the override annotations is one that may stand: anybody but automation takes the override
// away, and a person sets one, without a stamp or with their own.
func setsOverride() string {
	stamp := annotation("object", quorum.OverrideByAnnotation)
	const at = len(" 2006-01-02T15:04:05Z")
	return all(differs(annotation, quorum.OverrideAnnotation), some(
		all(isNone(annotation("object", quorum.OverrideAnnotation)), some("variables.person", "variables.custodian")),
		all("variables.person", some(isNone(stamp), fmt.Sprintf("(%s.startsWith(%s + ' ') && %s.size() == %s.size() + %d)", stamp, name, stamp, name, at)))))
}

// instancePolicy is the rule claim as the API server has it alone: admission.Identities' admitInstance, and admitNamed for who is no person. A
// worker Machine that named a control-plane Machine's instance would take that one along when it is deleted. A person who lifted the rule takes a name off
// a hooked Machine; how old the override is, and whether another Machine has that instance, only Holdfast knows: ClosedWebhook fails for it.
func (o *Options) instancePolicy() *admissionregistrationv1.ValidatingAdmissionPolicy {
	held := all("(request.operation == 'UPDATE')", ours, some(hooked("oldObject"), latched("oldObject")))
	changes := func(of field) string {
		was, is := of("oldObject"), of("object")
		return all(operation("UPDATE"), all(differ(of),
			not(all(o.machineAPI(), some("!variables.held", isNone(was), fmt.Sprintf("(%s != '' && (%s.lowerAscii() + '/').startsWith(%s.lowerAscii() + '/'))", is, is, was)))),
			not(all("variables.person", isNone(is), some("!variables.held", "variables.lifts")))))
	}
	denied := append([]string{all(operation("CREATE"), not(o.machineAPI()), not("variables.person"))}, each(instanceFields(), changes)...)
	copied := some(isSet(annotation("object", quorum.OverrideAnnotation)), isSet(annotation("object", quorum.OverrideByAnnotation)))
	return o.policy(InstancePolicy, rules([]string{"machines"}, onCreate, onUpdate), conditions("names-an-instance", some(all(operation("CREATE"), some(namesInstance("object"), copied)), all(operation("UPDATE"), claims()))),
		[]admissionregistrationv1.Variable{
			{Name: "held", Expression: held},
			{Name: "person", Expression: person(&o.Identities)},
			{Name: "lifts", Expression: liftsClaim()},
		},
		[]admissionregistrationv1.Validation{{
			Expression: not(all(operation("CREATE"), copied)),
			MessageExpression: quote("Refused (claim): annotations "+quorum.OverrideAnnotation+" and "+quorum.OverrideByAnnotation+" of Machine ") + " + object.metadata.?name.orValue('(not named yet)') + " + quote(
				" were another Machine's: an override is set on a Machine that is there. Leave both out. "+down+more(quorum.RuleClaim)),
			Reason: new(metav1.StatusReasonForbidden),
		}, {
			Expression: not(all(some(operation("UPDATE"), namesInstance("object")), some(denied...))),
			MessageExpression: quote("Refused (claim): only the Machine API says which instance Machine ") + " + object.metadata.?name.orValue('(not named yet)') + " + quote(
				" has (spec.providerID, and the annotations that name it), and while hook "+quorum.HookName+" or "+quorum.LatchName+" is on, it may set this only once. "+
					"If it named another's, the machine controller would terminate that one with the Machine. Leave these fields as they are; "+
					"to correct them by hand, impersonate the Machine API: kubectl --as="+o.Identities.MachineAPI[0]+more(quorum.RuleClaim)),
			Reason: new(metav1.StatusReasonForbidden),
		}})
}

// liftsClaim is quorum.Machine.Lifts(RuleClaim), but for the override's age and reason.
func liftsClaim() string {
	override := annotation("oldObject", quorum.OverrideAnnotation)
	return all(isSet(annotation("oldObject", quorum.OverrideByAnnotation)),
		fmt.Sprintf("(%s.contains(':') && %s.split(':')[0].split(',').exists(r, r.trim() == %s))", override, override, quote(string(quorum.RuleClaim)))) // what else it lifts is not asked
}

// down says why a request is refused that is repaired as a rule.
const down = "While Holdfast answers and enforces, it puts this right itself: try again later."

// loses reports whether a label that had a value has another or none.
func loses(key string) string {
	return all(isSet(label("oldObject", key)), differs(label, key))
}

// statusValidations are the rule keep-status. All of status.providerStatus counts as the identity of
// the instance: each provider has its own keys for it, reads them in any case, and is the only one who
// writes there. An empty field and none are the same, because a client may write one for the other.
func (o *Options) statusValidations() []admissionregistrationv1.Validation {
	return []admissionregistrationv1.Validation{validation("keep-status",
		some(
			differ(status("providerStatus", "{}")),
			differ(status("nodeRef", "{}")),
			differ(status("addresses", "[]")),
			differ(status("authoritativeAPI", "''")),
			differ(status("phase", "''")),
		),
		"where Machine ", " runs (status.providerStatus, nodeRef, addresses, authoritativeAPI and phase) is the Machine API's to write. "+
			"Pointed at another instance, the Machine would take that one with it when it is deleted. "+
			"Leave these fields as they are; to correct them by hand, impersonate the Machine API: kubectl --as="+o.Identities.MachineAPI[0])}
}

// machineAPI reports whether the requester is one of those who say where a Machine runs.
func (o *Options) machineAPI() string {
	return "(" + name + " in " + list(o.Identities.MachineAPI) + ")"
}

// status is a field of the status, or what stands for none.
func status(field, none string) func(object string) string {
	return func(object string) string { return fmt.Sprintf("%s.?status.?%s.orValue(%s)", object, field, none) }
}

// validation denies where an expression holds, in words around the Machine's name. A policy's message
// is one line, and nothing but the Machine's name may come into it: a newline would lose it.
func validation(rule quorum.Rule, denied, before, after string) admissionregistrationv1.Validation {
	return admissionregistrationv1.Validation{
		Expression:        not(denied),
		MessageExpression: quote(fmt.Sprintf("Refused (%s): %s", rule, before)) + " + oldObject.metadata.name + " + quote(after+more(rule)),
		Reason:            new(metav1.StatusReasonForbidden),
	}
}

// more ends a refusal with where its rule is explained.
func more(rule quorum.Rule) string { return " (" + rule.Page() + ")" }

// policy is a policy for requests in the Machine namespace.
func (o *Options) policy(name string, rules []admissionregistrationv1.RuleWithOperations, conditions []admissionregistrationv1.MatchCondition, variables []admissionregistrationv1.Variable, validations []admissionregistrationv1.Validation) *admissionregistrationv1.ValidatingAdmissionPolicy {
	named := make([]admissionregistrationv1.NamedRuleWithOperations, len(rules))
	for i, rule := range rules {
		named[i].RuleWithOperations = rule
	}
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: new(admissionregistrationv1.Fail),
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: o.namespaces(),
				ObjectSelector:    &metav1.LabelSelector{},
				MatchPolicy:       new(admissionregistrationv1.Equivalent),
				ResourceRules:     named,
			},
			MatchConditions: conditions,
			Variables:       variables,
			Validations:     validations,
		},
	}
}

// binding puts a policy to work: what the policy denies is refused, or only warned of, and the API server's audit log says so.
func (o *Options) binding(policy string) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	actions := map[admission.Enforcement][]admissionregistrationv1.ValidationAction{
		admission.Enforce: {admissionregistrationv1.Deny, admissionregistrationv1.Audit},
		admission.Warn:    {admissionregistrationv1.Warn, admissionregistrationv1.Audit},
		admission.Audit:   {admissionregistrationv1.Audit},
	}[o.Enforcement]
	return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec:       admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy, ValidationActions: actions},
	}
}

// EnforcementOf is the enforcement that a policy's binding is written for.
func EnforcementOf(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) admission.Enforcement {
	switch actions := b.Spec.ValidationActions; {
	case slices.Contains(actions, admissionregistrationv1.Deny):
		return admission.Enforce
	case slices.Contains(actions, admissionregistrationv1.Warn):
		return admission.Warn
	}
	return admission.Audit
}
