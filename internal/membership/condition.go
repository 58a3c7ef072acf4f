package membership

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// ConditionType is one of the four conditions of a ClusterOperator.
type ConditionType string

const (
	ConditionAvailable   ConditionType = "Available"   // etcd answers and has quorum
	ConditionProgressing ConditionType = "Progressing" // a member is on its way in or out
	ConditionDegraded    ConditionType = "Degraded"    // something is wrong that does not mend itself
	ConditionUpgradeable ConditionType = "Upgradeable" // every voter that is wanted votes, and none is about to change
)

// Status is a condition's.
type Status string

const (
	StatusTrue    Status = "True"
	StatusFalse   Status = "False"
	StatusUnknown Status = "Unknown"
)

// The reasons that conditions have beside those of Notes.
const (
	ReasonAsExpected            Reason = "AsExpected"
	ReasonQuorumLost            Reason = "QuorumLost"
	ReasonEtcdMembersNotStarted Reason = "EtcdMembersNotStarted"
	ReasonReplacementInProgress Reason = "ReplacementInProgress"
)

// For how long every look must show a new status before it replaces the old one. A shorter change is a flap: a
// control plane is not degraded because a member restarts.
const (
	degradedInertia = 30 * time.Second
	lossInertia     = 5 * time.Second // of etcd as a whole: longer than an election
)

// Condition is one condition as a ClusterOperator has it.
type Condition struct {
	Type    ConditionType `json:"type"`
	Status  Status        `json:"status"`
	Reason  string        `json:"reason"`  // several are joined with "::", in the alphabet's order
	Message string        `json:"message"` // a line for each cause
	Since   time.Time     `json:"since,omitzero"`

	inertia      time.Duration // how long it must last to replace another status
	turningSince time.Time     // since when the looks have said another status, zero if they say this one
}

// cause is one reason for a condition not to be as expected.
type cause struct {
	reason  Reason
	message string
	inertia time.Duration
}

// Conditions says how the control plane is, as of now: Available, Progressing, Degraded and Upgradeable,
// in this order. What is published is the result of Settle.
func Conditions(p *Plan) []Condition {
	s := p.Join.Snapshot()
	lost, moving, wrong := whyLost(s), whyMoving(p.Join), whatIsWrong(p)
	voters, healthy := s.Ring.Voters()
	rest := cause{ReasonAsExpected, "no etcd member is on its way", lossInertia}
	for _, n := range p.Notes {
		if n.Reason == ReasonMachineAPINotFunctional || n.Reason == ReasonDesiredReplicasUnknown {
			rest.reason, rest.message = n.Reason, n.Message // why nothing moves
		}
	}

	available := condition(ConditionAvailable, lost, StatusFalse, cause{ReasonAsExpected, fmt.Sprintf("%d of %s are healthy, and quorum is %d", healthy, quorum.NVoters(voters), quorum.Size(voters)), 0})
	progressing := condition(ConditionProgressing, moving, StatusTrue, rest)
	degraded := condition(ConditionDegraded, wrong, StatusTrue, cause{ReasonAsExpected, "nothing is wrong that Holdfast can see", degradedInertia})
	wrong = append(wrong, moving...)
	if s.Ring.Known && voters < s.Desired {
		wrong = append(wrong, cause{ReasonEtcdVotersMissing, votersWanted(s), 0})
	}
	upgradeable := condition(ConditionUpgradeable, wrong, StatusFalse, cause{ReasonAsExpected, "every voter that is wanted votes", degradedInertia})
	if !s.Ring.Known {
		// It may be that only Holdfast cannot reach etcd.
		available.Status, progressing = StatusUnknown, condition(ConditionProgressing, lost, StatusUnknown, cause{})
	}
	if i := slices.IndexFunc(p.Notes, func(n Note) bool { return n.Reason == ReasonClusterUnreadable }); i >= 0 {
		progressing = condition(ConditionProgressing, []cause{{ReasonClusterUnreadable, p.Notes[i].Message, degradedInertia}}, StatusUnknown, cause{})
	}
	return []Condition{available, progressing, degraded, upgradeable}
}

// condition is the condition of that type: that status for the causes, else the other one, as calm has it.
func condition(kind ConditionType, causes []cause, status Status, calm cause) Condition {
	if len(causes) == 0 {
		other := map[Status]Status{StatusTrue: StatusFalse, StatusFalse: StatusTrue}[status]
		return Condition{Type: kind, Status: other, Reason: string(calm.reason), Message: calm.message, inertia: calm.inertia}
	}
	c := Condition{Type: kind, Status: status, inertia: causes[0].inertia}
	var reasons, lines []string
	for _, one := range causes {
		reasons, lines = append(reasons, string(one.reason)), append(lines, string(one.reason)+": "+one.message)
		c.inertia = min(c.inertia, one.inertia)
	}
	slices.Sort(reasons)
	slices.Sort(lines)
	c.Reason, c.Message = strings.Join(slices.Compact(reasons), "::"), strings.Join(slices.Compact(lines), "\n")
	return c
}

// whyLost says why etcd is not available, nil if it is.
func whyLost(s *quorum.Snapshot) []cause {
	voters, healthy := s.Ring.Voters()
	switch {
	case !s.Ring.Known:
		return []cause{{ReasonEtcdUnknown, fmt.Sprintf("etcd did not answer a linearizable read, and no member is changed until it does: %s; "+
			"see whether its members run and whether Holdfast reaches them", s.RingWhy()), lossInertia}}
	case s.Ring.Leader == 0:
		return []cause{{ReasonEtcdNoLeader, fmt.Sprintf("etcd has no leader, and no member is changed until it has one; it elects one once %d of %s reach each other",
			quorum.Size(voters), quorum.NVoters(voters)), lossInertia}}
	case healthy < quorum.Size(voters):
		return []cause{{ReasonQuorumLost, fmt.Sprintf("%d of %s are healthy, and quorum is %d, so no member is changed: %s; "+
			"etcd itself has a quorum, or it would not list them: bring their hosts back before one more is lost", healthy, quorum.NVoters(voters), quorum.Size(voters), unhealthyVoters(s)), lossInertia}}
	}
	return nil
}

// unhealthyVoters names the voters that are.
func unhealthyVoters(s *quorum.Snapshot) string {
	var out []string
	for k := range s.Ring.Members {
		if m := &s.Ring.Members[k]; !m.Learner && !m.Healthy {
			out = append(out, fmt.Sprintf("%s is not (%s)", m, m.Why))
		}
	}
	return strings.Join(out, ", ")
}

// whyMoving says what is on its way.
func whyMoving(join *quorum.Join) []cause {
	s := join.Snapshot()
	if !s.Ring.Known {
		return nil
	}
	var out []cause
	for _, r := range Replacements(join) {
		out = append(out, cause{ReasonReplacementInProgress, fmt.Sprintf("Machine %s is deleting and held: it waits for %s", r.Machine, r.Phase.WaitsFor(s.Mode)), 0})
	}
	for k := range s.Ring.Members {
		switch m := &s.Ring.Members[k]; {
		case !m.Started():
			out = append(out, cause{ReasonEtcdMembersNotStarted, fmt.Sprintf("%s is listed and has not started", m), 0})
		case m.Learner && !s.Steady(m): // how far it is behind is a metric: a message must not change at each look
			out = append(out, cause{ReasonLearnerBehind, fmt.Sprintf("learner %s catches up", m), 0})
		}
	}
	return out
}

// votersWanted says how many voters etcd has, and how many it should have.
func votersWanted(s *quorum.Snapshot) string {
	voters, _ := s.Ring.Voters()
	return fmt.Sprintf("etcd has %s, and %d are wanted", quorum.NVoters(voters), s.Desired)
}

// whatIsWrong lists what somebody has to mend: that etcd is not available, and the plan's notes that degrade.
func whatIsWrong(p *Plan) []cause {
	out := whyLost(p.Join.Snapshot())
	lost := len(out) > 0
	for _, n := range p.Notes {
		switch r := n.Reason; {
		case lost && (r == ReasonEtcdUnknown || r == ReasonEtcdNoLeader || r == ReasonEtcdMembersUnhealthy): // whyLost says so
		case r == ReasonMachineAPINotFunctional: // a control plane without the Machine API is in order as it is
		case r == ReasonInvariantViolated:
			out = append(out, cause{r, n.Message + "; this is a defect of Holdfast, please report it", 0})
		case r == ReasonLearnerStuck: // for long enough already
			out = append(out, cause{r, n.Message, 0})
		case r.Degrades():
			out = append(out, cause{r, n.Message, degradedInertia})
		}
	}
	return out
}

// Settle returns the conditions to publish: those of now, and in the place of one whose new status has not lasted long enough,
// the previous one. previous are the conditions that it returned last, or those read back from the published object, nil if there
// are none; at is now. Since changes only with Status.
func Settle(previous, now []Condition, at time.Time) []Condition {
	out := make([]Condition, len(now))
	for i, c := range now {
		c.Since = at
		k := slices.IndexFunc(previous, func(p Condition) bool { return p.Type == c.Type })
		switch {
		case k < 0:
		case previous[k].Status == c.Status:
			c.Since = previous[k].Since
		default:
			was := previous[k]
			if was.turningSince.IsZero() || at.Before(was.turningSince) { // the clock was put back
				was.turningSince = at
			}
			if at.Sub(was.turningSince) < c.inertia {
				c = was
			}
		}
		out[i] = c
	}
	return out
}

// Describe is the condition in a few lines, as transcripts have it.
func (c Condition) Describe() string {
	return fmt.Sprintf("%s=%s %s\n  %s\n", c.Type, c.Status, c.Reason, strings.ReplaceAll(c.Message, "\n", "\n  "))
}
