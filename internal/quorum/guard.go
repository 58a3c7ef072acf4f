package quorum

import "fmt"

// DrainGuard is the quorum guard as it stands: a PodDisruptionBudget over pods that are ready while
// the etcd member of their Node is healthy, so that nothing drains more Nodes than etcd can spare.
// The zero value is a guard that Holdfast does not manage.
type DrainGuard struct {
	Managed      bool
	Absent       string // why it cannot be managed now, for people: its namespace is missing; "" if it can
	MinAvailable int    // of the budget, -1 without one
	Replicas     int    // of the Deployment, -1 without one
	Intact       bool   // both are otherwise as Holdfast writes them
	Pods         []GuardPod
}

// GuardPod is one pod of the quorum guard.
type GuardPod struct {
	Name, UID string
	Node      string // "" while it is not scheduled
	Ready     bool
	Deleting  bool
}

// Guards is the number of guard pods wanted: one for each control-plane Machine. One less is the
// budget's minAvailable.
func (s *Snapshot) Guards() int {
	n := 0
	for i := range s.Machines {
		if m := &s.Machines[i]; m.ControlPlane() && !m.Mirrored {
			n++
		}
	}
	return n
}

// has says whether a Node has a guard pod, or needs none.
func (g *DrainGuard) has(node string) bool {
	if !g.Managed || g.Absent != "" {
		return true
	}
	for i := range g.Pods {
		if g.Pods[i].Node == node && !g.Pods[i].Deleting {
			return true
		}
	}
	return false
}

// guard is step 8: the guard is sized for the Machines there are, and the pod on the cordoned Node of a
// Machine that was released is deleted: with several deletions the budget would block its drain for ever.
func (p *planner) guard() []Action {
	g, n := &p.s.Guard, p.s.Guards()
	if !g.Managed || g.Absent != "" || n == 0 {
		return nil
	}
	var out []Action
	if g.MinAvailable != n-1 || g.Replicas != n || !g.Intact {
		out = append(out, Action{Kind: SizeGuard, Step: 8, Guards: n, Why: fmt.Sprintf("there are %d control-plane Machines", n)})
	}
	for i := range p.s.Machines {
		m, node := &p.s.Machines[i], p.join.Node(i)
		if !m.Deleting() || m.Mirrored || m.Hook != Absent || node < 0 || !p.s.Nodes[node].Cordoned || !p.hostsNothing(i) {
			continue
		}
		for k := range g.Pods {
			if pod := &g.Pods[k]; pod.Node == p.s.Nodes[node].Name && !pod.Deleting {
				out = append(out, Action{
					Kind: DeleteGuardPod, Step: 8, Machine: m.Name, UID: m.UID, Node: pod.Node, Pod: pod.Name, PodUID: pod.UID,
					Why: "its Machine is released and its Node is cordoned",
				})
			}
		}
	}
	return out
}
