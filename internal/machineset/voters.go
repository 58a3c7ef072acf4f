package machineset

import "github.com/holdfast-dev/holdfast/internal/quorum"

// Want puts into a Snapshot what the set wants of etcd.
func Want(s *quorum.Snapshot, set *Set) {
	s.Replicas, s.Desired, s.DesiredWhy = set.Replicas, desired(s, set), ""
	s.Surge = len(newPlanner(s, set).live) > set.Replicas
}

// desired is how many voters the set wants of etcd now: an odd number up to replicas. It rises as learners come, and falls by one step at
// a time. Where Machines are missing it is not below what etcd has, so that nothing leaves without a replacement; for that, a replacement
// that is under way while the set grows waits until it has grown. While etcd cannot be read it is what the set wants in the end.
func desired(s *quorum.Snapshot, set *Set) int {
	if !s.Ring.Known {
		return set.Replicas
	}
	voters, _ := s.Ring.Voters()
	if voters > set.Replicas {
		return max(set.Replicas, odd(voters-1))
	}
	return max(1, min(set.Replicas, odd(len(s.Ring.Members)+1)))
}

// odd is the largest odd number up to n.
func odd(n int) int { return n - 1 + n%2 }
