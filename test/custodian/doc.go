// Package custodian is a stand-in for cluster-etcd-operator: a reconciler of our own that behaves
// towards Machines and etcd's members as that operator does, for tests of guard mode beside it. It
// acts under whatever identity it is given, with a client of etcd of its own, and knows nothing of
// Holdfast.
//
// What it does in a round, in this order; a step that fails does not stop those after it:
//
//   - it puts the hook on every live control-plane Machine, also on one that hosts nothing;
//   - it releases the hook of a deleting Machine none of whose addresses a listed member has, and
//     ends that step at the first Machine whose update fails;
//   - it adds the member of a ready control-plane Node as a learner, if its Machine is live and hooked;
//   - it promotes learners whose Machine is live and hooked;
//   - it removes the learners of deleting Machines, and the voter of one deleting Machine once there
//     are more voters than desired.
//
// Members are joined to Machines by the InternalIPs in the Machine's status alone. The Options are
// ways of that operator that are known to be wrong, or that Holdfast has another opinion on.
//
// The facts are read off cluster-etcd-operator's controllers machinedeletionhooks,
// clustermembercontroller and clustermemberremovalcontroller, as its public repository has them.
// Left out is what the sandbox does in its place: revisions of static pods, and the guard pods.
package custodian
