// Package verify makes the checks of holdfast verify: whether etcd may start on this host, whether its
// disk is good enough, whether a member serves a ring with quorum. Each check gathers facts, decides
// purely and applies the decision.
//
// # Membership
//
// [Membership] runs before each start of etcd. It compares three things: the environment that was
// rendered for this host (see package hostenv), the member list by a linearizable read taken now,
// and whose data the data directory holds. The latter is what etcd's own write-ahead log says: each of
// its files begins with the IDs of the member that wrote it and of its cluster. So a member that crashed
// right after its first start, when etcd lists it without a name still, is known by its log, as is one
// that began before Holdfast came; no marker of ours has to be kept true.
//
// docs/full-mode.md has the table of what happens.
//
// Data of the member that etcd lists here start whatever the environment says: etcd with data does not read it, and a voter that crashed
// must not wait for a file that is old.
//
// When all hosts lost their power, no member list can be read before enough members are up. So a
// member whose own data is here, and whose ID the environment still lists at this host, starts without
// one. That is safe: data of a member that was removed meanwhile cannot make a quorum, since the members
// that removed it know, and etcd itself ends when it learns that it was removed; the next run then sees
// the live list. What never happens is that a member starts without the data it had.
//
// # History
//
// A restore from a snapshot with the same token gives members and cluster the IDs that they had. So where
// the data stand ([Position]) is compared with the leader, and without a quorum with each member that
// answers. Three comparisons hold for all data of one history: the leader is in no earlier term than
// anybody's log, knows no lower index as committed, and since every revision takes an index of its own,
// the index is ahead of the revision by ever more. A restore begins the index anew, at the number of
// members, and goes on with the revision. The latest keys here are looked up there besides, at the
// revision that wrote them.
//
// # Archive
//
// An older member's data directory is renamed to a sibling, <data-dir>-removed-<time>, in one atomic
// step, and nothing is deleted. It is decided again under the locks. Killed before the rename, the next
// run does it; killed after it, the next run finds no data and goes on. It is refused while an etcd holds
// its locks on the data, where a rename would cross file systems or the directory is a mount point, and
// where less room is free than the leader's database takes.
//
// # Snapshot
//
// etcd writes down that an entry is committed only with a later one. So the end of a log, acknowledged or not, does
// not count as committed on disk, and --force-new-cluster drops it. Where the other members are lost, [Snapshot] raises the commit
// index of a copy to the log's last entry, has etcd apply it, and makes a snapshot file of the database. Of logs of a quorum the one
// that would win an election, by term and then index, has all that was acknowledged.
package verify
