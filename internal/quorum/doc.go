// Package quorum decides what may happen to the Machines of an etcd ring and what to do next. It is
// pure: the standard library only, no clock, no logger, no I/O. Whoever wants a decision gathers a
// Snapshot; the webhooks ask Admit about the cluster as it would be after a request, the reconciler
// asks Decide about the cluster as it is, and both share the join of members to Machines.
//
// # Admission
//
// The rules, by the name that denials, warnings, metrics and tests use:
//
//	claim               a Machine claims neither another's member nor its instance, and who did first is not deleted with a voter's host
//	adopt               no MachineSet takes a control-plane Machine for its own
//	keep-hook           hook, latch and evidence of a guarded Machine stay as they are
//	no-regain           a deleting Machine does not get the hook back
//	early-release       a custodian releases a hook only from a Machine that hosts nothing
//	automation-release  automation releases no hook
//	escape-hatch        a person may take the hook off a deleting Machine; the latch goes once etcd can do without it
//	keep-finalizer      the machine finalizer stays while hook or latch is on
//	keep-role           the role labels stay while hook or latch is on
//	unprotected-delete  a voter's Machine is deleted only with hook, latch and finalizer
//	one-too-many        no more voters are on their way out than etcd can lose
//	degraded-delete     no healthy voter's Machine is deleted while another voter is unhealthy
//	held                a deletion in order is held until a replacement votes
//	home                namespace and CRD of the Machines stay as they are while any Machine carries the hook
//	health-check        a MachineHealthCheck is told when it may act on more voters than etcd can lose
//	override            an override is a person's, and says whose
//
// # Plan
//
// The steps, the first that applies: 1 put hook, latch and evidence on live Machines that host a
// member; 2 release deleting Machines that host nothing, and let go, on record first, of one whose hook a
// person took off, if etcd can do without it; 3 remove the learner of a deleting Machine,
// or one that makes no progress while another Node waits; 4 remove the voter of a deleting Machine;
// 5 remove a dead voter that keeps its replacement out; 6 promote a learner; 7 add a learner. Beside any
// of them: 8 size the quorum guard, and delete its pod on the Node of a released Machine.
//
// Unknown never releases: where etcd did not answer or a member cannot be joined to one host, hooks stay.
package quorum
