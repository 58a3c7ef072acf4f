// Package custodian is a stand-in for cluster-etcd-operator: a reconciler of our own that behaves
// towards Machines and etcd's members as that operator does, for tests of guard mode beside it. It
// acts under whatever identity it is given, with a client of etcd of its own, and knows nothing of
// Holdfast.
//
// It has these controllers. Run has them work side by side; Round has each look once, in this order:
//
//   - hooks: the hook goes on every live control-plane Machine, also on one that hosts nothing, and off
//     a deleting Machine none of whose addresses a listed member has, also one without addresses. The
//     first Machine whose release fails ends that step.
//   - endpoints: the voters' addresses are published; if they are others than before, a revision begins.
//   - additions: while every member answers, learners that have not started among them, the member of a
//     ready control-plane Node is added as a learner, if its Machine is live and hooked, and learners
//     whose Machine is live and hooked are promoted.
//   - removals: while no revision is under way and what is published is what etcd has, voters that
//     have neither a Machine nor a Node and do not answer are removed, the learners of deleting Machines, and
//     the voter of one deleting Machine once there are more voters than desired, or one is ill. Where the
//     answer says that a removal failed, it goes on to the next deleting Machine.
//   - with Options.GuardPort, the quorum guard: a budget of one less than the control-plane Nodes, and a pod on each of these that is
//     ready and not cordoned. It looks when a Node or a pod changes, not when the budget does.
//
// Members are joined to Machines by the InternalIPs in the Machine's status alone. In Run it looks at
// hooks when a Machine has changed, and else once in Options.Resync, as the operator does once a minute.
// Options.Revision and Options.Health are its pace, too. The others are ways of that operator that are
// known to be wrong, or that Holdfast has another opinion on.
//
// The facts are read off cluster-etcd-operator's controllers machinedeletionhooks,
// clustermembercontroller, clustermemberremovalcontroller and etcdendpointscontroller, its readyz, and library-go's guard controller, as
// its public repository had them in June 2026 (b4786ae33). TestRecorded holds the order and the kind of its writes
// against recordings of these on the sandbox, in testdata/recordings; package recording says what counts
// as the same. What remains different, and why:
//
//   - It writes no ConfigMap etcd-endpoints, status and Events. Guard mode reads none of them but the operator's conditions.
//   - It keeps the quorum guard with Options.GuardPort alone. A pod there asks its member itself, and is made once its Node is ready,
//     where the operator waits for a pod of etcd on that Node.
//   - Revisions are timed, and an addition waits for a ready Node, not for a pod of etcd that is not ready:
//     the sandbox has no static pods as objects.
//   - A member is asked for its status and its leader, where the operator reads a key: that needs a client of
//     its own for each member.
//   - A Machine is written as it was just read, by name, where the operator writes it as its cache has it,
//     in the cache's order. So fewer writes lose to other writers, and a hook comes sooner to a new Machine.
//   - It pauses for ten seconds at most between tries, where the operator's pause grows to a quarter of an
//     hour. In the recording a release came 15 s after Holdfast was back.
//   - Endpoints are published at once, where the operator took up to 8 s. In the recording of five voters the
//     first removal was decided before the second promotion and made after it; here a removal that was not
//     decided by then waits for the revision.
package custodian
