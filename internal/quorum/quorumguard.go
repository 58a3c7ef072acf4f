package quorum

import (
	"net/netip"
	"slices"
)

// Guard is the quorum guard as it stands: a PodDisruptionBudget over pods that are ready while the etcd voter of their
// Node is healthy, so that nothing drains more Nodes than etcd can spare. Each pod is made for its Node. The zero value is a
// guard that Holdfast does not manage.
type Guard struct {
	Managed      bool
	Absent       string // why it cannot be managed now, for people: its namespace is missing; "" if it can
	Version      string // of the budget, "" without one: it is sized only as it was read
	MinAvailable int    // of the budget, -1 without one
	Intact       bool   // the budget is otherwise as Holdfast writes it
	Pods         []GuardPod
}

// GuardPod is a pod that the budget counts.
type GuardPod struct {
	Name, UID string
	Node      string // "" while it is not scheduled
	Owner     PodOwner
	Address   netip.Addr // at which it looks for the Node's etcd member
	Outdated  bool       // it is not as Holdfast writes it, or has ended for good
	Ready     bool
	Deleting  bool
}

// PodOwner says whose a guard pod is, by its controller: anybody can give a pod the guard's label.
type PodOwner uint8

const (
	PodOwnerGuard    PodOwner = 1 + iota // of the budget that stands
	PodOwnerOldGuard                     // of a budget of that name that is gone
	PodOwnerOther                        // no pod of Holdfast's
)

// Manageable says whether the guard can be kept now.
func (g *Guard) Manageable() bool { return g.Managed && g.Absent == "" }

// Pod is the guard's pod on a Node, nil without one.
func (g *Guard) Pod(node string) *GuardPod {
	for i := range g.Pods {
		if p := &g.Pods[i]; p.Node == node && p.Owner == PodOwnerGuard && !p.Deleting {
			return p
		}
	}
	return nil
}

// HasPod says whether a Node has its guard pod, or needs none.
func (g *Guard) HasPod(node string) bool { return !g.Manageable() || g.Pod(node) != nil }

// NeedsGuardPod says whether a Node is to have a guard pod: it hosts a member, surely or perhaps, or is about to.
func (j *Join) NeedsGuardPod(node int) bool {
	for k := range j.Hosts {
		host := &j.Hosts[k]
		if slices.Contains(host.Nodes, node) || slices.ContainsFunc(host.Machines, func(i int) bool { return j.node[i] == node }) {
			return true
		}
	}
	for i := range j.s.Machines {
		if m := &j.s.Machines[i]; j.node[i] == node && j.s.Nodes[node].Ready && m.ControlPlane() && !m.Deleting() && !m.Mirrored {
			return true
		}
	}
	return false
}
