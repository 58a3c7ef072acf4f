// Package membership decides what to do next about etcd's members, about the hooks of their Machines and about the quorum
// guard. It is pure: Decide makes a Plan of a quorum.Snapshot, and reads nothing else. Each step has a file.
//
// The steps are tried in this order, and the first that has something to do is done; then the cluster is read anew:
//
//	step 1  hook.go           put hook, latch and evidence on live Machines that host a member
//	step 2  release.go        release a deleting Machine that hosts nothing
//	step 2  finalrelease.go   let go of a Machine whose hook a person took off, on record first, if etcd can do without it
//	step 3  removelearner.go  remove the learner of a deleting Machine, or one that makes no progress while another Node waits
//	step 4  removevoter.go    remove the voter of a deleting Machine
//	step 5  removedead.go     remove a dead voter that keeps its replacement out
//	step 6  promote.go        promote a learner
//	step 7  addlearner.go     add a learner
//	step 8  guardbudget.go    full mode, beside any other: size the quorum guard's budget, create and delete its pods
//
// If the leader's Machine is being replaced, leadership moves to another voter (leader.go): at the latest before the leader is removed
// (step 4), and where it can before the learner is added (step 7).
//
// Every plan is checked against the invariants (invariant.go) before it is returned. notes.go, blocker.go (what a replacement waits for),
// condition.go, replacementphase.go and changes.go (what is new since the last look) make the texts for people; reason.go has their names.
// What keeps failing, and etcd's alarms: failure.go. What steps ask about members that leave: leaving.go.
package membership
