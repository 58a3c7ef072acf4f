// Package controller applies the plan that membership.Decide makes of a quorum.Snapshot, which package
// observe reads. It decides nothing itself.
//
// A round is: look, decide, act, look again. What a restart forgets is measured anew or reported again: how
// long a member has been silent or without progress, which actions fail and since when, which notes
// were reported. A change of etcd's members is made only if a look under the lock in etcd leads to it that began a moment ago (justSeen).
// So is a release, without the lock where it is not the final one.
//
// Where things are:
//
//   - the rounds: reconcile.go; what they read, and who else drives etcd: snapshot.go; a change of etcd or of a Machine: apply.go; the ledger, written before a release: ledger.go
//   - when the next round comes: backoff.go; rounds that only wait for a learner: etcdwait.go; when a failed action is tried again: attempts.go
//   - what is reported: alarms.go, clusteroperator.go, operatorcondition.go, metrics.go, ringview.go; etcd's hosts and clients: publish.go
//   - the rest: quorumguard.go (budget and pods); machinecrd.go
package controller
