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
		member := &p.s.Ring.Members[k]
		host := p.join.Host(member)
		if !member.Learner {
			continue
		}
		a, goes := Action{Step: 3}, RemoveLearner{Member: Member{member.ID, member.Name}}
		m := host.Machine()
		waits := p.waitingMachine(func(o *quorum.Machine) bool { return !slices.Contains(host.Machines, o) })
		if accepts, _ := p.s.Ring.Accepts(); accepts && p.roomForLearner() {
			waits = nil // it gets a learner of its own
		}
		switch {
		case m != nil && m.Mirrored:
			continue
		case m != nil && m.Deleting():
			a.Machine, a.UID = m.Name, m.UID
			a.Why = "its Machine was deleted before it was promoted"
		case host.Departed != nil && (len(host.Machines) == 0 || p.s.Dead(member)):
			a.Machine, a.UID = host.Departed.Machine, host.Departed.MachineUID
			a.Why = fmt.Sprintf("its Machine %s is gone", host.Departed.Machine)
		case len(host.Machines)+len(host.Nodes) > 0 && waits != nil && p.stalled(member, p.turnLength(m, waits)):
			goes.GivesWay = true
			if m != nil {
				a.Machine, a.UID = m.Name, m.UID
				if n := p.join.Node(m); n != nil {
					goes.Node = n.Name
				}
			}
			a.Why = fmt.Sprintf("it made no progress for %s, and Machine %s waits", p.turnLength(m, waits), waits.Name)
		default:
			continue
		}
		a.Change = goes
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

// turnLength is for how long the learner of a Machine (nil if it is not known) may make no progress before its Node gives way to that of
// a Machine that waits. A learner that is being sent a large snapshot answers nobody, and looks like one that hangs. So if
// all have given way once, each turn is twice as long as the one before it: a ring that is only slow ends in a vote.
func (p *planner) turnLength(m, waits *quorum.Machine) time.Duration {
	stall, theirs := p.s.Limits.StallAfter, p.join.Node(waits).GaveWayAt
	if theirs.IsZero() {
		return stall
	}
	before := stall
	if n := p.join.Node(m); n != nil && !n.GaveWayAt.IsZero() {
		before = max(stall, theirs.Sub(n.GaveWayAt)) // they had the turn after ours
	}
	return min(2*before, longestTurn*stall)
}
