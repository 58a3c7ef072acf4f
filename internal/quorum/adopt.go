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

// owns says whether the rule adopt looks at the owners of the request's Machine. A deleting one has nothing to lose any more.
func (r *Request) owns() bool {
	if r.Old == nil {
		return r.New.ControlPlane() || r.New.Hook == Ours
	}
	return r.guarded() && !r.Old.Deleting()
}

// Adopts says whether the request makes an owner the controller of a control-plane Machine. Whoever its kind says it is, it may be a
// MachineSet: that one's controller goes by the UID.
func (r *Request) Adopts() bool {
	return r.New != nil && r.owns() && slices.ContainsFunc(r.New.Owners, func(o Owner) bool { return o.Controller && r.adds(o) })
}

// admitOwners is the rule adopt for a Machine. Where it is not known which MachineSets there are, a control plane's usual owner
// passes: its operator must not wait.
func admitOwners(d *Decision, r *Request, s *Snapshot) {
	if !r.owns() {
		return
	}
	unknown := s == nil || s.MachineSetsWhy != ""
	for i, o := range r.New.Owners {
		switch {
		case !r.adds(o):
		case o.scales(), o.Controller && !unknown && slices.Contains(s.MachineSets, o.UID):
			d.add(Adopt, Denied, adoptDenied(r, &r.New.Owners[i])...)
			return
		case o.Controller && unknown && !o.usual():
			d.add(Adopt, Denied, adoptUnknown(r, &r.New.Owners[i])...)
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
