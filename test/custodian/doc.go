// Package custodian is a stand-in for cluster-etcd-operator: a reconciler of our own that behaves
// towards Machines and etcd's members as that operator does, for tests of guard mode beside it. It
// acts under whatever identity it is given, with a client of etcd of its own, and knows nothing of
// Holdfast.
//
// What it does in a round, in this order; a step that fails does not stop those after it:
//
//   - it puts the hook on every live control-plane Machine, also on one that hosts nothing;
//   - it releases the hook of a deleting Machine none of whose addresses a listed member has, also of
//     one without addresses, and ends that step at the first Machine whose update fails;
//   - it publishes the voters' addresses; if they are others than before, a revision begins;
//   - while every member answers, learners that have not started among them, it adds the member of a
//     ready control-plane Node as a learner, if its Machine is live and hooked, and promotes learners
//     whose Machine is live and hooked;
//   - while no revision is under way and what is published is what etcd has, it removes voters that
//     have neither a Machine nor a Node and do not answer, the learners of deleting Machines, and the
//     voter of one deleting Machine once there are more voters than desired, or one is ill. Where the
//     answer says that a removal failed, it goes on to the next deleting Machine.
//
// Members are joined to Machines by the InternalIPs in the Machine's status alone. In Run it looks at
// hooks when a Machine has changed, and else once in Options.Resync, as the operator does once a minute.
// The other Options are ways of that operator that are known to be wrong, or that Holdfast has another
// opinion on.
//
// The facts are read off cluster-etcd-operator's controllers machinedeletionhooks,
// clustermembercontroller, clustermemberremovalcontroller and etcdendpointscontroller, as its public
// repository had them in June 2026 (b4786ae33). Left out is what the sandbox does in its place:
// revisions of static pods, which are only timed here, and the guard pods. Other than the operator it
// asks a member for its status, for a second, where that one reads a key, for half a minute, and it
// writes Machines as it has just read them, where that one writes them as its cache has them.
package custodian
