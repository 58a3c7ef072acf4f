// Package hostenv says what the etcd of each control-plane Node starts with, and where etcd's
// clients find its voters. It is pure: one read of the ring in, text out, and the text back in.
//
// An [Environment] is three variables, written as the lines of an environment file:
//
//	ETCD_INITIAL_CLUSTER        <name>=<peer URL>,...       every listed member, so that a new one finds its peers
//	ETCD_INITIAL_CLUSTER_STATE  existing                    or new, of a ring that has no member yet
//	ETCD_MEMBER_IDS             <hex member ID>=<peer URL>,...
//
// A member with several peer URLs has an entry for each. All Nodes' environments are rendered from one
// linearizable read and list the members of that read, no other ones. A Node on which etcd lists no
// member gets no ETCD_INITIAL_CLUSTER, so that nothing starts there, and a comment that says why.
//
// A member is called what it calls itself. One that has not started has no name yet, and will be
// called what its Node is called. If another member has that name already (a dead one that its host
// left behind, say), that one is called by its ID besides: etcd takes two entries of one name for one
// member, and the names of the others mean nothing to a member that joins.
package hostenv
