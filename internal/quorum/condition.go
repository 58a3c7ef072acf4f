package quorum

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// ConditionType is one of the four conditions of a ClusterOperator.
type ConditionType string

const (
	Available   ConditionType = "Available"   // etcd answers and has quorum
	Progressing ConditionType = "Progressing" // a member is on its way in or out
	Degraded    ConditionType = "Degraded"    // something is wrong that does not mend itself
	Upgradeable ConditionType = "Upgradeable" // every voter that is wanted votes, and none is about to change
)

// Status is a condition's.
type Status string

const (
	True    Status = "True"
	False   Status = "False"
	Unknown Status = "Unknown"
)

// The reasons that conditions have beside those of Notes.
const (
	AsExpected            Reason = "AsExpected"
	QuorumLost            Reason = "QuorumLost"
	EtcdMembersNotStarted Reason = "EtcdMembersNotStarted"
	ReplacementInProgress Reason = "ReplacementInProgress"
)

// How long a condition's status must have been another one, at each look, to be replaced. What is
// shorter is a flap: a member that restarts is no degraded control plane.
const (
	inertia     = 30 * time.Second
	lossInertia = 5 * time.Second // of etcd as a whole: longer than an election
)

// Condition is one condition as a ClusterOperator has it.
type Condition struct {
	Type    ConditionType
	Status  Status
	Reason  string // several are joined with "::", in the alphabet's order
	Message string // a line for each cause
	Since   time.Time

	patience time.Duration // how long it must last to replace another status
	turning  time.Time     // since when the looks have said another status, zero if they say this one
}

// cause is one reason for a condition not to be as expected.
type cause struct {
	reason   Reason
	message  string
	patience time.Duration
}

// Conditions says how the control plane is, as of now: Available, Progressing, Degraded and Upgradeable,
// in this order. What they tell people is what Settle makes of them.
func Conditions(s *Snapshot, p *Plan) []Condition {
	lost, moving, wrong := s.lost(), s.moving(), s.wrong(p)
	voters, healthy := s.Ring.Voters()
	rest := cause{AsExpected, "no etcd member is on its way", lossInertia}
	for _, n := range p.Notes {
		if n.Reason == MachineAPINotFunctional || n.Reason == DesiredReplicasUnknown {
			rest.reason, rest.message = n.Reason, n.Message // why nothing moves
		}
	}

	available := condition(Available, lost, False, cause{AsExpected, fmt.Sprintf("%d of %s are healthy, and quorum is %d", healthy, nVoters(voters), Size(voters)), 0})
	progressing := condition(Progressing, moving, True, rest)
	degraded := condition(Degraded, wrong, True, cause{AsExpected, "nothing is wrong that Holdfast can see", inertia})
	wrong = append(wrong, moving...)
	if s.Ring.Known && voters < s.Desired {
		wrong = append(wrong, cause{EtcdVotersMissing, fmt.Sprintf("etcd has %s, and %d are wanted", nVoters(voters), s.Desired), 0})
	}
	upgradeable := condition(Upgradeable, wrong, False, cause{AsExpected, "every voter that is wanted votes", inertia})
	if !s.Ring.Known {
		// It may be that only Holdfast cannot reach etcd.
		available.Status, progressing = Unknown, condition(Progressing, lost, Unknown, cause{})
	}
	return []Condition{available, progressing, degraded, upgradeable}
}

// condition is the condition of that type: that status for the causes, else the other one, as calm has it.
func condition(kind ConditionType, causes []cause, status Status, calm cause) Condition {
	if len(causes) == 0 {
		other := map[Status]Status{True: False, False: True}[status]
		return Condition{Type: kind, Status: other, Reason: string(calm.reason), Message: calm.message, patience: calm.patience}
	}
	c := Condition{Type: kind, Status: status, patience: causes[0].patience}
	var reasons, lines []string
	for _, one := range causes {
		reasons, lines = append(reasons, string(one.reason)), append(lines, string(one.reason)+": "+one.message)
		c.patience = min(c.patience, one.patience)
	}
	slices.Sort(reasons)
	slices.Sort(lines)
	c.Reason, c.Message = strings.Join(slices.Compact(reasons), "::"), strings.Join(slices.Compact(lines), "\n")
	return c
}

// lost says why etcd is not available, nil if it is.
func (s *Snapshot) lost() []cause {
	voters, healthy := s.Ring.Voters()
	switch {
	case !s.Ring.Known:
		return []cause{{EtcdUnknown, fmt.Sprintf("etcd did not answer a linearizable read, and no member is changed until it does: %s; "+
			"see whether its members run and whether Holdfast reaches them", s.ringWhy()), lossInertia}}
	case s.Ring.Leader == 0:
		return []cause{{EtcdNoLeader, fmt.Sprintf("etcd has no leader, and no member is changed until it has one; it elects one once %d of %s reach each other",
			Size(voters), nVoters(voters)), lossInertia}}
	case healthy < Size(voters):
		return []cause{{QuorumLost, fmt.Sprintf("%d of %s are healthy, and quorum is %d, so no member is changed: %s; "+
			"bring their hosts back, or restore etcd from a backup if they are gone for good", healthy, nVoters(voters), Size(voters), s.unhealthy()), lossInertia}}
	}
	return nil
}

// unhealthy names the voters that are.
func (s *Snapshot) unhealthy() string {
	var out []string
	for k := range s.Ring.Members {
		if m := &s.Ring.Members[k]; !m.Learner && !m.Healthy {
			out = append(out, fmt.Sprintf("%s is not (%s)", m, m.Why))
		}
	}
	return strings.Join(out, ", ")
}

// moving says what is on its way.
func (s *Snapshot) moving() []cause {
	if !s.Ring.Known {
		return nil
	}
	var out []cause
	for _, r := range Replacements(s) {
		out = append(out, cause{ReplacementInProgress, fmt.Sprintf("Machine %s is deleting and held: %s", r.Machine, r.Phase.waitsFor()), 0})
	}
	for k := range s.Ring.Members {
		switch m := &s.Ring.Members[k]; {
		case !m.Started():
			out = append(out, cause{EtcdMembersNotStarted, fmt.Sprintf("%s is listed and has not started", m), 0})
		case m.Learner && !s.Steady(m): // how far it is behind is a metric: a message must not change at each look
			out = append(out, cause{LearnerBehind, fmt.Sprintf("learner %s catches up", m), 0})
		}
	}
	return out
}

// wrong says what does not mend itself: what the plan noted, member by member where it is about members.
func (s *Snapshot) wrong(p *Plan) []cause {
	out := s.lost()
	if voters, healthy := s.Ring.Voters(); len(out) == 0 && healthy < voters {
		out = append(out, cause{EtcdMembersUnhealthy, fmt.Sprintf("%d of %s are healthy: %s; if a host does not come back, delete its Machine, and the member is replaced",
			healthy, nVoters(voters), s.unhealthy()), inertia})
	}
	for k := range s.Ring.Members {
		if m := &s.Ring.Members[k]; s.Ring.Known && m.Learner && (&planner{s: s}).stalled(m, s.Limits.StallAfter) {
			reason := LearnerBehind
			if !m.Started() {
				reason = EtcdMembersNotStarted
			}
			out = append(out, cause{reason, fmt.Sprintf("learner %s has made no progress for %s; look at etcd on its host, or delete its Machine", m, s.Limits.StallAfter), 0})
		}
	}
	for _, n := range p.Notes {
		switch n.Reason {
		case EtcdUnknown, EtcdNoLeader, EtcdMembersUnhealthy: // told above, by member
		case MachineAPINotFunctional: // a control plane without the Machine API is in order as it is
		case InvariantViolated:
			out = append(out, cause{n.Reason, n.Message + "; this is a defect of Holdfast, please report it", 0})
		case DesiredReplicasUnknown:
			out = append(out, cause{n.Reason, n.Message, inertia})
		default:
			if n.Reason.Degrades() {
				out = append(out, cause{n.Reason, n.Message, inertia})
			}
		}
	}
	return out
}

// Settle is what to tell people: the conditions as they are now, but where another status has not
// lasted yet, the one that was told before. Previous are the conditions that it returned last, or those
// read back from where they were told, nil if there are none; at is now. Since changes with Status alone.
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
			if was.turning.IsZero() || at.Before(was.turning) { // the clock was put back
				was.turning = at
			}
			if at.Sub(was.turning) < c.patience {
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
