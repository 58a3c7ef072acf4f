// Package verify makes the checks of holdfast verify: whether etcd may start on this host, whether its
// disk is good enough, whether a member serves a ring with quorum. Each check gathers facts, decides
// purely and applies the decision.
//
// # Membership
//
// [Membership] runs before each start of etcd. It compares three things: the environment that was
// rendered for this host (see package membership), the member list by a linearizable read taken now,
// and whose data the data directory holds. The latter is what etcd's own write-ahead log says: each of
// its files begins with the ID of the member that wrote it. So a member that crashed right after its
// first start, when etcd lists it without a name still, is known by its log, as is one that began
// before Holdfast came; no marker of ours has to be kept true.
//
//	listed at this host's peer URL   data directory          what happens
//	no                               any                     waits, with progress, until the deadline
//	yes, but IDs or URLs differ      any                     refuses: the environment is of another revision
//	yes                              this member's           starts
//	yes, never started               none                    starts as a new member, if there is room
//	yes, never started               another's, or no log    archives it, starts as a new member
//	yes, has started                 none or another's       refuses: it would vote without what it promised
//	not known: no quorum             this member's           starts, after a short wait
//	not known: no quorum             none, the ring is new   starts: the ring's first members begin together
//	not known: no quorum             otherwise               waits
//
// When all hosts lost their power, no member list can be read before enough members are up. So a
// member whose own data is here, and whose ID the environment still lists, starts without one. That is
// safe: data of a member that was removed meanwhile cannot make a quorum, since the members that
// removed it know, and etcd itself ends when it learns that it was removed; the next run then sees the
// live list. What never happens is that a member starts without the data it had.
//
// # Archive
//
// An older member's data directory is renamed to a sibling, <data-dir>-removed-<time>, in one atomic
// step, and nothing is deleted. Killed before the rename, the next run does it; killed after it, the
// next run finds no data and goes on. It is refused while anything holds etcd's locks on the data,
// where a rename would cross file systems or the directory is a mount point, and where less room is
// free than the leader's database takes.
package verify
