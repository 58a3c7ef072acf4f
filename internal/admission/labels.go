package admission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitLabels are the rules keep-finalizer and keep-role.
func (d *deciding) admitLabels() {
	switch held := d.Old.Held(); {
	case held && d.Old.Finalizer && !d.New.Finalizer:
		d.add(quorum.RuleKeepFinalizer, VerdictDenied, keepFinalizer(d.Request)...)
	case !held && (!d.Old.ControlPlane() || d.Old.InstanceName() == ""):
		return
	case !held:
		d.admitUnheld()
	}
	if d.Old.Role != "" && d.New.Role != d.Old.Role || d.Old.Type != "" && d.New.Type != d.Old.Type {
		d.add(quorum.RuleKeepRole, VerdictDenied, keepRole(d.Request)...)
	}
}

// admitUnheld is the rule keep-finalizer for a control-plane Machine that neither hook nor latch holds. While it drains, a tool that applies its
// manifest would take off the finalizer and the name of the instance, and nobody would terminate the instance. A person may:
// where a deletion hangs, that is what the platforms' procedures say.
func (d *deciding) admitUnheld() {
	if slices.Contains(d.ids.MachineAPI, d.User.Name) {
		return
	}
	instance := d.Old.InstanceName()
	fixes := Repairs{}
	var took []string
	if d.Old.Finalizer && !d.New.Finalizer {
		fixes.Finalizer = FixPut
		took = append(took, "finalizer "+quorum.Finalizer)
	}
	if d.Old.ProviderID != "" && d.New.ProviderID == "" {
		fixes.ProviderID = FixAsOld
		took = append(took, "spec.providerID")
	}
	for i, value := range d.Old.Instance {
		if value != "" && d.New.Instance[i] == "" {
			fixes.Instance[i] = FixAsOld
			took = append(took, quorum.InstanceAnnotations[i].Key)
		}
	}
	switch {
	case took == nil:
	case d.class == ClassPerson:
		d.add(quorum.RuleKeepFinalizer, VerdictAllowed, leftBehind(d.Request, instance)...)
	default:
		d.Repairs.Finalizer, d.Repairs.ProviderID, d.Repairs.Instance = fixes.Finalizer, fixes.ProviderID, fixes.Instance
		d.add(quorum.RuleKeepFinalizer, VerdictRepaired, keptUnheld(d.Request, took, instance)...)
	}
}

func leftBehind(r *Request, instance string) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s): the machine controller may not terminate the instance of Machine %s any more: %s.", quorum.RuleKeepFinalizer, quorum.Clip(r.name(), 70), quorum.Clip(instance, 70)),
		"If it still runs when the Machine is gone, terminate it at its provider, and delete its Node.",
	}
}

func keptUnheld(r *Request, took []string, instance string) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put %s of Machine %s back.", quorum.RuleKeepFinalizer, strings.Join(took, ", "), quorum.Clip(r.name(), 70)),
		fmt.Sprintf("Without that, nobody would terminate its instance (%s). The machine controller takes the finalizer off when the instance is gone.", quorum.Clip(instance, 70)),
	}
}

func keepFinalizer(r *Request) []string {
	letGo := "The finalizer goes by itself once the Machine may go. What it waits for: kubectl holdfast explain " + r.name() + ". If it has no replacement: kubectl holdfast replace " + r.name()
	switch {
	case !r.Old.Deleting():
		letGo = "Where a manifest is applied, put that finalizer into its metadata.finalizers: https://github.com/holdfast-dev/holdfast/blob/main/docs/gitops.md"
	case r.Old.Hook != quorum.EntryOurs:
		letGo = "Holdfast takes that hook off once etcd can do without the Machine; why it does not yet: kubectl holdfast explain " + r.name()
	}
	return []string{
		fmt.Sprintf("Refused (%s): finalizer %s of Machine %s stays while hook %s is on it.", quorum.RuleKeepFinalizer, quorum.Finalizer, r.name(), r.holder()),
		"Without the finalizer a deletion removes the Machine at once, even if the hook is on, and nobody knows the host of its etcd member any more.",
		letGo,
	}
}

func keepRole(r *Request) []string {
	then := "Leave both labels as they are."
	if !r.Old.Deleting() {
		then += " To replace the Machine, delete it: " + r.kubectl("delete", "")
	}
	until := fmt.Sprintf("it has an instance (%s)", quorum.Clip(r.Old.InstanceName(), 120))
	if r.Old.Held() {
		until = fmt.Sprintf("hook %s is on it", r.holder())
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s keeps %s=%q and %s=%q while %s.", quorum.RuleKeepRole, r.name(), quorum.RoleLabel, r.Old.Role, quorum.TypeLabel, r.Old.Type, until),
		"Without them it would no longer be seen as a control-plane Machine, although etcd may run on it.",
		then,
	}
}
