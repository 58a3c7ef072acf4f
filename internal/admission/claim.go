package admission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Claims says whether the request has a Machine name an instance in a field that did not name it.
func (r *Request) Claims() bool { return r.New != nil && len(r.claimed()) > 0 }

// claimed are the fields of the new object that name an instance and did not name it before. A Machine that becomes the
// control plane's is like a new one. Of one that was held, fields that the update removes count, too: the repair puts them back.
func (r *Request) claimed() []quorum.InstanceField {
	fields := r.New.InstanceFields()
	if r.Old == nil {
		return fields
	}
	before := r.Old.InstanceFields()
	if r.becomesGuarded() && !r.Old.Mirrored {
		if r.Old.Held() {
			fields = append(fields, slices.DeleteFunc(before, func(f quorum.InstanceField) bool { return slices.ContainsFunc(fields, f.Same) })...)
		}
		return fields
	}
	return slices.DeleteFunc(fields, func(f quorum.InstanceField) bool { return slices.Contains(before, f) })
}

// admitClaim is the denial of rule claim: two Machines that name one instance would be joined to one host. The Machine API writes on
// a control-plane Machine the instance that it found, so that is refused only if the instance certainly belongs to another
// Machine: else anybody could keep a replacement out by naming its instance first. If the other Machine only claims the instance, a
// Warning says so, and the deletion of that Machine is refused. Where it is deleted already, it takes the instance along when it goes: so
// nobody but the Machine API names an instance on a deleting Machine, and no Machine gets one that a deleting Machine names.
func admitClaim(d *Decision, r *Request, s *quorum.Snapshot, ids *Identities) {
	claimed := r.claimed()
	if len(claimed) == 0 {
		return
	}
	machineAPI := slices.Contains(ids.MachineAPI, r.User.Name)
	if late := r.namesLate(); len(late) > 0 && !machineAPI {
		d.add(quorum.RuleClaim, VerdictDenied, claimTooLate(r, late[0])...)
		return
	}
	found := r.New.ControlPlane() && machineAPI
	if s == nil || !found && r.New.ControlPlane() && s.ClaimantsWhy != "" {
		d.add(quorum.RuleClaim, VerdictDenied, claimUnknown(r, claimed[0])...)
		return
	}
	others := s.Machines
	if r.New.ControlPlane() { // two workers with one instance are none of etcd's business
		others = slices.Concat(others, s.Claimants)
	}
	var twice []string
	for i := range others {
		other := &others[i]
		if other.Name == r.New.Name {
			continue
		}
		for _, theirs := range other.InstanceFields() {
			k := slices.IndexFunc(claimed, theirs.Same)
			switch {
			case k < 0:
			case found && other.Deleting() && !other.InstanceSettled():
				d.add(quorum.RuleClaim, VerdictDenied, claimGoes(r, claimed[k], other)...)
				return
			case found && !other.InstanceSettled():
				twice = claimedTwice(r, claimed[k], other)
			default:
				d.add(quorum.RuleClaim, VerdictDenied, claimDenied(r, claimed[k], other)...)
				return
			}
		}
	}
	if twice != nil {
		d.add(quorum.RuleClaim, VerdictAllowed, twice...)
	}
}

// namesLate are the fields that name an instance on a deleting Machine which none of its fields named. What a hooked Machine had is put
// back, and is not among them.
func (r *Request) namesLate() []quorum.InstanceField {
	if r.Old == nil || !r.Old.Deleting() || r.Old.Mirrored {
		return nil
	}
	before := r.Old.InstanceFields()
	return slices.DeleteFunc(r.New.InstanceFields(), func(f quorum.InstanceField) bool {
		return slices.ContainsFunc(before, func(was quorum.InstanceField) bool { return was.Same(f) || was.Name == f.Name && r.Old.Held() })
	})
}

// takesOff says whether a person who lifted the rule claim takes the name of an instance off a hooked Machine. Only of one that the
// machine controller took to have failed, and of which no member is on record: it is not the one that runs there.
func (r *Request) takesOff(class Class) bool {
	return r.Old != nil && r.New != nil && r.Old.Held() && class == ClassPerson && r.Old.Lifts(quorum.RuleClaim, r.At) && r.Old.FailedClaim() &&
		slices.ContainsFunc(r.Old.InstanceFields(), func(f quorum.InstanceField) bool {
			return !slices.ContainsFunc(r.New.InstanceFields(), func(is quorum.InstanceField) bool { return is.Name == f.Name })
		})
}

// admitInstance is the repair of rule claim for an update: if a hooked Machine no longer named its instance, another Machine
// could name it, and take its place. Nobody may change the provider ID, and only the Machine API the annotations. But two Machines that
// named one instance are both held for ever: a person lifts the rule to take it off the wrong one.
func admitInstance(d *Decision, r *Request, s *quorum.Snapshot, ids *Identities, class Class) {
	if !r.Old.Held() {
		return
	}
	lifted := r.takesOff(class) && s != nil && s.Twin(r.Old) != nil
	var takenOff bool
	stays := func(field, is string) bool {
		if lifted && is == "" {
			takenOff = true
			return false
		}
		d.add(quorum.RuleClaim, VerdictRepaired, claimKept(r, field, class == ClassPerson && r.Old.FailedClaim() && is == "")...)
		return true
	}
	if r.Old.ProviderID != "" && r.New.ProviderID != r.Old.ProviderID && stays("spec.providerID", r.New.ProviderID) {
		d.Repairs.ProviderID = FixAsOld
	}
	for i, value := range r.Old.Instance {
		if is := r.New.Instance[i]; value != "" && is != value && !slices.Contains(ids.MachineAPI, r.User.Name) && stays("annotation "+quorum.InstanceAnnotations[i].Key, is) {
			d.Repairs.Instance[i] = FixAsOld
		}
	}
	if takenOff {
		d.add(quorum.RuleClaim, VerdictOverridden, overrideUsed(r, quorum.RuleClaim)...)
	}
}

// admitNew is the repair of rule claim for a new Machine. The documented resize copies a Machine's YAML, with annotations that are
// true of the other Machine only.
func admitNew(d *Decision, r *Request) {
	var took []string
	if r.New.EvidenceRaw != "" {
		d.Repairs.Evidence = FixDrop
		took = append(took, quorum.EvidenceAnnotation)
	}
	if r.New.Override != "" {
		d.Repairs.Override = FixDrop
		took = append(took, quorum.OverrideAnnotation)
	}
	if r.New.OverrideBy != "" {
		d.Repairs.OverrideBy = FixDrop
		took = append(took, quorum.OverrideByAnnotation)
	}
	if took != nil {
		d.add(quorum.RuleClaim, VerdictRepaired, claimStripped(r, took)...)
	}
}

func claimDenied(r *Request, f quorum.InstanceField, other *quorum.Machine) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s may not have %s=%s, which is the instance of Machine %s.", quorum.RuleClaim, r.name(), f.Name, quorum.Clip(f.Value, 120), other.Name),
		"Both would claim one host, and deleting one would take the other's etcd member with it.",
		"Leave " + f.Name + " out of the manifest: the Machine API writes it once the instance exists.",
	}
}

func claimTooLate(r *Request, f quorum.InstanceField) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s is being deleted, and may not get %s=%s any more.", quorum.RuleClaim, r.name(), f.Name, quorum.Clip(f.Value, 120)),
		"The machine controller would terminate that instance with the Machine, whoever else has it by then.",
		"Leave " + f.Name + " out of the change: only the Machine API knows which instance a Machine has.",
	}
}

// claimGoes is the denial for an instance that a deleting Machine claims: it would be terminated with that Machine.
func claimGoes(r *Request, f quorum.InstanceField, other *quorum.Machine) []string {
	theirs := Request{Namespace: r.Namespace, Operation: r.Operation, Old: other}
	then := "Take it off the other Machine, and the machine controller goes on here: " + theirs.kubectl("patch", other.DetachPatch())
	if other.Held() {
		then = "Once the other Machine is gone, the machine controller goes on here. What it waits for: kubectl holdfast explain " + other.Name
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s cannot have %s=%s yet: Machine %s claims it, too, and is being deleted.", quorum.RuleClaim, r.name(), f.Name, quorum.Clip(f.Value, 120), other.Name),
		"The machine controller would terminate that instance with the other Machine, and an etcd member on it.",
		then,
	}
}

func claimUnknown(r *Request, f quorum.InstanceField) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s may not have %s=%s now: it may be another Machine's instance.", quorum.RuleClaim, r.name(), f.Name, quorum.Clip(f.Value, 120)),
		"The other Machines could not be read. Try again in a few seconds; if it stays so, look into Holdfast's log.",
	}
}

// claimedTwice is the Warning about an instance that another Machine claimed before the status of this Machine named it.
func claimedTwice(r *Request, f quorum.InstanceField, other *quorum.Machine) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s): Machine %s claims the instance of Machine %s: %s.", quorum.RuleClaim, quorum.Clip(other.Name, 70), quorum.Clip(r.name(), 70), quorum.Clip(f.Value, 60)),
		fmt.Sprintf("Holdfast refuses to delete Machine %s: the machine controller would terminate this instance with it.", quorum.Clip(other.Name, 70)),
	}
}

func claimDeleted(r *Request, goes *quorum.Machine, by string, ids *Identities) []string {
	detach := r.kubectl("patch", r.Old.DetachPatch())
	if r.Old.Held() && r.Old.FailedClaim() {
		detach = r.override(quorum.RuleClaim) + " && " + detach // else it is put back
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s also claims the host of control-plane Machine %s: both have %s.", quorum.RuleClaim, r.name(), goes.Name, quorum.Clip(by, 120)),
		"The machine controller would drain and delete that Node or terminate that instance, and etcd's member goes with it.",
		"Take it off that host, then try again: " + detach + " && " +
			r.kubectl("patch", fmt.Sprintf(`--subresource=status --as=%s --type=merge -p '{"status":{"nodeRef":null,"addresses":null,"providerStatus":null}}'`, ids.MachineAPI[0])),
		r.lift(quorum.RuleClaim),
	}
}

func claimDeleteUnknown(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s may claim a control-plane Machine's host: Holdfast could not read the Machines.", quorum.RuleClaim, r.name()),
		"Its deletion would delete that host too. Try again in a few seconds; if it stays so, look into Holdfast's log.",
		r.lift(quorum.RuleClaim),
	}
}

// claimKept is the Warning about a field that was put back, with what a person may do about one that was taken off.
func claimKept(r *Request, field string, liftable bool) []string {
	lines := []string{
		fmt.Sprintf("Holdfast (%s) put %s of Machine %s back: it says which instance etcd runs on, and stays while hook %s is on.", quorum.RuleClaim, field, quorum.Clip(r.name(), 70), r.holder()),
	}
	if liftable {
		lines = append(lines, "If that is another Machine's instance: "+r.override(quorum.RuleClaim)+", and try again.")
	}
	return lines
}

func claimStripped(r *Request, took []string) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) left %s out of Machine %s: a copied manifest brings them, and they say nothing about this Machine.", quorum.RuleClaim, strings.Join(took, ", "), r.name()),
	}
}
