// Model explores every situation that a small control plane can get into, and asks the real functions
// of internal/membership and internal/admission, Decide and Admit, what to do in each: all interleavings of reconcilers, requests,
// hosts and faults, breadth first.
//
//	go run ./test/model             all configurations
//	go run ./test/model -run dead   those whose name holds "dead"
//	go run ./test/model -trace t    what a real control plane was seen to do (trace.go): chaos does this after each replacement
//
// In every state and at every step I1 to I7 and I10 are judged, by own arithmetic; from every state that is
// within etcd's tolerance a fair run has to come to rest (I8). The shortest way to a violation is
// printed as a scenario for test/decisions/testdata/plan. See docs/proof/invariants.md.
//
// What can happen next is listed in step.go. It is done in holdfast.go for the reconcilers, set.go for the set, requests.go
// for what people and automation ask of a Machine, nature.go and guard.go for hosts, etcd, the machine controller and the kubelet.
// What else people do: a drain is in guard.go; a voter that is listed by hand, a Node that is deleted and the number of voters that is
// wanted are in nature.go; the set's template is in set.go. A state is in
// state.go, what Holdfast sees of it in snapshot.go, what it decides in view.go, what it answers a request in admit.go.
package main
