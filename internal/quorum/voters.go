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

// count counts the voters that are such.
func (j *Join) count(such func(m *Member) bool) (n int) {
	for k := range j.s.Ring.Members {
		if m := &j.s.Ring.Members[k]; !m.Learner && such(m) {
			n++
		}
	}
	return n
}
