package machineset

import (
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// MaxUnhealthy is spec.maxUnhealthy of the MachineHealthCheck that the set keeps: as many as etcd can lose, and none while a live Machine's
// Node is cordoned and not ready: whoever cordoned the host restarts it, and it comes back. ok is false where the set keeps none.
func MaxUnhealthy(s *quorum.Snapshot, set *Set) (n int, ok bool) {
	if !set.AutoRepair || !set.Reconciled() {
		return 0, false
	}
	p := newPlanner(s, set)
	if slices.ContainsFunc(p.live, func(m *quorum.Machine) bool {
		node := p.join.Node(m)
		return node != nil && node.Cordoned && !node.Ready
	}) {
		return 0, true
	}
	return max(0, quorum.Tolerance(set.Replicas)), true
}
