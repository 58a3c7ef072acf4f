// Package machineset decides what to do next about the control plane's Machines as one set, a ControlPlaneMachineSet. It is pure:
// Decide makes a Plan of a quorum.Snapshot and a Set, and reads nothing else. Each step has a file.
//
// The steps are tried in this order, and the first that has something to do is done; then the cluster is read anew:
//
//	dissolve.go  the set is being deleted: let go of its Machines
//	adopt.go     own the Machines that the selector selects and that have no controller
//	shrink.go    more Machines than wanted: delete one
//	grow.go      fewer Machines than wanted: create one
//	rollout.go   a Machine differs from the template, or the spread is uneven: create one more, which shrink.go makes up for
//
// Before them, a set that is Active and that no other operator reconciles is taken; it is let go where the platform's operator is there.
//
// All but the first two wait until the gate (gate.go) is open. What a person must mend first (a Machine that cannot be compared, say) stops
// shrink and rollout, and never the successor of a Machine that is deleted or lost. At most one Machine is created or deleted in a round, and every plan is
// checked against the invariants (invariant.go) before it is returned. Nothing here removes an etcd member or a hook: that is
// internal/membership's, and the guard judges the deletions that are planned here like anybody's.
package machineset
