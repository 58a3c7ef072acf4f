// Package observe reads the cluster and etcd into a quorum.Snapshot. Every read is live: a cache may not have seen what just
// happened. One object that cannot be read affects that object only; where a list cannot be read, there is no Snapshot.
//
// A Memory adds since when each member is as it is, which one read cannot tell. Claims are the Machines
// outside the control plane that have the host of one of its Machines, as a look now and then finds them.
package observe
