package quorum

import "time"

// CaughtUp reports whether a learner answers and is no more than Limits.MaxLag entries behind the leader.
// etcd has a check of its own besides: it promotes no learner that has less than 90 % of the leader's log.
func (s *Snapshot) CaughtUp(m *Member) bool {
	return m.Started() && m.Healthy && s.Lag(m) <= s.Limits.MaxLag
}

// Steady reports whether a learner has been caught up for as long as Limits.SteadyFor: one that falls
// behind again as soon as clients write is not worth a vote yet.
func (s *Snapshot) Steady(m *Member) bool {
	return s.CaughtUp(m) && !m.CaughtUpAt.IsZero() && s.Now.Sub(m.CaughtUpAt) >= s.Limits.SteadyFor
}

// SteadyIn is how long the next learner that has caught up has yet to keep up; ok is false if there is none.
func (s *Snapshot) SteadyIn() (left time.Duration, ok bool) {
	for k := range s.Ring.Members {
		m := &s.Ring.Members[k]
		if !m.Learner || !s.CaughtUp(m) || s.Steady(m) {
			continue
		}
		still := s.Limits.SteadyFor
		if !m.CaughtUpAt.IsZero() {
			still -= s.Now.Sub(m.CaughtUpAt)
		}
		if !ok || still < left {
			left, ok = still, true
		}
	}
	return left, ok
}

// Lag is how many raft entries a member is behind the leader.
func (s *Snapshot) Lag(m *Member) uint64 {
	if m.Applied >= s.Ring.Index {
		return 0
	}
	return s.Ring.Index - m.Applied
}
