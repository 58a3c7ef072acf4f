// Package quorum has the facts about an etcd ring and its Machines that decisions are made on, and the arithmetic on them. It is
// pure: the standard library only, no clock, no logger, no I/O.
//
// Whoever wants a decision gathers a Snapshot. internal/admission decides requests by it, as the cluster would be after them;
// internal/membership decides what to do next, as the cluster is. Both share the Join of members to Machines (join.go) and the
// counts of voters (voters.go).
//
// Unknown never releases: where etcd did not answer, or a member cannot be joined to one host, hooks stay.
package quorum
