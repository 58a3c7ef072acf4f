// Package snapshotfile writes a quorum.Snapshot down as YAML or JSON and reads it again: what
// kubectl holdfast status -o yaml prints and simulate -f reads. A file holds all that a decision is
// made on and nothing else; whoever reads it decides as Holdfast would have.
//
// Member IDs are in hex, as etcdctl prints them; times are RFC 3339, durations as Go writes them
// (500ms, 5m0s); what is not known, not set or zero is left out. docs/kubectl-holdfast.md lists the fields.
package snapshotfile
