// Package webhooks answers the API server's AdmissionReviews with the decisions of internal/admission: it decodes
// the request, asks for the decision, and encodes the answer. It decides nothing itself.
//
// The mutating handler repairs (CREATE and UPDATE); the validating one judges the object that came of
// it, and DELETE. Both ask admission.Identities.Admit the same question. The first sees the request as it was
// sent; the second must find nothing left to repair, or another webhook undid what the first did. An update in which
// nothing can need a repair, such as the first that names a Machine's instance, meets the validating handler alone.
//
// Where things are: Machines in webhooks.go, how requests share one read of the cluster in sharedreads.go, HTTP in serve.go, the effect of
// --enforcement in enforcement.go, MachineSets and MachineHealthChecks in machinesets.go,
// ControlPlaneMachineSets in controlplaneset.go, the namespace and the CRD of the Machines and BareMetalHosts in home.go, answers to Holdfast's own
// call in selfcall.go.
//
// # Which handler reports what
//
// Each finding is recorded, and sent as a Warning, by one handler: the mutating handler reports what it
// repaired and what it denied, for then the validating one no longer finds it; the validating handler
// reports everything else, because it has the last word: what was allowed, what an override lifted, its
// own denials, and all of DELETE. So nothing is counted twice when the API
// server calls the mutating handler again (reinvocationPolicy IfNeeded) or not at all (it is down).
//
// # Bad input
//
// An AdmissionReview that is empty, larger than 7 MiB, or about a kind that its handler does not serve is answered with allowed=false and a
// 4xx code in its result; never with a crash, and never with an allowance, except that SetsAndHealthChecks lets an object pass that it cannot
// parse. A review of another version is read as v1, whose fields all versions share, and one of another kind holds no request, so it is
// refused as empty.
package webhooks
