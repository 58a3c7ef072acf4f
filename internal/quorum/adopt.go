package quorum

import "slices"

// Owner is one of a Machine's owner references.
type Owner struct {
	Group, Kind, Name, UID string
	Controller             bool
}

// scales says whether the owner deletes what it controls to scale down.
func (o Owner) scales() bool {
	return o.Controller && (o.Kind == "MachineSet" && (o.Group == machineAPI || o.Group == clusterAPI) || o.Kind == "MachineDeployment" && o.Group == clusterAPI)
}

// usual says whether control-plane Machines have such owners.
func (o Owner) usual() bool {
	return o.Group == machineAPI && (o.Kind == "ControlPlaneMachineSet" || o.Kind == "MachineHealthCheck")
}

const (
	machineAPI = "machine.openshift.io"
	clusterAPI = "cluster.x-k8s.io"
)

// adds says whether an owner reference of the new object is none of the old one's, or makes its owner
// the controller. A Machine that becomes the control plane's is like a new one.
func (r *Request) adds(o Owner) bool {
	return r.Old == nil || r.becomesGuarded() || !slices.ContainsFunc(r.Old.Owners, func(was Owner) bool {
		return was == o || was.Controller && was == Owner{o.Group, o.Kind, o.Name, o.UID, true}
	})
}

// admitOwners is the rule adopt for a Machine. A deleting one has nothing to lose any more.
func admitOwners(d *Decision, r *Request) {
	if r.Old != nil && r.Old.Deleting() || r.Old == nil && !r.New.ControlPlane() && r.New.Hook != Ours {
		return
	}
	for i, o := range r.New.Owners {
		if r.adds(o) && o.scales() {
			d.add(Adopt, Denied, adoptDenied(r, &r.New.Owners[i])...)
			return
		}
	}
	for i, o := range r.New.Owners {
		if r.adds(o) && !o.usual() {
			d.add(Adopt, Allowed, ownerAdded(r, &r.New.Owners[i])...)
			return // one is enough to say: the others are removed alike
		}
	}
}

// Selection is what the selector of a MachineSet or a MachineHealthCheck meets.
type Selection struct {
	Machines []Machine // those of the control plane that it matches
	Total    int       // all that it matches, workers too
	Desired  int       // voters wanted, 0 when unknown
}

// SetRequest creates or changes a MachineSet.
type SetRequest struct {
	Namespace, Name string
	Template        Machine // Role and Type that its Machines get
}

// AdmitSet is the rule adopt for a MachineSet that selects or makes control-plane Machines. It is only
// told: what it would adopt is refused to it Machine by Machine.
func AdmitSet(r *SetRequest, s *Selection) Decision {
	var d Decision
	if len(s.Machines) > 0 || r.Template.ControlPlane() {
		d.add(Adopt, Allowed, setWarned(r, s)...)
	}
	return d
}
