package membership

import (
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// releaseIdle is step 2: hook and latch go from a deleting Machine that hosts nothing. In guard mode the hook is left to its
// custodian, which learns that the member has left. For a latch whose hook a person took off, see finalRelease.
func (p *planner) releaseIdle() []Action {
	var out []Action
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if !m.Deleting() || m.Mirrored || m.Unread != "" {
			continue
		}
		if is, _ := p.join.Hosting(m); is != quorum.HostingNothing {
			continue
		}
		off := ReleaseHook{Hook: m.Hook != quorum.EntryAbsent && p.s.Mode == quorum.ModeFull, Latch: m.Latch == quorum.EntryOurs}
		switch {
		case m.Hook == quorum.EntryOurs && p.s.Mode == quorum.ModeGuard:
			if !m.Marked && len(m.OwnEvidence().MemberIDs) > 0 {
				out = append(out, Action{Step: 2, Machine: m.Name, UID: m.UID, Change: MarkIdle{}, Why: "its member has left, and cluster-etcd-operator may look at it only once a minute"})
			}
		case off.Hook || off.Latch:
			out = append(out, Action{Step: 2, Machine: m.Name, UID: m.UID, Change: off, Why: "it hosts no etcd member"})
		}
	}
	return out
}
