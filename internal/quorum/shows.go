package quorum

import "slices"

// Shows says whether the cluster is as the action leaves it. An answer that got lost may belong to a change that was made:
// this is how one finds out. False also stands for what a Snapshot does not tell.
func (s *Snapshot) Shows(a Action) bool {
	if a.Kind.Membership() && !s.Ring.Known {
		return false
	}
	member := s.Ring.Member(a.Member)
	machine := slices.IndexFunc(s.Machines, func(m Machine) bool { return m.UID == a.UID })
	switch a.Kind {
	case RemoveLearner, RemoveVoter:
		return member == nil
	case Promote:
		return member != nil && !member.Learner
	case MoveLeader:
		return s.Ring.Leader == a.To
	case AddLearner:
		return slices.ContainsFunc(s.Ring.Members, func(m Member) bool { return slices.Contains(m.PeerURLs, a.PeerURL) })
	case ReleaseHook:
		return machine < 0 || (!a.Hook || s.Machines[machine].Hook != Ours) && (!a.Latch || s.Machines[machine].Latch != Ours)
	case AddHook:
		return machine >= 0 && (!a.Hook || s.Machines[machine].Hook == Ours) && (!a.Latch || s.Machines[machine].Latch == Ours)
	case RecordRelease:
		return s.Ledger.has(a.UID)
	case SizeGuard, CreateGuardPod, DeleteGuardPod: // the plan says so anew if it is still to do, and nobody asks after it
	}
	return false
}
