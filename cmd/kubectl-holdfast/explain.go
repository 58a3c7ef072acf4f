package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

func explainCommand(t terminal) *cobra.Command {
	var o source
	cmd := &cobra.Command{
		Use:   "explain MACHINE",
		Short: "Say why a Machine is held or free, what comes next, and what its deletion would do now",
		Long: `Say what a control-plane Machine hosts, why it is held or free, which step comes next, what Holdfast
would answer if you deleted it now (or released it, if it is being deleted), and what to type.

Nothing is sent but reads: the answers come from the functions that Holdfast itself decides with, on
what this look sees, with the rules as they are without flags of holdfast run. To have the cluster's own
answer without consequences: kubectl delete machine MACHINE --dry-run=server`,
		Example: `  kubectl holdfast explain master-0

  # In a support case, without the cluster
  kubectl holdfast explain master-0 -f snapshot.yaml`,
		Args: exactly(1, "the name of a Machine"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := o.take(cmd.Context(), t)
			if err != nil {
				return err
			}
			return v.explain(t.out, args[0])
		},
	}
	o.bind(cmd.Flags())
	return cmd
}

func (v *view) explain(out io.Writer, name string) error {
	i, err := v.machine(name)
	if err != nil {
		return err
	}
	m := &v.Machines[i]
	fmt.Fprintf(out, "Machine %s %s\n", name, v.standing(i))
	indented(out, v.hosts(i)...)
	indented(out, fmt.Sprintf("Hook %s: %s; latch %s: %s; finalizer: %s.", quorum.HookName, entryWord(m.Hook), quorum.LatchName, entryWord(m.Latch),
		map[bool]string{true: "on", false: "off"}[m.Finalizer]))
	if m.Override != "" {
		by := "set by " + m.OverrideBy
		if m.OverrideBy == "" {
			by = "which lifts nothing, because Holdfast did not see who set it"
		}
		indented(out, fmt.Sprintf("Override %q, %s.", m.Override, by))
	}
	if waits := v.waits(i); waits != "" {
		fmt.Fprintf(out, "\nIt waits for: %s\n", plain(waits))
	}
	fmt.Fprintln(out)
	v.next(out)

	d, what := v.deletion(i), "deleted"
	if m.Deleting() {
		d, what = v.release(i), "released"
	}
	if m.Deleting() && m.Hook == quorum.Absent && m.Latch != quorum.Ours {
		return nil // there is nothing to release
	}
	who := "you"
	if v.user.Name != "" {
		who += " (" + plain(v.user.Name) + ")"
	}
	fmt.Fprintf(out, "\nIf %s %s it now, it would be %s\n", who, what, verdictWords(&d))
	indented(out, lines(&d)...)
	v.guess(out)
	if typed := v.commands(i, &d); typed != nil {
		fmt.Fprintln(out, "\nWhat to type:")
		indented(out, typed...)
	}
	return nil
}

// standing is whether the Machine is held, and why, in words that follow its name.
func (v *view) standing(i int) string {
	m := &v.Machines[i]
	since := "has been deleting for " + v.age(m.DeletedAt) + ", "
	switch {
	case m.Mirrored:
		return "is mirrored from another API, and Holdfast leaves it alone."
	case m.Deleting() && m.Hook == quorum.Ours:
		return since + "and held: it is neither drained nor terminated while its hook is on."
	case m.Deleting() && m.Hook == quorum.Foreign:
		return since + "and held by a hook of the right name that somebody else owns."
	case m.Deleting() && m.Latch == quorum.Ours:
		return since + "and is drained, but not terminated while its latch is on."
	case m.Deleting():
		return since + "and free: it is drained and terminated."
	case m.Protected():
		return "is live and protected: a deletion is held until a replacement votes in etcd."
	case m.Hook == quorum.Ours:
		return "is live, and its hook is on."
	}
	return "is live and not protected: nothing would hold its deletion."
}

// hosts are sentences on where the Machine runs and what it hosts.
func (v *view) hosts(i int) []string {
	var out []string
	if n := v.join.Node(i); n >= 0 {
		out = append(out, "Its Node is "+nodeCell(&v.Nodes[n])+".")
	} else {
		out = append(out, "It has no Node.")
	}
	is, why := v.join.Hosting(i)
	switch is {
	case quorum.HostsMember:
		for _, k := range v.join.Members(i) {
			cells := v.memberCells(k)
			out = append(out, fmt.Sprintf("It hosts etcd %s %s, %s.", cells[2], &v.Ring.Members[k], cells[3]))
			if !v.join.Hosts[k].Known() {
				out = append(out, "That member is joined to another host as well, so whose it is is not known, which holds both.")
			}
		}
	case quorum.HostsNothing:
		out = append(out, "It hosts no etcd member.")
	default:
		out = append(out, "Whether it hosts an etcd member is not known: "+strings.TrimRight(why, ".")+".")
	}
	return out
}

// commands are what a person may want to type next.
func (v *view) commands(i int, d *quorum.Decision) []string {
	m := &v.Machines[i]
	n := ""
	if v.namespace != defaultNamespace {
		n = " -n " + v.namespace
	}
	switch denied := refused(d); {
	case m.Deleting() && denied:
		return []string{"kubectl holdfast status" + n + " --watch"}
	case m.Deleting():
		return []string{
			"kubectl holdfast status" + n + " --watch",
			"kubectl holdfast release" + n + " " + m.Name + " --reason '...'   # only if it must go without a replacement",
		}
	case denied:
		return nil // the refusal says what to type
	default:
		return []string{
			"kubectl holdfast replace" + n + " " + m.Name + " --instance-type ...   # a replacement first, then the deletion",
			"kubectl -n " + v.namespace + " delete machine " + m.Name + "   # only the deletion",
		}
	}
}

// refused says whether the decision keeps the request from what it is for: it denies it, or puts the hook back.
func refused(d *quorum.Decision) bool {
	return d.Denial() != nil || d.Repairs.Hook == quorum.AsOld || d.Repairs.Latch == quorum.AsOld
}

func verdictWords(d *quorum.Decision) string {
	if denial := d.Denial(); denial != nil {
		return "refused (" + string(denial.Rule) + "):"
	}
	if refused(d) {
		return "in vain, the hook is put back:"
	}
	if len(d.Findings) == 0 {
		return "allowed."
	}
	return "allowed, and Holdfast would say:"
}

// lines are what the decision says: why it denies, else its Warnings.
func lines(d *quorum.Decision) []string {
	if denial := d.Denial(); denial != nil {
		return denial.Lines
	}
	return d.Warnings()
}
