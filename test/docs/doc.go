// Package docs holds the documentation against the code: links and anchors resolve, what is named exists (flags,
// commands, rules, alerts, metrics, Event reasons, tests, files), what exists is named (rules, alerts, metrics, the
// manager's flags), and command blocks run. How a block is treated follows from its tag:
//
//	sh       what needs no cluster is executed, in a folder of its own with copies of deploy and docs; make and go
//	         commands are not executed (they take minutes), their targets and packages must exist
//	console  the same, and the output is compared; go test ./test/docs -update writes it
//	yaml     it is parsed; documents that begin with the name of a kustomization, as a comment, are built
//
// Right above a block that cannot run there stands the comment <!-- needs a cluster -->. Its commands and their flags
// must exist all the same: holdfast, kubectl holdfast, kubectl, etcdctl and etcdutl are asked for their help.
package docs
