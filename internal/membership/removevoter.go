package membership

import (
	"cmp"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// removeVoter is step 4: a voter of a deleting Machine, or the bootstrap member, goes once the others are as many as wanted,
// healthy enough, and tolerate what they should.
func (p *planner) removeVoter() []Action {
	s := p.s
	voters, healthy := p.voterCounts()
	best := -1
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		if _, _, ok := p.leavingFrom(k); !ok || member.Learner {
			continue
		}
		left, remain := healthy, voters-1
		if p.staysHealthy(k) {
			left--
			remain = p.servingWithout(k)
		}
		spare, now := left-quorum.Size(voters-1), healthy-quorum.Size(voters)
		if remain < s.Desired || spare < min(now, quorum.Tolerance(s.Desired)) || !p.quorumWithout(k) {
			continue
		}
		if best < 0 || p.removalOrder(k, best) < 0 {
			best = k
		}
	}
	if best < 0 {
		return nil
	}
	member := &s.Ring.Members[best]
	machine, uid, _ := p.leavingFrom(best)
	a := Action{Kind: RemoveVoter, Step: 4, Machine: machine, UID: uid, Member: member.ID, MemberName: member.Name}
	a.Why = fmt.Sprintf("%s, and %s remain for %d wanted", p.whyLeaving(best), quorum.NVoters(voters-1), s.Desired)
	if to := p.successor(best); s.Ring.Leader == member.ID && to >= 0 {
		a = p.moveLeader(a.Step, best, to, "the leader is about to be removed")
	}
	return []Action{a}
}

// quorumWithout reports whether etcd keeps a quorum of healthy voters when this member is removed. Voters on released Machines
// count: they vote until they stop.
func (p *planner) quorumWithout(without int) bool {
	voters, alive := p.s.Ring.Voters()
	if p.s.Ring.Members[without].Healthy {
		alive--
	}
	return alive >= quorum.Size(voters-1)
}

// voterCounts returns the number of voters, and how many of them are healthy and not released.
func (p *planner) voterCounts() (voters, healthy int) {
	for k := range p.s.Ring.Members {
		if !p.s.Ring.Members[k].Learner {
			voters++
			if p.staysHealthy(k) {
				healthy++
			}
		}
	}
	return voters, healthy
}

// staysHealthy reports whether a member is healthy and not released. A released member counts as lost even if it still answers.
func (p *planner) staysHealthy(k int) bool { return p.s.Ring.Members[k].Healthy && !p.join.Released(k) }

// servingWithout counts the voters other than k that stand in for it: each has started, answers, and runs on a Machine or Node that is not
// let go. What somebody listed by hand is none of these.
func (p *planner) servingWithout(k int) int {
	n := 0
	for o := range p.s.Ring.Members {
		member, host := &p.s.Ring.Members[o], &p.join.Hosts[o]
		if o != k && !member.Learner && member.Started() && p.staysHealthy(o) && len(host.Machines)+len(host.Nodes) == 1 {
			n++
		}
	}
	return n
}

// removalOrder orders leaving voters: unhealthy first, then the bootstrap member, then the most crowded failure
// domain, then the longest deleting.
func (p *planner) removalOrder(a, b int) int {
	one, two := &p.s.Ring.Members[a], &p.s.Ring.Members[b]
	if p.staysHealthy(a) != p.staysHealthy(b) {
		if p.staysHealthy(b) {
			return -1
		}
		return 1
	}
	if p.join.Hosts[a].Bootstrap != p.join.Hosts[b].Bootstrap {
		if p.join.Hosts[a].Bootstrap {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(p.votersInZone(b), p.votersInZone(a)),
		p.deletedAt(a).Compare(p.deletedAt(b)),
		cmp.Compare(one.ID, two.ID),
	)
}

// zone is the failure domain of a member, "" if it is not known.
func (p *planner) zone(k int) string {
	if i := p.join.Hosts[k].Machine(); i >= 0 {
		if zone := p.s.Machines[i].Zone; zone != "" {
			return zone
		}
		if n := p.join.Node(i); n >= 0 {
			return p.s.Nodes[n].Zone
		}
	}
	return ""
}

// votersInZone is the number of voters in a member's failure domain.
func (p *planner) votersInZone(k int) int {
	n := 0
	for o := range p.s.Ring.Members {
		if !p.s.Ring.Members[o].Learner && p.zone(o) == p.zone(k) {
			n++
		}
	}
	return n
}

func (p *planner) deletedAt(k int) time.Time {
	if i := p.join.Hosts[k].Machine(); i >= 0 {
		return p.s.Machines[i].DeletedAt
	}
	return time.Time{} // gone already: the longest
}

// isLeaving says whether a voter is to go: its Machine is deleting, it is stale, or the installer's.
func (p *planner) isLeaving(k int) bool {
	return p.join.Replacing(k) || p.join.Stale(k) || p.join.Hosts[k].Bootstrap
}

// leavingFrom is the Machine of a leaving voter whose host is known; ok is false if it may not be removed.
func (p *planner) leavingFrom(k int) (name, uid string, ok bool) {
	host := &p.join.Hosts[k]
	if i := host.Machine(); i >= 0 && p.s.Machines[i].Deleting() {
		return p.s.Machines[i].Name, p.s.Machines[i].UID, !p.s.Machines[i].Mirrored
	}
	if p.join.Stale(k) && host.Departed != nil {
		return host.Departed.Machine, host.Departed.MachineUID, true
	}
	return "", "", p.join.Stale(k) || host.Bootstrap
}

// whyLeaving says why a leaving voter is to go.
func (p *planner) whyLeaving(k int) string {
	switch {
	case p.join.Replacing(k):
		return "its Machine is being deleted"
	case p.join.Hosts[k].Bootstrap:
		return "it is the installer's bootstrap member"
	}
	return "its Machine is gone"
}
