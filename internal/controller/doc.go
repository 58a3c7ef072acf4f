// Package controller applies the plan that membership.Decide makes of a quorum.Snapshot, which package
// observe reads. It decides nothing itself.
//
// A round is: look, decide, act, look again. What a restart forgets is measured anew or reported again: how
// long a member has been silent or without progress, which actions fail and since when, which notes
// were reported. A change of etcd's members is made only if a look leads to it that was taken under the lock in etcd and
// is the last one, or began a moment ago (justSeen). A release as well; of releases only the final one in full mode needs the lock.
//
// Where things are:
//
//   - the rounds: reconcile.go; what they read, and who else drives etcd: look.go; a change of etcd or of a Machine: apply.go; the ledger, written before a release: recordrelease.go
//   - when the next round comes: backoff.go; rounds that only wait for a learner: etcdwait.go; when a failed action is tried again: attempts.go
//   - what is reported: alarms.go, clusteroperator.go, operatorcondition.go, metrics.go, ringview.go; etcd's hosts and clients: publish.go
//   - the rest: quorumguard.go (budget and pods); machinecrd.go
package controller
