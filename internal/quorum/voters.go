package quorum

import "time"

// Voters are counted for different questions:
//
//	Ring.Voters       all, and those that are healthy                                   has etcd quorum?
//	Join.Staying      healthy, and not on a Machine that is released                    will it have quorum once those are gone?
//	Join.Serving      staying, started, each on one Machine or Node, healthy for long   may another voter be removed?
//	Join.Remaining    certain to be there without a Machine: what is unknown is lost    may that Machine be released?
//	                  (in guard mode without those that cluster-etcd-operator may remove)
//	Join.VotersWith   all, and the learners that may be promoted before it is gone      how many are a quorum then?

// StaysHealthy reports whether a member is healthy and not released. A released member counts as lost even if it still answers.
func (j *Join) StaysHealthy(m *Member) bool { return m.Healthy && !j.Released(m) }

// Staying counts the voters that stay healthy.
func (j *Join) Staying() int {
	return j.count(func(m *Member) bool { return j.StaysHealthy(m) })
}

// Serving counts the voters other than one that stand in for it: each has started, answers, and runs on a Machine or Node that is not
// let go, and has been healthy for that long: a host that catches up once, and then comes and goes, is no replacement. A member that was listed
// by hand and runs on no Machine or Node does not count.
func (j *Join) Serving(without *Member, healthyFor time.Duration) int {
	return j.count(func(m *Member) bool {
		host := j.Host(m)
		return m != without && m.Started() && j.StaysHealthy(m) && len(host.Machines)+len(host.Nodes) == 1 && j.s.Now.Sub(m.Since) >= healthyFor
	})
}

// Remaining counts the healthy voters that etcd has without a Machine, for certain: not those of OperatorMayRemove.
func (j *Join) Remaining(without *Machine) int {
	return j.count(func(m *Member) bool { return j.certain(m, without) }) - j.OperatorMayRemove(without)
}

// OperatorMayRemove counts, in guard mode, the healthy voters that are there without a Machine, and whose own Machines are being deleted:
// cluster-etcd-operator, which knows of no lock and no ledger, may be about to remove them.
func (j *Join) OperatorMayRemove(without *Machine) int {
	return j.count(func(m *Member) bool {
		return j.s.Mode == ModeGuard && j.Replacing(m) && j.certain(m, without)
	})
}

// certain reports whether a healthy voter is there without a Machine for certain. One that may run on that Machine is not, nor one that is
// released, nor one whose host is being powered off. While the ledger is young, it may lack entries: then a voter is only if its one Machine
// is live, or deleting with the hook on.
func (j *Join) certain(member *Member, without *Machine) bool {
	host := j.Host(member)
	if !member.Healthy || !host.Known() || j.Released(member) || j.ReleasePending(member) || j.goes(member, without) {
		return false
	}
	m := host.Machine()
	return !j.s.ledgerYoung() || m != nil && (!m.Deleting() || m.Hook == EntryOurs)
}

// goes reports whether a member may run on a Machine that is let go or powered off, or on the one given.
func (j *Join) goes(member *Member, with *Machine) bool {
	for i := range j.s.Machines {
		if m := &j.s.Machines[i]; (m == with || m.DeletingUnheld() || j.s.powersOff(m)) && j.MayRun(m, member) {
			return true
		}
	}
	return false
}

// VotersWith counts the voters of which Remaining has to be a quorum: those of OperatorMayRemove are in neither. The learners that go with a
// Machine or those before it count: meanwhile cluster-etcd-operator may promote them.
func (j *Join) VotersWith(m *Machine) int {
	voters, _ := j.s.Ring.Voters()
	voters -= j.OperatorMayRemove(m)
	for k := range j.s.Ring.Members {
		if member := &j.s.Ring.Members[k]; member.Learner && (j.goes(member, m) || j.ReleasePending(member) || j.Released(member)) {
			voters++
		}
	}
	return voters
}

// count counts the voters for which a condition holds.
func (j *Join) count(holds func(m *Member) bool) (n int) {
	for k := range j.s.Ring.Members {
		if m := &j.s.Ring.Members[k]; !m.Learner && holds(m) {
			n++
		}
	}
	return n
}
