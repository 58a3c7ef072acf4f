package admission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Compares reports whether a new Machine's instance is compared with the other Machines': a person names it, or the Machine API. Other
// automation may not.
func (ids Identities) Compares(r *Request) bool {
	return r.Operation == OperationCreate && len(r.New.InstanceFields()) > 0 && (ids.Classify(r.User) == ClassPerson || ids.machineAPI(r))
}

func (ids Identities) machineAPI(r *Request) bool {
	return slices.Contains(ids.MachineAPI, r.User.Name)
}

// admitNamed is the rule claim for a new Machine that names an instance: two Machines that name one would be joined to one host.
func (d *deciding) admitNamed() {
	named := d.New.InstanceFields()
	if len(named) == 0 {
		return
	}
	if !d.ids.Compares(d.Request) {
		d.add(quorum.RuleClaim, VerdictDenied, claimNotTheirs(d.Request, named[0].Name)...)
		return
	}
	if d.s == nil || d.New.ControlPlane() && d.s.ClaimantsWhy != "" {
		d.add(quorum.RuleClaim, VerdictDenied, claimUnknown(d.Request, named[0])...)
		return
	}
	others := d.s.Machines
	if d.New.ControlPlane() { // two workers with one instance are none of etcd's business
		others = slices.Concat(others, d.s.Claimants)
	}
	keys := d.New.InstanceKeys()
	for i := range others {
		if slices.ContainsFunc(others[i].InstanceKeys(), func(key string) bool { return slices.Contains(keys, key) }) {
			d.add(quorum.RuleClaim, VerdictDenied, claimDenied(d.Request, named[0], &others[i])...)
			return
		}
	}
}

// instanceChange is a change of a field that names a Machine's instance.
type instanceChange struct {
	field, before, after string
	fix                  *Fix
}

func (r *Request) instanceChanges(fixes *Repairs) (changes []instanceChange) {
	if r.Old.ProviderID != r.New.ProviderID {
		changes = append(changes, instanceChange{"spec.providerID", r.Old.ProviderID, r.New.ProviderID, &fixes.ProviderID})
	}
	for i, a := range quorum.InstanceAnnotations {
		if r.Old.Instance[i] != r.New.Instance[i] {
			changes = append(changes, instanceChange{"annotation " + a.Key, r.Old.Instance[i], r.New.Instance[i], &fixes.Instance[i]})
		}
	}
	return changes
}

// clearsInstanceByOverride reports whether a person who lifted the rule claim takes the name of an instance off a hooked Machine. Not if the Machine
// has evidence of a member: then the instance is its own. Evidence that cannot be read counts as none.
func (r *Request) clearsInstanceByOverride(class Class) bool {
	return r.Operation == OperationUpdate && r.Old.Held() && class == ClassPerson && r.Old.Lifts(quorum.RuleClaim, r.At) && len(r.Old.OwnEvidence().MemberIDs) == 0 &&
		slices.ContainsFunc(r.instanceChanges(&Repairs{}), func(c instanceChange) bool { return c.after == "" })
}

// admitInstance is the rule claim for an update. Only the Machine API sets the name of an instance, and only once while hook or latch is on.
// The API server's policy refuses most other changes without calling this. On a Machine without hook and latch a person may clear the name,
// and on a control-plane Machine anybody may (see admitUnheld). On a hooked Machine a cleared name is restored, because applied manifests omit
// it. Two Machines with one instance would both be held for ever, so a person may lift the rule to clear the wrong name.
func (d *deciding) admitInstance() {
	machineAPI := d.ids.machineAPI(d.Request)
	held := d.Old.Held() && !d.Old.Mirrored
	var twin *quorum.Machine // whose instance this Machine names too
	if d.s != nil && d.clearsInstanceByOverride(d.class) {
		twin, _ = d.s.LostWith(d.Old)
	}
	var cleared bool // by override
	for _, c := range d.instanceChanges(&d.Repairs) {
		switch {
		case machineAPI && (!held || c.before == "" || c.after != "" && quorum.SameInstance(c.before, c.after)):
		case held && c.after == "" && twin != nil:
			cleared = true
		case held && c.after == "":
			*c.fix = FixAsOld
			d.add(quorum.RuleClaim, VerdictRepaired, claimKept(d.Request, c.field, d.class == ClassPerson)...)
		case c.after == "" && (d.class == ClassPerson || d.Old.ControlPlane() && !d.Old.Mirrored):
		default:
			d.add(quorum.RuleClaim, VerdictDenied, claimNotTheirs(d.Request, c.field)...)
			return
		}
	}
	if cleared {
		d.add(quorum.RuleClaim, VerdictOverridden, overrideUsed(d.Request, quorum.RuleClaim)...)
	}
}

// admitNew is the repair of rule claim for a new Machine. The documented resize copies a Machine's YAML, with annotations that are
// true of the other Machine only. A worker that is copied from a control-plane Machine would be held for ever by its hooks.
func (d *deciding) admitNew() {
	var stripped []string
	if !d.New.ControlPlane() && d.New.Hook == quorum.EntryOurs {
		d.Repairs.Hook = FixDrop
		stripped = append(stripped, quorum.HookName)
	}
	if !d.New.ControlPlane() && d.New.Latch == quorum.EntryOurs {
		d.Repairs.Latch = FixDrop
		stripped = append(stripped, quorum.LatchName)
	}
	if d.New.EvidenceRaw != "" {
		d.Repairs.Evidence = FixDrop
		stripped = append(stripped, quorum.EvidenceAnnotation)
	}
	if d.New.Override != "" {
		d.Repairs.Override = FixDrop
		stripped = append(stripped, quorum.OverrideAnnotation)
	}
	if d.New.OverrideBy != "" {
		d.Repairs.OverrideBy = FixDrop
		stripped = append(stripped, quorum.OverrideByAnnotation)
	}
	if stripped != nil {
		d.add(quorum.RuleClaim, VerdictRepaired, claimStripped(d.Request, stripped)...)
	}
}

func claimDenied(r *Request, f quorum.InstanceField, other *quorum.Machine) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s may not have %s=%s, which is the instance of Machine %s.", quorum.RuleClaim, r.name(), f.Name, quorum.Clip(f.Value, 120), other.Name),
		"Both would claim one host, and deleting one would take the other's etcd member with it.",
		"Leave " + f.Name + " out of the manifest: the Machine API writes it once the instance exists.",
	}
}

// claimNotTheirs is the denial for who is not the Machine API, or names another instance on a hooked Machine.
func claimNotTheirs(r *Request, field string) []string {
	return []string{
		fmt.Sprintf("Refused (%s): only the Machine API says which instance Machine %s has (%s), and while etcd's hook or latch is on, it may set this only once.", quorum.RuleClaim, r.name(), field),
		"If it named another's instance, the machine controller would terminate that one when the Machine is deleted.",
		"Leave " + field + " out of the change: the Machine API writes it once the instance exists.",
	}
}

func claimUnknown(r *Request, f quorum.InstanceField) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s may not have %s=%s now: it may be another Machine's instance.", quorum.RuleClaim, r.name(), f.Name, quorum.Clip(f.Value, 120)),
		"The other Machines could not be read. Try again in a few seconds; if it stays so, look into Holdfast's log.",
	}
}

// claimDeleted is the denial where another Machine's host would be lost with this one, nil where none would.
func (d *deciding) claimDeleted() *Finding {
	other, key := d.s.LostWith(d.Old)
	if other == nil {
		return nil
	}
	detach := d.kubectl("patch", d.Old.DetachPatch())
	if d.Old.Held() {
		detach = d.override(quorum.RuleClaim) + " && " + detach // else it is put back
	}
	return d.liftable(quorum.RuleClaim,
		fmt.Sprintf("Refused (%s): Machine %s also claims the host of control-plane Machine %s: both have %s.", quorum.RuleClaim, d.name(), other.Name, quorum.Clip(key, 120)),
		"The machine controller would drain and delete that Node or terminate that instance, and etcd's member goes with it.",
		"Take it off that host, then try again: "+detach+" && "+
			d.kubectl("patch", fmt.Sprintf(`--subresource=status --as=%s --type=merge -p '{"status":{"nodeRef":null,"addresses":null,"providerStatus":null}}'`, d.ids.MachineAPI[0])))
}

func (d *deciding) claimDeleteUnknown() *Finding {
	return d.liftable(quorum.RuleClaim,
		fmt.Sprintf("Refused (%s): Machine %s may claim a control-plane Machine's host: Holdfast could not read the Machines.", quorum.RuleClaim, d.name()),
		"Its deletion would delete that host too. Try again in a few seconds; if it stays so, look into Holdfast's log.")
}

// claimKept is the Warning about a field that was put back, with what a person may do about one that was taken off.
func claimKept(r *Request, field string, liftable bool) []string {
	lines := []string{
		fmt.Sprintf("Holdfast (%s) put %s of Machine %s back: it says which instance etcd runs on, and stays while hook %s is on.", quorum.RuleClaim, field, quorum.Clip(r.name(), 70), r.holder()),
	}
	if liftable {
		lines = append(lines, "If another has that instance, and no etcd member is on record here: "+r.override(quorum.RuleClaim)+", and try again.")
	}
	return lines
}

func claimStripped(r *Request, stripped []string) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) left %s out of Machine %s: a copied manifest brings them, and they say nothing about this Machine.", quorum.RuleClaim, strings.Join(stripped, ", "), r.name()),
	}
}
