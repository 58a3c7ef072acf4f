package membership

import (
	"cmp"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// isLeaving reports whether a voter is to go: its Machine is deleting, it is stale, or the installer's.
func (p *planner) isLeaving(m *quorum.Member) bool {
	return p.join.Replacing(m) || p.join.Stale(m) || p.join.Host(m).Bootstrap
}

// leavingFrom is the Machine of a leaving voter whose host is known; ok is false if it may not be removed.
func (p *planner) leavingFrom(member *quorum.Member) (name, uid string, ok bool) {
	host := p.join.Host(member)
	if !p.s.Ring.Removable(member) {
		return "", "", false
	}
	if m := host.Machine(); m != nil && m.Deleting() {
		return m.Name, m.UID, !m.Mirrored
	}
	if p.join.Stale(member) && host.Departed != nil {
		return host.Departed.Machine, host.Departed.MachineUID, true
	}
	return "", "", p.join.Stale(member) || host.Bootstrap
}

// whyLeaving says why a leaving voter is to go.
func (p *planner) whyLeaving(m *quorum.Member) string {
	switch {
	case p.join.Replacing(m):
		return "its Machine is being deleted"
	case p.join.Host(m).Bootstrap:
		return "it is the installer's bootstrap member"
	}
	return "its Machine is gone"
}

// neededFor says what a voter that is to go is still needed for, "" for nothing: an API server may know of no other, as may an installation that
// lasts. A voter that does not answer is needed for nothing, the installer's once it has been dead for longer than a restart takes.
func (p *planner) neededFor(m *quorum.Member) string {
	if !p.join.Host(m).Bootstrap {
		if !m.Healthy {
			return ""
		}
		return p.s.APIServersWait
	}
	if p.s.Dead(m) && p.s.Now.Sub(m.Since) >= p.s.Limits.GoneAfter {
		return ""
	}
	return cmp.Or(p.s.BootstrapWaits, p.s.APIServersWait)
}

// domain is the failure domain of a member, "" if it is not known.
func (p *planner) domain(member *quorum.Member) string {
	m := p.machineOf(member)
	if n := p.join.Node(m); n != nil {
		return cmp.Or(m.Zone, n.Zone)
	}
	return m.Zone
}

// votersInDomain is the number of voters in a member's failure domain.
func (p *planner) votersInDomain(member *quorum.Member) int {
	n := 0
	for k := range p.s.Ring.Members {
		if o := &p.s.Ring.Members[k]; !o.Learner && p.domain(o) == p.domain(member) {
			n++
		}
	}
	return n
}
