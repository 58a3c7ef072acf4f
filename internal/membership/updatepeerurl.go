package membership

import (
	"fmt"
	"net/url"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// updatePeerURL is the first half of step 5: it has etcd list a dead voter at its host's new address, so that the voter goes on with its
// data. Only the host knows which of its addresses etcd uses. So this goes by what the host says: holdfast verify membership waits there
// with the member's data, and etcd does not run.
func (p *planner) updatePeerURL() []Action {
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		if !p.s.Dead(member) || p.whyNotListed(member) != "" {
			continue
		}
		m := p.join.Host(member).Machine()
		return []Action{{
			Step: 5, Machine: m.Name, UID: m.UID, Change: UpdatePeerURL{Member{member.ID, member.Name}, member.WaitsAt},
			Why: fmt.Sprintf("it is dead, and its etcd waits on its host for being listed there instead of at %s", member.PeerURLs[0]),
		}}
	}
	return nil
}

// whyNotListed says why Holdfast leaves an unhealthy voter at its peer URL, "" if it changes that once the voter counts as dead. Nothing
// but the address may change: afterwards the same live Machine hosts the member, and no other member. A learner is removed instead.
func (p *planner) whyNotListed(member *quorum.Member) string {
	m := p.join.Host(member).Machine()
	at := quorum.PeerHostsOf([]string{member.WaitsAt})
	u, err := url.Parse(member.WaitsAt)
	switch {
	case p.s.Mode != quorum.ModeFull:
		return "Holdfast changes no members in guard mode"
	case member.Learner:
		return "it is a learner"
	case member.Healthy:
		return "it answers"
	case len(member.PeerURLs) != 1:
		return "etcd lists it at several peer URLs"
	case !waitsElsewhere(member):
		return "no host says that its etcd waits there (holdfast verify membership)"
	case err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "":
		return fmt.Sprintf("etcd takes no peer URL like %s, at which its etcd waits", member.WaitsAt)
	case m == nil || m.Deleting() || m.Mirrored || !m.OwnEvidence().Names(member.ID):
		return "no Machine that stays has the record that the member is its own"
	}
	n := p.join.Node(m)
	switch {
	case n == nil || !n.Ready:
		return "its Machine has no Node that is ready"
	case !at.Meets(m.Addresses, nil) || !at.Meets(n.Addresses, nil):
		return fmt.Sprintf("Machine %s and its Node do not both have the address of %s", m.Name, member.WaitsAt)
	case !p.staysAlone(member, m):
		return fmt.Sprintf("with the address of %s the member would not be Machine %s's alone", member.WaitsAt, m.Name)
	}
	return ""
}

// waitsElsewhere says whether a member's etcd waits for being listed at another peer URL.
func waitsElsewhere(member *quorum.Member) bool {
	return member.WaitsAt != "" && !slices.Contains(member.PeerURLs, member.WaitsAt)
}

// staysAlone says whether the Machine would host the member, and no other, if etcd listed the member where its etcd waits; and whether
// no other Machine or Node would.
func (p *planner) staysAlone(member *quorum.Member, m *quorum.Machine) bool {
	after := *p.s
	after.Ring.Members = slices.Clone(p.s.Ring.Members)
	listed := after.Ring.Member(member.ID)
	listed.PeerURLs = []string{member.WaitsAt}
	join := quorum.NewJoin(&after)
	return join.Host(listed).Machine() == m && len(join.Members(m)) == 1
}
