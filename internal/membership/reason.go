package membership

// Reason is a machine-readable word for a Note.
type Reason string

const (
	ReasonEtcdUnknown             Reason = "EtcdUnknown"
	ReasonEtcdNoLeader            Reason = "EtcdNoLeader"
	ReasonEtcdMembersUnhealthy    Reason = "EtcdMembersUnhealthy"
	ReasonQuorumOnReleased        Reason = "QuorumOnReleasedMachines"
	ReasonMachineAPINotFunctional Reason = "MachineAPINotFunctional"
	ReasonDesiredReplicasUnknown  Reason = "DesiredReplicasUnknown"
	ReasonMemberHostUnknown       Reason = "MemberHostUnknown"
	ReasonLearnerOrphaned         Reason = "LearnerOrphaned"
	ReasonMachineMirrored         Reason = "MachineMirrored"
	ReasonHookOwnerForeign        Reason = "HookOwnerForeign"
	ReasonMemberAddressChanged    Reason = "MemberAddressChanged"
	ReasonMemberListedTwice       Reason = "MemberListedTwice"
	ReasonOperatorSeesNoMember    Reason = "OperatorSeesNoMember"
	ReasonLearnerStuck            Reason = "LearnerStuck"
	ReasonEtcdVotersMissing       Reason = "EtcdVotersMissing"
	ReasonEtcdVotersTooMany       Reason = "EtcdVotersTooMany"
	ReasonEtcdVotersGrown         Reason = "EtcdVotersGrown"
	ReasonOneFailureDomain        Reason = "OneFailureDomain"
	ReasonMachineWithoutNode      Reason = "MachineWithoutNode"
	ReasonMachineFailed           Reason = "MachineFailed"
	ReasonMachineUnprotected      Reason = "MachineUnprotected"
	ReasonDrainBlocked            Reason = "DrainBlocked"
	ReasonQuorumGuardAbsent       Reason = "QuorumGuardAbsent"
	ReasonQuorumGuardTooSmall     Reason = "QuorumGuardTooSmall"
	ReasonQuorumGuardTooLarge     Reason = "QuorumGuardTooLarge"
	ReasonQuorumGuardPodMissing   Reason = "QuorumGuardPodMissing"
	ReasonQuorumGuardOthersPod    Reason = "QuorumGuardOthersPod"
	ReasonEtcdOperatorPresent     Reason = "EtcdOperatorPresent"
	ReasonLockForeign             Reason = "LockForeign"
	ReasonVoterListedAsLearner    Reason = "VoterListedAsLearner"
	ReasonVoterNotStarted         Reason = "VoterNotStarted"
	ReasonReleaseHeld             Reason = "ReleaseHeld"
	ReasonLedgerGarbled           Reason = "LedgerGarbled"
	ReasonMachineUnreadable       Reason = "MachineUnreadable"
	ReasonRecordsGarbled          Reason = "RecordsGarbled"
	ReasonRecordsNotKept          Reason = "RecordsNotKept"
	ReasonInstanceClaimedTwice    Reason = "InstanceClaimedTwice"
	ReasonClaimsUnknown           Reason = "ClaimsUnknown"
	ReasonInvariantViolated       Reason = "InvariantViolated"
	ReasonBootstrapMemberWaits    Reason = "BootstrapMemberWaits"
	ReasonReplacementWaits        Reason = "ReplacementWaits"
	ReasonLearnerBehind           Reason = "LearnerBehind"
	ReasonEtcdNoSpace             Reason = "EtcdNoSpace"
	ReasonEtcdCorrupt             Reason = "EtcdCorrupt"
	ReasonActionFails             Reason = "ActionFails"
	ReasonMembershipNotPublished  Reason = "MembershipNotPublished"
	ReasonConditionsNotTold       Reason = "ConditionsNotTold"
	ReasonMachineCRDUnfit         Reason = "MachineCRDUnfit"
	ReasonClusterUnreadable       Reason = "ClusterUnreadable"
)

// Degrades reports whether a Note with this reason means that something is wrong, rather than on its way.
func (r Reason) Degrades() bool {
	return r != ReasonReplacementWaits && r != ReasonLearnerBehind && r != ReasonEtcdVotersGrown && r != ReasonMachineMirrored && r != ReasonBootstrapMemberWaits
}

// Note is something a person should know: what is wrong, or what a replacement waits for.
type Note struct {
	Reason  Reason `json:"reason"`
	Machine string `json:"machine,omitempty"` // "" if it is about no Machine in particular
	Message string `json:"message"`
}
