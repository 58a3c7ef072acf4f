package verify

import "fmt"

// decideOnOwnData decides for a member whose ID the data here have. That is not enough: a snapshot that is restored
// with the same token gives the members, and all of them together the cluster, the IDs that they had.
func decideOnOwnData(f Facts, why string) Decision {
	if f.Position == nil {
		return Decision{VerdictCompare, why, ""}
	}
	for i := range f.Running {
		r := &f.Running[i]
		if r.Cluster != f.Disk.Cluster {
			return refuse(putAsideAdvice(f),
				"The data here are those of member %x of cluster %x, and member %x runs in cluster %x: they are another ring's, or from before etcd was restored from a snapshot.",
				f.Disk.Member, f.Disk.Cluster, r.Member, r.Cluster)
		}
		if wrong := contradictsHistory(f.Position, r, f.Ring.Known); wrong != "" {
			return refuse(putAsideAdvice(f), "The data here are those of member %x from before etcd was restored from a snapshot: %s.", f.Disk.Member, wrong)
		}
	}
	if !f.Ring.Known {
		return Decision{VerdictStart, why, ""}
	}
	if leader(f) == nil {
		return wait("etcd's leader, whose data those here are compared with, does not answer.")
	}
	// A restore leaves term 1, before any election. A running ring would send the log that it has to a member whose
	// restored data hold those writes already. Term 0 is no log at all, and a learner's that lost power before its
	// first write to disk: it promised nothing, and gets everything.
	me := f.Ring.Member(f.Disk.Member)
	nothingYet := me.Learner && f.Position.Term == 0 && f.Position.Index == 0
	if len(me.ClientURLs) > 0 && f.Position.Term <= 1 && !nothingYet {
		return refuse("To restore etcd, stop all of its members first. Else put the data that this member had back in place.",
			"etcd lists %s, which has started before, but the data here never ran: they come from a snapshot.", me)
	}
	return Decision{VerdictStart, why, ""}
}

// leader is the running member that leads, nil without it.
func leader(f Facts) *Running {
	for i := range f.Running {
		if r := &f.Running[i]; r.Member == r.Leader {
			return r
		}
	}
	return nil
}

func putAsideAdvice(f Facts) string {
	return fmt.Sprintf("Move the data directory aside and try again. If etcd then says that the member has started before, remove it (etcdctl member remove %x), and a new one is added in its place.", f.Disk.Member)
}

// contradictsHistory says why data cannot be of the history that a running member is in, "" if they can.
//
// The leader of a ring that just gave a linearizable answer is behind no member in term or committed
// index. And each revision takes an index of its own, so that what the index has on the revision never
// shrinks; a restore sets the index back to the number of members, and not the revision.
func contradictsHistory(p *Position, r *Running, current bool) string {
	leads := current && r.Member == r.Leader
	switch {
	case leads && p.Term > r.Term:
		return fmt.Sprintf("their log ends in term %d, and etcd is in term %d", p.Term, r.Term)
	case leads && p.Commit > r.Commit:
		return fmt.Sprintf("they know of index %d as committed, and etcd is at %d", p.Commit, r.Commit)
	case p.Index > 0 && r.Revision > p.Revision && int64(r.Commit)-r.Revision < int64(p.Index)-p.Revision:
		return fmt.Sprintf("they hold revision %d at index %d, and member %x holds revision %d at index %d, which takes more writes than there were",
			p.Revision, p.Index, r.Member, r.Revision, r.Commit)
	}
	return r.Differs
}
