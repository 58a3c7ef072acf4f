// Package admission decides what happens to a request for a Machine, for the namespace or the CRD of the Machines, for a
// MachineSet, a MachineHealthCheck or the ControlPlaneMachineSet. It is pure: it knows the request and a quorum.Snapshot of the cluster, and reads nothing
// else.
//
// The rules, by the name that denials, Warnings, metrics and tests use:
//
//	claim               only the Machine API says which instance a Machine has, and a Machine that shares a voter's host may not be deleted
//	adopt               no MachineSet takes a control-plane Machine for its own
//	keep-hook           hook, latch and evidence of a guarded Machine stay as they are
//	no-regain           a deleting Machine does not get the hook back
//	early-release       a custodian releases a hook only from a Machine that hosts nothing
//	automation-release  automation releases no hook
//	escape-hatch        a person may take the hook off a deleting Machine; the latch goes once etcd can do without it
//	keep-finalizer      the machine finalizer stays while hook or latch is on; a tool leaves no instance of a control-plane Machine behind
//	keep-role           the role labels stay while hook or latch is on
//	keep-host           no voter's host is powered off that etcd cannot do without meanwhile, nor taken away
//	unprotected-delete  a voter's Machine is deleted only with hook, latch and finalizer
//	one-too-many        no more voters are on their way out than etcd can lose
//	degraded-delete     no healthy voter's Machine is deleted while another voter is unhealthy
//	held                a deletion in order is held until a replacement votes
//	home                namespace and CRD of the Machines stay as they are while any Machine carries the hook
//	health-check        Holdfast warns of a MachineHealthCheck that may act on more voters than etcd can lose
//	control-plane-set   a ControlPlaneMachineSet that Holdfast could not act by is not stored (full mode)
//	scale-in            only a person has a ControlPlaneMachineSet take Machines away (full mode)
//	override            an override is a person's, and says whose
//
// The file of each rule, with its texts below its conditions:
//
//	claim.go            claim; what it says of a DELETE is decided in delete.go
//	adopt.go            adopt
//	hook.go             keep-hook, no-regain
//	evidence.go         keep-hook, as far as it is about the evidence
//	release.go          early-release, automation-release
//	escape.go           escape-hatch
//	labels.go           keep-finalizer, keep-role
//	host.go             keep-host
//	delete.go           unprotected-delete, one-too-many, degraded-delete, held
//	home.go             home
//	healthcheck.go      health-check
//	controlplaneset.go  control-plane-set
//	scalein.go          scale-in
//	overridewarnings.go override
//
// Two more rules are not here, because the API server decides them alone: keep-status and own-records (internal/registrations/policy.go).
//
// The first line of a text says what happened, the others why and what to do. A line is one Warning, which the API server cuts at
// 256 bytes, so lines are short.
package admission
