package registrations

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// The conditions under which the API server calls the webhooks, and the fragments of what the policies
// deny, in CEL. They are built from the
// names and identities that quorum decides by, and read nothing that may be absent without saying
// so: a condition that fails would itself refuse the request, or let it pass.
//
// A fragment is in parentheses, so that it can be combined.

func all(terms ...string) string  { return "(" + strings.Join(terms, " && ") + ")" }
func some(terms ...string) string { return "(" + strings.Join(terms, " || ") + ")" }
func not(term string) string      { return "!" + term }

func quote(s string) string { return strconv.Quote(s) }

// each has one fragment for each entry.
func each[T any](entries []T, fragment func(T) string) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = fragment(e)
	}
	return out
}

func list(entries []string) string { return "[" + strings.Join(each(entries, quote), ", ") + "]" }

func operation(name string) string { return "(request.operation == " + quote(name) + ")" }

// label and annotation are the value under a key, or ”.
func label(object, key string) string {
	return fmt.Sprintf("%s.metadata.?labels[?%s].orValue('')", object, quote(key))
}

func annotation(object, key string) string {
	return fmt.Sprintf("%s.metadata.?annotations[?%s].orValue('')", object, quote(key))
}

// field is a value of an object's.
type field func(object string) string

func isSet(value string) string  { return "(" + value + " != '')" }
func isNone(value string) string { return "(" + value + " == '')" }

func providerID(object string) string { return object + ".?spec.?providerID.orValue('')" }

// adopts reports whether an update makes an owner that can scale down (a MachineSet, say) the controller of a live Machine.
// It mirrors scales and Request.adds in internal/admission.
func adopts() string {
	const scales = `o.?controller.orValue(false) && (` +
		`o.kind == 'MachineSet' && o.apiVersion.split('/')[0] in ['machine.openshift.io', 'cluster.x-k8s.io'] || ` +
		`o.kind == 'MachineDeployment' && o.apiVersion.split('/')[0] == 'cluster.x-k8s.io')`
	const same = `p.?controller.orValue(false) && p.kind == o.kind && p.name == o.name && p.uid == o.uid && p.apiVersion.split('/')[0] == o.apiVersion.split('/')[0]`
	adopted := owners("object") + ".exists(o, " + all(scales,
		some(not(controlPlane("oldObject"))+" && "+controlPlane("object"), not(owners("oldObject")+".exists(p, "+same+")"))) + ")"
	// More owners than any Machine has are refused unseen: see entry.
	size, becomes := owners("object")+".size()", all(not(controlPlane("oldObject")), controlPlane("object"))
	return all(live(), some(all(fmt.Sprintf("(%s > %d)", size, admission.MostOwners), some(differ(owners), becomes)), all(fmt.Sprintf("(%s <= %d)", size, admission.MostOwners), adopted)))
}

// owners are the owner references.
func owners(object string) string { return object + ".metadata.?ownerReferences.orValue([])" }

// entry reports whether an object has the hook or latch under its name with its owner, whatever else the entry carries: the CRD may have got
// a field with a default. In a list that is longer than any in use it compares whole entries: the time that exists() takes grows with the
// square of the list, to seconds for one that fills a Machine. See crowded.
func entry(object, list, name, owner string) string {
	return fmt.Sprintf("(%[1]s.size() > %[4]d ? {'name': %[2]s, 'owner': %[3]s} in %[1]s : %[1]s.exists(h, h.?name.orValue('') == %[2]s && h.?owner.orValue('') == %[3]s))",
		hooks(object, list), quote(name), quote(owner), mostHooks)
}

// mostHooks is more than the hooks of any list in use.
const mostHooks = 100

// crowded reports whether an object has more hooks than any in use: then the webhooks look.
func crowded(object string) string {
	return fmt.Sprintf("(%s.size() > %d || %s.size() > %d)", hooks(object, "preDrain"), mostHooks, hooks(object, "preTerminate"), mostHooks)
}

func hooks(object, list string) string {
	return fmt.Sprintf("%s.?spec.?lifecycleHooks.?%s.orValue([])", object, list)
}

func hooked(object string) string {
	return entry(object, "preDrain", quorum.HookName, quorum.HookOwner)
}

func latched(object string) string {
	return entry(object, "preTerminate", quorum.LatchName, quorum.LatchOwner)
}

// named reports whether an object has an entry under the hook's name, whoever owns it. In a list that is longer than any in use it counts as
// there: see entry.
func named(object string) string {
	list := hooks(object, "preDrain")
	return fmt.Sprintf("(%s.size() > %d || %s.exists(h, h.?name.orValue('') == %s))", list, mostHooks, list, quote(quorum.HookName))
}

func finalized(object string) string { return hasFinalizer(object, quorum.Finalizer) }

func hasFinalizer(object, name string) string {
	return fmt.Sprintf("(%s in %s.metadata.?finalizers.orValue([]))", quote(name), object)
}

// controlPlane is quorum.Machine.ControlPlane.
func controlPlane(object string) string {
	return fmt.Sprintf("[%s, %s].exists(r, r in ['master', 'control-plane', 'arbiter'])",
		label(object, quorum.RoleLabel), label(object, quorum.TypeLabel))
}

// ours says that a stored Machine is not mirrored from another API.
const ours = "oldObject.?status.?authoritativeAPI.orValue('') in ['', 'MachineAPI']"

// touched reports whether the rules have anything to say about a request. Every write of a Machine pays
// for it, so an update first compares a few maps whole and looks into those that differ.
func touched() string { return some(mendable(), deletes(), deletesStray()) }

// mendable reports whether a rule may have to put something right in the new object.
func mendable() string {
	return some(
		all(operation("CREATE"), created()),
		all(operation("UPDATE"), ours, some(all(some(changed(), unnames()), guarded()), annotates())),
	)
}

// created reports whether a new Machine has anything that the rules look at.
func created() string {
	annotated := each(annotations(), func(key string) string { return isSet(annotation("object", key)) })
	return some(append([]string{namesInstance("object"), controlPlane("object"), hooked("object"), latched("object")}, annotated...)...)
}

// instanceFields are the fields that name a Machine's instance: quorum.Machine.InstanceFields.
func instanceFields() []field {
	fields := []field{providerID}
	for _, a := range quorum.InstanceAnnotations {
		fields = append(fields, func(object string) string { return annotation(object, a.Key) })
	}
	return fields
}

// claims reports whether an update changes which instance a Machine names.
func claims() string {
	return some(differ(providerID), within(".metadata.?annotations", each(instanceFields()[1:], differ)...))
}

// namesInstance reports whether a Machine names its instance.
func namesInstance(object string) string {
	return some(each(instanceFields(), func(of field) string { return isSet(of(object)) })...)
}

// hasInstance reports whether a Machine has a name of its instance, or a Node: quorum.Machine.InstanceName.
func hasInstance(object string) string {
	return some(namesInstance(object), isSet(object+".?status.?nodeRef.?name.orValue('')"))
}

// unnames reports whether an update takes the name of an instance off.
func unnames() string {
	return all(claims(), some(each(instanceFields(), func(of field) string { return all(isSet(of("oldObject")), isNone(of("object"))) })...))
}

// annotates reports whether an update changes what is Holdfast's to say of any Machine: a worker's override lifts the rule claim for its
// deletion, and its evidence would count once it has a control-plane label.
func annotates() string {
	return within(".metadata.?annotations", differs(annotation, quorum.OverrideAnnotation), differs(annotation, quorum.OverrideByAnnotation),
		all(isSet(annotation("object", quorum.EvidenceAnnotation)), differs(annotation, quorum.EvidenceAnnotation)))
}

// deletesStray reports whether a live Machine is deleted that is none of the guard's and has an instance or a Node, which may be a
// control-plane Machine's: the rule claim.
func deletesStray() string {
	return all(operation("DELETE"), live(), ours, not(guards("oldObject")),
		some(hasInstance("oldObject"), "(oldObject.?status.?addresses.orValue([]).size() > 0)", "oldObject.?status.?providerStatus.hasValue()"))
}

// guards is quorum.Machine.Guarded.
func guards(object string) string { return some(controlPlane(object), hooked(object), latched(object)) }

// annotations are those that the rules protect.
func annotations() []string {
	return []string{quorum.EvidenceAnnotation, quorum.OverrideAnnotation, quorum.OverrideByAnnotation}
}

// changed reports whether an update changes anything that the rules protect.
func changed() string {
	annotated := each(annotations(), func(key string) string { return differs(annotation, key) })
	return some(
		differ(owners),
		within(".?spec.?lifecycleHooks", differ(hooked), differ(latched), crowded("object"), crowded("oldObject")),
		within(".metadata.?finalizers", differ(finalized)),
		within(".metadata.?labels", differs(label, quorum.RoleLabel), differs(label, quorum.TypeLabel)),
		within(".metadata.?annotations", append(annotated, remediates())...),
	)
}

// remediates reports whether an update has the Machine's host powered off and on again.
func remediates() string {
	has := func(object string) string {
		return fmt.Sprintf("(%s in %s.metadata.?annotations.orValue({}))", quote(quorum.RemediationAnnotation), object)
	}
	return all(has("object"), not(has("oldObject")))
}

// guarded reports whether an update is about a guarded Machine.
func guarded() string {
	return some(controlPlane("object"), guards("oldObject"))
}

// deletes reports whether a live Machine of the guard's is deleted.
func deletes() string {
	return all(operation("DELETE"), live(), ours, guards("oldObject"))
}

// differ reports whether a fragment is not the same for both objects.
func differ(of field) string {
	return "(" + of("object") + " != " + of("oldObject") + ")"
}

func differs(of func(object, key string) string, key string) string {
	return differ(func(object string) string { return of(object, key) })
}

// within asks for differences only where a whole field differs.
func within(field string, differences ...string) string {
	return all("(object"+field+" != oldObject"+field+")", some(differences...))
}

// live reports whether the stored Machine is.
func live() string { return "!has(oldObject.metadata.deletionTimestamp)" }

// irreparable reports whether a request is one whose harm the hook would not hold off: the
// delete of a Machine that lacks hook, latch or finalizer, the release of a hook by anyone but a
// person, what takes the host down, and a person who takes the name of its instance off a hooked Machine.
func irreparable(ids *admission.Identities) string {
	return some(
		selfCall(ids),
		all(deletes(), not(all(hooked("oldObject"), latched("oldObject"), finalized("oldObject")))),
		all(operation("UPDATE"), ours, guarded(), remediates()),
		all(operation("UPDATE"), ours, not(person(ids)), some(
			all(hooked("oldObject"), not(hooked("object"))),
			all(not(live()), latched("oldObject"), not(latched("object"))))),
		all(operation("UPDATE"), ours, person(ids), some(hooked("oldObject"), latched("oldObject")), unnames()),
	)
}

// selfCall reports whether a custodian asks in a dry run whether the API server reaches the webhooks: see
// webhooks.SelfCallAnnotation.
func selfCall(ids *admission.Identities) string {
	return all(operation("UPDATE"), "request.?dryRun.orValue(false)", isSet(annotation("object", webhooks.SelfCallAnnotation)),
		differs(annotation, webhooks.SelfCallAnnotation), custodian(ids))
}

// name is who sends the request. The API server leaves an empty name out.
const name = "request.userInfo.?username.orValue('')"

// custodian is admission.Identities.Classify's Custodian.
func custodian(ids *admission.Identities) string {
	return "(" + name + " in " + list(ids.Custodians) + ")"
}

// person is admission.Identities.Classify's Person.
func person(ids *admission.Identities) string {
	automation := all("(" + name + ".startsWith('system:') && " + name + " != 'system:admin') || " + in(ids.Automation))
	return all(
		not(custodian(ids)),
		some(in(ids.EscapeHatch), not(automation)),
	)
}

// homes reports whether a request is about what the Machines live in: the deletion of their namespace or
// of their CRD, or a change of what the CRD has a place for. The name is the object's: a part of
// deletecollection has none in the request.
func homes(namespace string) string {
	is := func(resource, name string) string {
		return "(request.resource.resource == " + quote(resource) + " && oldObject.metadata.name == " + quote(name) + ")"
	}
	return some(
		is("namespaces", namespace),
		all(is("customresourcedefinitions", machineapi.CRDName), some(operation("DELETE"), "(object.spec != oldObject.spec)")),
		hosts(namespace),
	)
}

// hosts reports whether a request takes a BareMetalHost away from a Machine of the namespace, or powers it off: see machineapi.Host.
func hosts(namespace string) string {
	const ref = "oldObject.?spec.?consumerRef"
	annotated := func(object string) string { return object + ".metadata.?annotations.orValue({})" }
	taken := []string{operation("DELETE"), "(oldObject.?spec.?online.orValue(false) && !object.?spec.?online.orValue(false))",
		fmt.Sprintf("%s.exists(k, !(k in %s) && (k in %s || k.startsWith(%s)))", annotated("object"), annotated("oldObject"),
			list([]string{machineapi.RebootAnnotation, machineapi.DetachedAnnotation}), quote(machineapi.RebootAnnotation+"/"))}
	taken = append(taken, each(machineapi.HostIdentity(), func(name string) string {
		return differ(func(object string) string { return object + ".?spec.?" + name })
	})...)
	return all("(request.resource.resource == 'baremetalhosts')", "("+ref+".?kind.orValue('') == 'Machine')", "("+ref+".?namespace.orValue('') == "+quote(namespace)+")",
		ref+".?apiVersion.orValue('').startsWith('machine.openshift.io/')", some(taken...))
}

// keeps reports whether a request is about what a MachineSet or a MachineHealthCheck has to do with which
// Machines: its creation, or a change of what it selects and of what it does with that. How many Machines a set has is not.
func keeps() string {
	is := func(resource, changed string) string {
		return all("(request.resource.resource == "+quote(resource)+")", some(operation("CREATE"), changed))
	}
	return some(
		is("machinesets", "(object.spec.?selector != oldObject.spec.?selector || object.spec.?template.?metadata.?labels != oldObject.spec.?template.?metadata.?labels)"),
		is("machinehealthchecks", "(object.spec != oldObject.spec)"),
	)
}

// shrinks reports whether a request may leave the ControlPlaneMachineSet with fewer Machines than there are: it lowers the replicas of the set or
// of its Scale, has a set begin, or deletes the one that Holdfast reconciles.
func shrinks() string {
	const replicas = ".?spec.?replicas.orValue(0)"
	begins := all("(object.?spec.?state.orValue('') == 'Active')", some(operation("CREATE"), "(oldObject.?spec.?state.orValue('') != 'Active')"))
	return some(all(operation("UPDATE"), "(object"+replicas+" < oldObject"+replicas+")"), all(some(operation("CREATE"), operation("UPDATE")), begins),
		all(operation("DELETE"), hasFinalizer("oldObject", cpms.Finalizer), "(oldObject.?spec.?state.orValue('') == 'Active')", "!has(oldObject.metadata.deletionTimestamp)"))
}

// strips reports whether an update takes Holdfast's finalizer off a ControlPlaneMachineSet.
func strips() string {
	return all(operation("UPDATE"), hasFinalizer("oldObject", cpms.Finalizer), not(hasFinalizer("object", cpms.Finalizer)))
}

// in reports whether the requester is one of the entries: by name, by pattern, or by group.
func in(entries []string) string {
	if len(entries) == 0 {
		return "false"
	}
	terms := []string{
		fmt.Sprintf("%s in %s", name, list(entries)),
		fmt.Sprintf("request.userInfo.?groups.orValue([]).exists(g, g in %s)", list(entries)),
	}
	for _, e := range entries {
		if strings.Contains(e, "*") {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(e), `\*`, `.*`)
			terms = append(terms, fmt.Sprintf("%s.matches(%s)", name, quote("^(?s:"+pattern+")$")))
		}
	}
	return some(terms...)
}
