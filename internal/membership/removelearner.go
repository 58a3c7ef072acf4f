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
		if !member.Learner || !p.s.Ring.Removable(member) {
			continue
		}
		a, goes := Action{Step: 3}, RemoveLearner{Member: Member{member.ID, member.Name}}
		m := host.Machine()
		switch {
		case m != nil && m.Mirrored:
			continue
		case m != nil && m.Deleting():
			a.Machine, a.UID = m.Name, m.UID
			a.Why = "its Machine was deleted before it was promoted"
		case host.Departed != nil && (len(host.Machines) == 0 || p.s.Dead(member)):
			a.Machine, a.UID = host.Departed.Machine, host.Departed.MachineUID
			a.Why = fmt.Sprintf("its Machine %s is gone", host.Departed.Machine)
		case len(host.Machines)+len(host.Nodes) > 0:
			if a.Why = p.whyGivesWay(member, host); a.Why == "" {
				continue
			}
			goes.GivesWay = true
			if m != nil {
				a.Machine, a.UID = m.Name, m.UID
				if n := p.join.Node(m); n != nil {
					goes.Node = n.Name
				}
			}
		default:
			continue
		}
		a.Change = goes
		return []Action{a}
	}
	return nil
}

// whyGivesWay is why a learner gives way to others, "" if it does not.
func (p *planner) whyGivesWay(learner *quorum.Member, host *quorum.Host) string {
	waits := p.waitingMachine(func(o *quorum.Machine) bool { return !slices.Contains(host.Machines, o) })
	switch {
	case waits != nil && p.addRefused() == nil && p.roomFor(waits) && p.canAddOn(waits): // it gets a learner of its own
	case waits != nil && p.stalled(learner, p.turnLength(host.Machine(), waits)):
		return fmt.Sprintf("it made no progress for %s, and Machine %s waits", p.turnLength(host.Machine(), waits), waits.Name)
	}
	if at := p.deserted(learner); at != "" && p.stalled(learner, p.s.Limits.StallAfter) {
		return fmt.Sprintf("it made no progress for %s, and its host is not at %s any more", p.s.Limits.StallAfter, at)
	}
	if p.blockedByOtherLearner(learner) {
		return fmt.Sprintf("beside another learner it does not get on; perhaps etcd takes one at a time there (--max-learners=%d)", p.s.Limits.MaxLearners)
	}
	return ""
}

// deserted is where a learner is listed although its host is not there, "" if it may be: a name can be an alias that no Machine and no
// Node has.
func (p *planner) deserted(learner *quorum.Member) string {
	if len(learner.PeerAddresses()) == 0 {
		return ""
	}
	at, _ := p.moved(learner)
	return at
}

// blockedByOtherLearner reports whether a learner has stood still beside another for so long that the other may be the cause: an etcd with
// --max-learners=1 does not start beside another learner, and a learner that does not report its limit is not promoted beside another.
func (p *planner) blockedByOtherLearner(m *quorum.Member) bool {
	if p.learners() < 2 || p.s.Limits.MaxLearners == 1 {
		return false
	}
	return p.stalled(m, longestTurn*p.s.Limits.StallAfter) ||
		p.s.Steady(m) && !p.takesAll(m) && !m.CaughtUpAt.IsZero() && p.s.Now.Sub(m.CaughtUpAt) >= p.s.Limits.StallAfter
}

// stalled reports whether a learner that is not caught up has made no progress for that long.
func (p *planner) stalled(m *quorum.Member, after time.Duration) bool {
	return !p.s.CaughtUp(m) && !m.ProgressAt.IsZero() && p.s.Now.Sub(m.ProgressAt) >= after
}

// longestTurn is how many times Limits.StallAfter a learner has at most before its Node gives way.
const longestTurn = 12

// turnLength is for how long the learner of a Machine (nil if it is not known) may make no progress before its Node gives way to that of
// a Machine that waits. A learner that is being sent a large snapshot does not answer, and looks like one that hangs. So if
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
