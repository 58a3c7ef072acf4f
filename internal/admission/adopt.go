package admission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Adopts reports whether the request makes an owner the controller of a control-plane Machine. The owner may be a MachineSet whatever
// its kind says, because the MachineSet controller compares only UIDs.
func (r *Request) Adopts() bool {
	return r.New != nil && r.owns() && slices.ContainsFunc(r.New.Owners, func(o quorum.Owner) bool { return o.Controller && r.adds(o) })
}

// owns reports whether the rule adopt looks at the owners of the request's Machine. A deleting one has nothing to lose any more.
func (r *Request) owns() bool {
	if r.Old == nil {
		return r.New.ControlPlane()
	}
	return r.guarded() && !r.Old.Deleting()
}

// adds reports whether the old object does not have this owner reference of the new one, or has it without controller: true.
// A Machine that becomes a control-plane Machine counts as new.
func (r *Request) adds(o quorum.Owner) bool {
	return r.Old == nil || r.becomesGuarded() || !slices.ContainsFunc(r.Old.Owners, func(was quorum.Owner) bool {
		return was == o || was.Controller && was == quorum.Owner{Group: o.Group, Kind: o.Kind, Name: o.Name, UID: o.UID, Controller: true}
	})
}

// scales reports whether the owner deletes what it controls to scale down.
func scales(o quorum.Owner) bool {
	return o.Controller && (o.Kind == "MachineSet" && (o.Group == machineAPI || o.Group == clusterAPI) || o.Kind == "MachineDeployment" && o.Group == clusterAPI)
}

// usual reports whether it is the controller that control-plane Machines have.
func usual(o quorum.Owner) bool {
	return o.Controller && o.Group == machineAPI && o.Kind == "ControlPlaneMachineSet"
}

const (
	machineAPI = "machine.openshift.io"
	clusterAPI = "cluster.x-k8s.io"
)

// MostOwners is how many owners a control-plane Machine may get. To compare two lists of as many as fit into a Machine takes longer than the
// API server waits for an answer.
const MostOwners = 100

// admitOwners is the rule adopt for a Machine. Where it is not known which sets there are, a control plane's usual owner
// passes: its operator must not wait.
func (d *deciding) admitOwners() {
	if !d.owns() || d.Old != nil && !d.becomesGuarded() && slices.Equal(d.Old.Owners, d.New.Owners) {
		return
	}
	if len(d.New.Owners) > MostOwners {
		d.add(quorum.RuleAdopt, VerdictDenied, tooManyOwners(d.Request)...)
		return
	}
	unknown := d.s == nil || d.s.MachineSetsWhy != ""
	for i, o := range d.New.Owners {
		switch {
		case !d.adds(o):
		case scales(o), o.Controller && !unknown && slices.Contains(d.s.MachineSets, o.UID):
			d.add(quorum.RuleAdopt, VerdictDenied, adoptDenied(d.Request, &d.New.Owners[i])...)
			return
		case usual(o) && !unknown && !slices.Contains(d.s.ControlPlaneMachineSets, o.UID):
			d.add(quorum.RuleAdopt, VerdictDenied, adoptAbsent(d.Request, &d.New.Owners[i])...)
			return
		case o.Controller && unknown && !usual(o):
			d.add(quorum.RuleAdopt, VerdictDenied, adoptUnknown(d.Request, &d.New.Owners[i])...)
			return
		}
	}
	for i, o := range d.New.Owners {
		if d.adds(o) && !usual(o) {
			d.add(quorum.RuleAdopt, VerdictAllowed, ownerAdded(d.Request, &d.New.Owners[i])...)
			return // one is enough to say: the others are removed alike
		}
	}
}

func adoptDenied(r *Request, o *quorum.Owner) []string {
	then := "Leave that owner reference out. See which Machines it selects, and narrow that: kubectl -n " + r.Namespace + " get " + resource(o) + " " + quorum.Clip(o.Name, 80) + " -o jsonpath='{.spec.selector}'"
	if !scales(*o) {
		then = "Leave that owner reference out: by its UID " + quorum.Clip(o.UID, 40) + " it is a MachineSet. See which: kubectl -n " + r.Namespace + " get machinesets.machine.openshift.io -o custom-columns=NAME:.metadata.name,UID:.metadata.uid"
	}
	return []string{
		fmt.Sprintf("Refused (%s): %s %s may not become the controller of control-plane Machine %s.", quorum.RuleAdopt, quorum.Clip(o.Kind, 40), quorum.Clip(o.Name, 80), r.name()),
		"It would count the Machine among its replicas and delete it, and its etcd member with it, to scale down.",
		then,
	}
}

func adoptAbsent(r *Request, o *quorum.Owner) []string {
	return []string{
		fmt.Sprintf("Refused (%s): control-plane Machine %s would have a controller that does not exist: ControlPlaneMachineSet %s with UID %s.", quorum.RuleAdopt, r.name(), quorum.Clip(o.Name, 60), quorum.Clip(o.UID, 40)),
		"The garbage collector would delete the Machine at once.",
		"Leave that owner reference out, or give the UID of a set that is there: kubectl -n " + r.Namespace + " get controlplanemachinesets -o custom-columns=NAME:.metadata.name,UID:.metadata.uid",
	}
}

func adoptUnknown(r *Request, o *quorum.Owner) []string {
	return []string{
		fmt.Sprintf("Refused (%s): %s %s may not become the controller of control-plane Machine %s now: by its UID it may be a MachineSet.", quorum.RuleAdopt, quorum.Clip(o.Kind, 40), quorum.Clip(o.Name, 80), r.name()),
		"The sets of Machines could not be read. Try again in a few seconds; if it stays so, look into Holdfast's log.",
	}
}

func tooManyOwners(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): control-plane Machine %s may not have %d owners: Holdfast looks at %d.", quorum.RuleAdopt, r.name(), len(r.New.Owners), MostOwners),
		"One of them may count the Machine among its replicas, and delete it to scale down.",
		"Leave out those that it does not need. See how many it has: " + r.kubectl("get", "-o jsonpath='{.metadata.ownerReferences[*].name}'"),
	}
}

// resource is what kubectl calls an owner that scales.
func resource(o *quorum.Owner) string { return strings.ToLower(o.Kind) + "." + o.Group }

func ownerAdded(r *Request, o *quorum.Owner) []string {
	lines := []string{
		fmt.Sprintf("Holdfast (%s): Machine %s now has an owner, %s %s.", quorum.RuleAdopt, quorum.Clip(r.name(), 80), quorum.Clip(o.Kind, 40), quorum.Clip(o.Name, 60)),
		"The garbage collector deletes the Machine when that owner is gone, or does not exist in the first place.",
	}
	return append(lines, "If that is not meant, take the owner reference out again: "+r.kubectl("edit", ""))
}

// SetRequest creates or changes a MachineSet.
type SetRequest struct {
	Namespace, Name string
	Template        quorum.Machine // Role and Type that its Machines get
}

// AdmitSet is the rule adopt for a MachineSet that selects or makes control-plane Machines. It only
// warns: the rule refuses each control-plane Machine when the MachineSet tries to adopt it.
func AdmitSet(r *SetRequest, s *quorum.Selection) Decision {
	var d Decision
	if len(s.Machines) > 0 || r.Template.ControlPlane() {
		d.add(quorum.RuleAdopt, VerdictAllowed, setWarned(r, s)...)
	}
	return d
}

func setWarned(r *SetRequest, s *quorum.Selection) []string {
	first := fmt.Sprintf("Holdfast (%s): the template of MachineSet %s makes control-plane Machines.", quorum.RuleAdopt, quorum.Clip(r.Name, 80))
	if len(s.Machines) > 0 {
		var names []string
		for i := range s.Machines {
			names = append(names, s.Machines[i].Name)
		}
		first = fmt.Sprintf("Holdfast (%s): MachineSet %s selects control-plane Machines: %s.", quorum.RuleAdopt, quorum.Clip(r.Name, 80), quorum.Clip(strings.Join(names, ", "), 100))
	}
	return []string{
		first,
		"Holdfast does not let it adopt one: to scale down, it would delete the Machine and its etcd member.",
		"Narrow its selector and template to workers. Control-plane Machines go with a ControlPlaneMachineSet: kubectl -n " + r.Namespace + " get controlplanemachineset",
	}
}
