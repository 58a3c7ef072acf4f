package membership

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// removeLearner is step 3.
func (p *planner) removeLearner() []Action {
	for k := range p.s.Ring.Members {
		member, host := &p.s.Ring.Members[k], &p.join.Hosts[k]
		if !member.Learner {
			continue
		}
		a := Action{Kind: RemoveLearner, Step: 3, Member: member.ID, MemberName: member.Name}
		i := host.Machine()
		waits := p.waitingMachine(func(o int) bool { return !slices.Contains(host.Machines, o) })
		switch {
		case i >= 0 && p.s.Machines[i].Mirrored:
			continue
		case i >= 0 && p.s.Machines[i].Deleting():
			a.Machine, a.UID = p.s.Machines[i].Name, p.s.Machines[i].UID
			a.Why = "its Machine was deleted before it was promoted"
		case host.Departed != nil && (len(host.Machines) == 0 || p.s.Dead(member)):
			a.Machine, a.UID = host.Departed.Machine, host.Departed.MachineUID
			a.Why = fmt.Sprintf("its Machine %s is gone", host.Departed.Machine)
		case len(host.Machines)+len(host.Nodes) > 0 && waits >= 0 && p.stalled(member, p.turnLength(i, waits)):
			a.GivesWay = true
			if i >= 0 {
				a.Machine, a.UID = p.s.Machines[i].Name, p.s.Machines[i].UID
				if n := p.join.Node(i); n >= 0 {
					a.Node = p.s.Nodes[n].Name
				}
			}
			a.Why = fmt.Sprintf("it made no progress for %s, and Machine %s waits", p.turnLength(i, waits), p.s.Machines[waits].Name)
		default:
			continue
		}
		return []Action{a}
	}
	return nil
}

// stalled says whether a learner that is not caught up has made no progress for that long.
func (p *planner) stalled(m *quorum.Member, after time.Duration) bool {
	return !p.s.CaughtUp(m) && !m.ProgressAt.IsZero() && p.s.Now.Sub(m.ProgressAt) >= after
}

// longestTurn is how many times Limits.StallAfter a learner has at most before its Node gives way.
const longestTurn = 12

// turnLength is for how long the learner of a Machine (-1 if it is not known) may make no progress before its Node gives way to that of
// a Machine that waits. A learner that is being sent a large snapshot answers nobody, and looks like one that hangs. So if
// all have given way once, each turn is twice as long as the one before it: a ring that is only slow ends in a vote.
func (p *planner) turnLength(machine, waits int) time.Duration {
	stall, theirs := p.s.Limits.StallAfter, p.s.Nodes[p.join.Node(waits)].GaveWayAt
	if theirs.IsZero() {
		return stall
	}
	before := stall
	if machine >= 0 && p.join.Node(machine) >= 0 {
		if ours := p.s.Nodes[p.join.Node(machine)].GaveWayAt; !ours.IsZero() {
			before = max(stall, theirs.Sub(ours)) // they had the turn after ours
		}
	}
	return min(2*before, longestTurn*stall)
}
