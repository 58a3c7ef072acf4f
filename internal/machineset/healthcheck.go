package machineset

import "github.com/holdfast-dev/holdfast/internal/quorum"

// MaxUnhealthy is spec.maxUnhealthy of the MachineHealthCheck that the set keeps: as many as etcd can lose. ok is false where the set
// keeps none.
func MaxUnhealthy(set *Set) (n int, ok bool) {
	if !set.AutoRepair || !set.Reconciled() {
		return 0, false
	}
	return max(0, quorum.Tolerance(set.Replicas)), true
}
