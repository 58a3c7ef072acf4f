package machineset

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Action is one change, and why it is made.
type Action struct {
	Machine string // name and UID of the Machine that it is about, "" for none
	UID     string
	Change  Change
	Why     string // for people
}

// Change is what an action changes: one of the types below.
//
//sumtype:decl
type Change interface{ describe(machine string) string }

// Name is the change's, as metrics and Events name it.
func (a Action) Name() string {
	switch a.Change.(type) {
	case Adopt:
		return "Adopt"
	case Create:
		return "Create"
	case Delete:
		return "Delete"
	case Disown:
		return "Disown"
	case TakeSet:
		return "TakeSet"
	case LeaveSet:
		return "LeaveSet"
	}
	return "Unknown"
}

// The types of change.
type (
	// Adopt makes the set the Machine's controller.
	Adopt struct{}
	// Create makes a Machine from the template.
	Create struct {
		Index  int
		Domain string // its failure domain; "" leaves the template as it is
	}
	// Delete deletes the Machine.
	Delete struct{}
	// Disown takes the set's owner reference off the Machine.
	Disown struct{}
	// TakeSet puts Holdfast's finalizer on the set, in place of that of the platform's operator: from then on its replicas say how many voters
	// are wanted.
	TakeSet struct{}
	// LeaveSet takes the finalizer off again, and puts the other's in its place unless the set is being deleted.
	LeaveSet struct{}
)

func (Adopt) describe(machine string) string  { return "adopt Machine " + machine }
func (Delete) describe(machine string) string { return "delete Machine " + machine }
func (Disown) describe(machine string) string { return "let go of Machine " + machine }
func (TakeSet) describe(string) string        { return "take the set" }
func (LeaveSet) describe(string) string       { return "let the set go" }
func (c Create) describe(string) string {
	if c.Domain == "" {
		return fmt.Sprintf("create a Machine with index %d", c.Index)
	}
	return fmt.Sprintf("create a Machine with index %d in failure domain %s", c.Index, c.Domain)
}

// Describe is the action as a person reads it.
func (a Action) Describe() string { return a.Change.describe(a.Machine) }

func about(m *quorum.Machine, change Change, why string) Action {
	return Action{Machine: m.Name, UID: m.UID, Change: change, Why: why}
}
