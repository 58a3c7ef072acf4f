// Package gitops runs the matrix of Git manifests that a GitOps tool may have of a guarded Machine
// against a real API server with Holdfast in front, and judges what was stored.
//
// A Tool is one way to sync: each of its modules brings its own engine, in the version whose
// Kubernetes libraries it was made for. This one has kubectl.
package gitops
