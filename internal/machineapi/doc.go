// Package machineapi translates between the cluster's objects and quorum's types: Machines, Nodes,
// the install-config, the evidence and its records, and the patches that put a Machine's hook right.
// It reads and writes nothing itself.
//
// Reading never fails. What does not parse is taken the way that holds a Machine: an address that is
// none still hints at an instance, evidence that is garbled is still there to be kept.
package machineapi
