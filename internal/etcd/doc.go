// Package etcd is the client side of etcd's membership: it reads a [quorum.Ring], and changes the
// member list one step at a time under a lock.
//
// Reading ([Client.Read]) has no error. A Ring that is not Known says Why, and its zero value is
// unknown, so a caller that forgets to look decides on "unknown", which never releases anything. The
// member list is always the answer to a linearizable read; what a member's health is, its own
// endpoint says in the same read, never an earlier one.
//
// Changing is only possible with the lock in hand: the methods that change members are [MembershipLock]'s, not
// [Client]'s. Each goes to the leader's endpoint, at most once, and has three outcomes:
//
//   - nil: applied.
//   - an error that is not [ErrAmbiguous]: not applied. Either etcd refused, and errors.Is finds the
//     reason among rpctypes' errors (ErrUnhealthy, ErrMemberLearnerNotReady, ErrTooManyLearners,
//     ErrMemberNotLearner, ErrMemberNotFound, ErrPeerURLExist, ...), or nothing was sent.
//   - [ErrAmbiguous]: it may have been applied, or may yet be. Read again and decide anew.
package etcd
