package quorum

import (
	"net/netip"
	"slices"
)

// Guard is the quorum guard as it stands: a PodDisruptionBudget over pods that are ready while the etcd voter of their
// Node is healthy, so that nothing drains more Nodes than etcd can spare. Each pod is made for its Node. The zero value is that
// Holdfast knows of none. In guard mode it is cluster-etcd-operator's, which is compared with the members, and left alone.
type Guard struct {
	Managed      bool       `json:"-"`                      // by Holdfast, in full mode
	Absent       string     `json:"absent,omitzero"`        // why it cannot be managed now, for people: its namespace is missing; "" if it can
	Version      string     `json:"version,omitzero"`       // of the budget, "" without one: it is sized only as it was read
	MinAvailable *int       `json:"minAvailable,omitempty"` // of the budget, nil without one
	Intact       bool       `json:"intact"`                 // the budget is otherwise as Holdfast writes it
	Pods         []GuardPod `json:"pods,omitempty"`
}

// GuardPod is a pod that the budget counts.
type GuardPod struct {
	Name     string     `json:"name"`
	UID      string     `json:"uid,omitzero"`
	Node     string     `json:"node,omitzero"` // "" while it is not scheduled
	Owner    PodOwner   `json:"owner,omitzero"`
	Address  netip.Addr `json:"address,omitzero"`  // at which it looks for the Node's etcd member
	Outdated bool       `json:"outdated,omitzero"` // it is not as Holdfast writes it, or has ended for good
	Ready    bool       `json:"ready"`
	Deleting bool       `json:"deleting,omitzero"`
}

// PodOwner says whose a guard pod is, by its controller: anybody can give a pod the guard's label.
type PodOwner uint8

const (
	PodOwnerGuard    PodOwner = 1 + iota // of the budget that stands
	PodOwnerOldGuard                     // of a budget of that name that is gone
	PodOwnerOther                        // no pod of Holdfast's
)

// Manageable reports whether the guard can be kept now.
func (g *Guard) Manageable() bool { return g.Managed && g.Absent == "" }

// AtLeast reports whether the budget keeps that many pods.
func (g *Guard) AtLeast(n int) bool { return g.MinAvailable != nil && *g.MinAvailable >= n }

// Pod is the guard's pod on a Node, nil without one.
func (g *Guard) Pod(node string) *GuardPod {
	for i := range g.Pods {
		if p := &g.Pods[i]; p.Node == node && p.Owner == PodOwnerGuard && !p.Deleting {
			return p
		}
	}
	return nil
}

// Stands reports whether a quorum guard is in place: Holdfast manages one, or a budget or pod of cluster-etcd-operator exists.
func (g *Guard) Stands() bool {
	return g.Absent == "" && (g.Managed || g.MinAvailable != nil || len(g.Pods) > 0)
}

// PodSatisfied reports whether a Node has its guard pod, or needs none.
func (g *Guard) PodSatisfied(node string) bool { return !g.Manageable() || g.Pod(node) != nil }

// MembersOn are the listed members that a Node hosts, surely or perhaps.
func (j *Join) MembersOn(n *Node) []*Member {
	var out []*Member
	for k := range j.hosts {
		host := &j.hosts[k]
		if slices.Contains(host.Nodes, n) || slices.ContainsFunc(host.Candidates, func(m *Machine) bool { return j.Node(m) == n }) {
			out = append(out, &j.s.Ring.Members[k])
		}
	}
	return out
}

// NeedsGuardPod reports whether a Node is to have a guard pod: it hosts a member, surely or perhaps, or is about to.
func (j *Join) NeedsGuardPod(n *Node) bool {
	if len(j.MembersOn(n)) > 0 {
		return true
	}
	for i := range j.s.Machines {
		if m := &j.s.Machines[i]; j.nodes[i] == n && n.Ready && m.ControlPlane() && !m.Deleting() && !m.Mirrored {
			return true
		}
	}
	return false
}
