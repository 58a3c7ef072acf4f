package machineset

import "github.com/holdfast-dev/holdfast/internal/quorum"

// Desired is how many voters the set wants of etcd now: an odd number up to replicas. It rises as learners come, and falls by one step at
// a time. Where Machines are missing it is not below what etcd has, so that nothing leaves without a replacement; for that, a replacement
// that is under way while the set grows waits until it has grown.
func Desired(s *quorum.Snapshot, set *Set) int {
	voters, _ := s.Ring.Voters()
	if voters > set.Replicas {
		return max(set.Replicas, odd(voters-1))
	}
	return max(1, min(set.Replicas, odd(len(s.Ring.Members)+1)))
}

// Surge says whether the set has more live Machines than wanted.
func Surge(s *quorum.Snapshot, set *Set) bool {
	return len(newPlanner(s, set).live) > set.Replicas
}

// odd is the largest odd number up to n.
func odd(n int) int { return n - 1 + n%2 }
