package waysin_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write docs/proof/ways-in.md")
	m.Run()
}

func dryRun() client.CreateOption { return client.DryRunAll }

const preface = `# Ways in

Ways to take a hooked control-plane Machine away through the Kubernetes API, other than
by the escape hatch, and what becomes of each. The table is made from the one in ` + "`test/waysin`" + `, whose test
sends each row to a sandbox of real parts (kube-apiserver, etcd, the Machine API's controllers and its
own webhooks beside Holdfast's): first as a dry run, then for real unless the row says otherwise. After
each, hooks, finalizers, role labels, evidence, overrides and owners of all three Machines are as they
were, all three members vote, and all three instances run.

machine-api-operator's own webhooks (real, registered under their own names, failing open) run after
Holdfast's mutating webhook and beside its validating one. On a Machine that is being deleted they refuse
new and changed hooks, allow removing one, and let an update pass that only removes finalizers; they have
no rule for DELETE. The defaulter writes the cluster's label into new Machines.

The sandbox runs no garbage collector, namespace controller or MachineSet controller. The requests that
they would send are in the table, by their service accounts.

Two DELETEs of two healthy voters' Machines at the same instant, through two replicas of Holdfast, both
pass: admission reads the other Machine before either DELETE is stored (` + "`TestTwoDeletesAtOnce`" + `: in all
of 15 rounds). Hook and latch stand on both all the same, so neither is drained or terminated
while it stands; a third DELETE is refused.

`

// document is docs/proof/ways-in.md.
func document() string {
	out := &strings.Builder{}
	out.WriteString("<!-- Made by go test ./test/waysin -run TestDocument -update. -->\n\n" + preface)
	for _, state := range []when{live, deleting} {
		title := "A live Machine"
		if state == deleting {
			title = "While a Machine's deletion is held"
		}
		fmt.Fprintf(out, "## %s\n\n| way in | who | what happens | test |\n|---|---|---|---|\n", title)
		for _, w := range ways() {
			if w.on != state {
				continue
			}
			var who []string
			for _, id := range w.who {
				who = append(who, id.File())
			}
			what := string(w.want)
			if rule, ok := strings.CutPrefix(what, "denied: "); ok {
				what = "denied by `" + rule + "`"
			} else if head, rule, ok := strings.Cut(what, ", with a Warning: "); ok {
				what = head + ", with the Warning of `" + rule + "`"
			}
			if w.note != "" {
				what += "; " + w.note
			}
			if w.dryOnly {
				what += " (dry run only)"
			}
			fmt.Fprintf(out, "| %s | %s | %s | `TestWaysIn/%s/%s` |\n", w.name, strings.Join(who, ", "), what, w.on, strings.ReplaceAll(w.name, " ", "_"))
		}
		out.WriteString("\n")
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}
