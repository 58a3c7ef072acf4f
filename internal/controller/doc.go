// Package controller applies the plan that membership.Decide makes of a quorum.Snapshot, which package
// observe reads. It decides nothing itself.
//
// A round is: look, decide, act, look again. What a restart forgets is measured anew or told again: how
// long a member has been silent or without progress, which actions fail and since when, which notes
// were told. A change of etcd's members is made only if a second look, under the lock in etcd, leads to
// the same action; so is a release, if its look is older than justSeen.
package controller
