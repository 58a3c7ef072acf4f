package quorum

// Dead reports whether a member does not answer and etcd's leader has counted it as lost for Limits.DeadAfter. A member that does not answer
// Holdfast may still vote.
func (s *Snapshot) Dead(m *Member) bool {
	return !m.Healthy && !m.LostSince.IsZero() && s.Now.Sub(m.LostSince) >= s.Limits.DeadAfter
}

// Stale reports whether a member is a dead voter whose Machine no longer exists, even if a new host has its address or name. A voter on a
// Node without a Machine is never stale: that Node may be rebooting.
func (j *Join) Stale(member *Member) bool {
	return !member.Learner && j.s.Dead(member) && j.Host(member).Departed != nil
}
