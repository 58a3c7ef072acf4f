package machineset

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// shut says why the set creates and deletes nothing now; "" if it may. Machines that are being deleted or will not come up are no such
// reason, nor is except, the Machine that the set would replace or delete (nil for none).
func (p *planner) shut(except *quorum.Machine) string {
	ring := &p.s.Ring
	switch {
	case !ring.Known:
		return "etcd did not answer a linearizable read: " + p.s.RingWhy()
	case ring.Leader == 0:
		return "etcd has no leader"
	case len(ring.Alarms) > 0:
		return "etcd refuses every write until its alarm is disarmed"
	case p.s.Desired == 0:
		return "how many voters are wanted is not known: " + p.s.DesiredWhy
	}
	for k := range ring.Members {
		if member := &ring.Members[k]; member.Learner && !p.on(except, member) {
			return fmt.Sprintf("learner %s%s has not been promoted", member, p.where(member))
		}
	}
	for _, m := range p.live {
		if m == except || p.wrecked(m) {
			continue
		}
		if n := p.join.Node(m); n == nil && m.Phase == "Failed" {
			return fmt.Sprintf("Machine %s has failed%s, and gets no Node; delete it, and the set creates another", m.Name, p.said(m))
		} else if n == nil {
			return fmt.Sprintf("Machine %s has no Node yet%s", m.Name, p.said(m))
		} else if !n.Ready {
			return fmt.Sprintf("Node %s of Machine %s is not ready", n.Name, m.Name)
		}
		for _, member := range p.join.Members(m) {
			if !member.Healthy {
				return p.ill(member)
			}
		}
	}
	if voters, healthy := ring.Voters(); healthy < quorum.Size(voters) {
		return fmt.Sprintf("%d of %s are healthy, and quorum is %d", healthy, quorum.NVoters(voters), quorum.Size(voters))
	}
	return ""
}

// said is what a Machine's status says is wrong, in brackets.
func (p *planner) said(m *quorum.Machine) string {
	if of := p.set.place(m).Error; of != "" {
		return " (" + of + ")"
	}
	return ""
}

// unsettled is what keeps the gate shut for a change that no Machine's loss asks for: a rollout, a smaller set.
func (p *planner) unsettled(except *quorum.Machine) string {
	if shut := p.shut(except); shut != "" {
		return shut
	}
	if len(p.deleting) > 0 {
		return fmt.Sprintf("Machine %s is still being deleted", p.deleting[0].Name)
	}
	if voters, _ := p.s.Ring.Voters(); voters < p.s.Desired {
		return fmt.Sprintf("etcd has %s, and %d are wanted", quorum.NVoters(voters), p.s.Desired)
	}
	for k := range p.s.Ring.Members {
		if member := &p.s.Ring.Members[k]; !member.Healthy && !p.on(except, member) {
			return p.ill(member)
		}
	}
	return ""
}

// ill says that a member is not healthy, and what to do where its host may be lost.
func (p *planner) ill(member *quorum.Member) string {
	text := fmt.Sprintf("etcd member %s%s is not healthy: %s", member, p.where(member), member.Why)
	if m := p.join.Host(member).Machine(); m != nil && p.s.Dead(member) && !m.Deleting() {
		text += "; if its host is lost, delete Machine " + m.Name
	}
	return text
}

// where is " on Machine x", "" for a member on no Machine.
func (p *planner) where(member *quorum.Member) string {
	if m := p.join.Host(member).Machine(); m != nil {
		return " on Machine " + m.Name
	}
	return ""
}

// joinsNone says why the replacement of a Machine may not join etcd: the Machine's own voter is not healthy, and etcd may add no member
// while it is listed. "" if it joins.
func (p *planner) joinsNone(m *quorum.Machine) string {
	if v := p.join.Voter(m); v != nil && !v.Healthy {
		return p.ill(v)
	}
	return ""
}

// wait notes what the set waits for before it does something.
func (p *planner) wait(todo, why string) []Action {
	p.waits = true
	p.note(ReasonGateShut, "", "the set waits to %s: %s", todo, why)
	return nil
}

// wrecked reports whether a Machine will not come up as the set wants it: it is outdated, and has neither a ready Node nor a member. Of one that
// the set created from the template as it is, another would be the same.
// With strategy OnDelete no Machine is: a person says what is replaced.
func (p *planner) wrecked(m *quorum.Machine) bool {
	is, _ := p.join.Hosting(m)
	return p.set.Strategy == StrategyRollingUpdate && p.outdated(m) != "" && !p.set.place(m).Fresh && is == quorum.HostingNothing && !p.ready(m)
}

// on reports whether a member runs on a Machine, which may be nil.
func (p *planner) on(m *quorum.Machine, member *quorum.Member) bool {
	return m != nil && p.join.Host(member).Machine() == m
}
