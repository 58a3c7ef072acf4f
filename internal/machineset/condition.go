package machineset

import (
	"fmt"
	"slices"
	"strings"
)

// ConditionType is one of the conditions that a ControlPlaneMachineSet has.
type ConditionType string

const (
	ConditionAvailable   ConditionType = "Available"   // every Machine that is wanted has a ready Node
	ConditionProgressing ConditionType = "Progressing" // Machines are created or deleted, or will be
	ConditionDegraded    ConditionType = "Degraded"    // a person has to do something
)

// Condition is one condition of a set.
type Condition struct {
	Type    ConditionType
	True    bool
	Reason  string
	Message string // a line for each cause
}

// The reasons of conditions beside those of Notes.
const (
	reasonAsExpected  = "AsExpected"
	reasonAllReady    = "AllReplicasAvailable"
	reasonUnavailable = "UnavailableReplicas"
	reasonUpdated     = "AllReplicasUpdated"
	reasonReplacing   = "ReplacementInProgress"
	reasonActing      = "Acting"
)

// Conditions says how the set is: Available, Progressing and Degraded, in this order.
func Conditions(set *Set, p *Plan) []Condition {
	available := Condition{ConditionAvailable, true, reasonAllReady, ""}
	if c := &p.Counts; c.Unavailable > 0 {
		available = Condition{ConditionAvailable, false, reasonUnavailable, fmt.Sprintf("%d of %d Machines have a ready Node", c.Ready, set.Replicas)}
	}
	return []Condition{available, progressing(set, p), degraded(p)}
}

func progressing(set *Set, p *Plan) Condition {
	for _, a := range p.Actions {
		return Condition{ConditionProgressing, true, reasonActing, a.Describe() + ": " + a.Why}
	}
	if waits := p.messages(func(n Note) bool { return n.Reason == ReasonGateShut }); waits != "" {
		return Condition{ConditionProgressing, true, string(ReasonGateShut), waits}
	}
	if i := slices.IndexFunc(p.Notes, func(n Note) bool { return n.Reason.Stops() }); i >= 0 {
		return Condition{ConditionProgressing, false, string(p.Notes[i].Reason), p.messages(func(n Note) bool { return n.Reason.Stops() })}
	}
	c := &p.Counts
	if c.Replicas != set.Replicas {
		return Condition{ConditionProgressing, true, reasonReplacing, fmt.Sprintf("%d Machines, %d of them being deleted, and %d are wanted", c.Replicas, c.Deleting, set.Replicas)}
	}
	idle := Condition{ConditionProgressing, false, reasonUpdated, p.messages(func(Note) bool { return true })}
	for _, n := range p.Notes {
		idle.Reason = string(n.Reason)
	}
	return idle
}

func degraded(p *Plan) Condition {
	wrong := p.messages(func(n Note) bool { return n.Reason.Degrades() })
	if wrong == "" {
		return Condition{ConditionDegraded, false, reasonAsExpected, ""}
	}
	first := p.Notes[slices.IndexFunc(p.Notes, func(n Note) bool { return n.Reason.Degrades() })]
	return Condition{ConditionDegraded, true, string(first.Reason), wrong}
}

// messages are those of some notes, a line each.
func (p *Plan) messages(which func(Note) bool) string {
	var lines []string
	for _, n := range p.Notes {
		if which(n) {
			lines = append(lines, n.Message)
		}
	}
	return strings.Join(lines, "\n")
}
