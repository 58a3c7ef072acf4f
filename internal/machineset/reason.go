package machineset

// Reason is a machine-readable word for a Note.
type Reason string

const (
	ReasonGateShut        Reason = "GateShut"
	ReasonOperatorPresent Reason = "PlatformOperatorPresent"
	ReasonOperatorUnknown Reason = "PlatformOperatorUnknown"
	ReasonSetInactive     Reason = "Inactive"
	ReasonSetUnusable     Reason = "SetUnusable"
	ReasonMachineForeign  Reason = "MachineHasAnotherController"
	ReasonMachineUnclear  Reason = "MachineUnclear"
	ReasonTemplateUnfit   Reason = "TemplateUnfit"
	ReasonMemberOutside   Reason = "MemberOutsideSet"
	ReasonCreationFails   Reason = "CreationFails"
	ReasonIndexTwice      Reason = "IndexTwice"
	ReasonNeedsDelete     Reason = "DeleteToReplace"

	ReasonInvariantViolated Reason = "InvariantViolated"
)

// Degrades reports whether a Note with this reason means that a person has to do something.
func (r Reason) Degrades() bool { return r.hinders() || r == ReasonCreationFails }

// hinders reports whether no Machine is deleted or rolled out while a Note with this reason stands.
func (r Reason) hinders() bool {
	switch r {
	case ReasonSetUnusable, ReasonMachineForeign, ReasonMachineUnclear, ReasonTemplateUnfit, ReasonMemberOutside, ReasonInvariantViolated:
		return true
	default:
		return false
	}
}

// Stops reports whether at most lost Machines are replaced while a Note with this reason stands, for other reasons than a gate that opens by itself.
func (r Reason) Stops() bool {
	return r.hinders() || r == ReasonOperatorPresent || r == ReasonOperatorUnknown || r == ReasonSetInactive
}

// Note is something a person should know: what is wrong, or what the set waits for.
type Note struct {
	Reason  Reason
	Machine string // that it is about, "" for none
	Message string
}
