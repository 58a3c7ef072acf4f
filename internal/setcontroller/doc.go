// Package setcontroller keeps the control plane's Machines as one set, in full mode: the ControlPlaneMachineSet of the cluster, where no
// operator of the platform's reconciles it.
//
// Each round reads the set with a Snapshot, has internal/machineset decide, writes the set's status, and applies the plan. The status is
// written on the resourceVersion that was read, before anything else: a replica that was elected once, and wakes up, then fails there.
// Only the elected replica runs it. Members and hooks are internal/controller's, and the guard judges the deletions made here like
// anybody's.
package setcontroller
