// Package controller gathers a quorum.Snapshot from the cluster and etcd, and applies the plan that
// quorum.Decide makes of it. It decides nothing itself.
//
// A round is: look, decide, act, look again. Nothing is remembered between rounds but how long a
// member has been silent or without progress, which a restart measures anew. A change of etcd's
// membership, and a release of a hook, is made only if a second look, for the former under the lock
// in etcd, leads to the same plan.
package controller
