package plugin

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

func explainCommand(t terminal, c *clusterFlags) *cobra.Command {
	var file, output string
	cmd := &cobra.Command{
		Use:   "explain MACHINE",
		Short: "Say why a Machine is held or free, what comes next, and what its deletion would do now",
		Long: `Say what a control-plane Machine hosts, why it is held or free, which step comes next, what Holdfast
would answer if you deleted it now (or released it, if it is being deleted), and what to type.

The command only reads, and decides with Holdfast's own functions and flags. The cluster's own answer, without consequences:
kubectl delete machine.machine.openshift.io MACHINE --dry-run=server`,
		Example: `  kubectl holdfast explain master-0

  # For a script: would a deletion have its way now?
  kubectl holdfast explain master-0 -o json | jq .passes

  # In a support case, without the cluster
  kubectl holdfast explain master-0 -f snapshot.yaml`,
		Args: oneMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := oneOf("output", []string{"text", "json", "yaml"}, output); err != nil {
				return err
			}
			v, err := c.take(cmd.Context(), t, file)
			if err != nil {
				return err
			}
			m, err := v.machine(args[0])
			if err != nil {
				return err
			}
			if output != "text" {
				return printData(t.out, output, v.foretell(m))
			}
			v.explain(t.out, m)
			return nil
		},
	}
	bindFile(cmd.Flags(), &file)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

func (v *view) explain(out io.Writer, m *quorum.Machine) {
	fmt.Fprintf(out, "Machine %s %s\n", m.Name, plain(v.standing(m)))
	if v.unguarded() {
		indented(out, "But the guard is "+v.guard)
	}
	indented(out, v.hosts(m)...)
	if v.source != "" {
		indented(out, v.source)
	}
	indented(out, v.inSet(m)...)
	indented(out, fmt.Sprintf("Hook %s: %s; latch %s: %s; finalizer: %s.", quorum.HookName, entryWord(m.Hook), quorum.LatchName, entryWord(m.Latch),
		map[bool]string{true: "on", false: "off"}[m.Finalizer]))
	if m.Override != "" {
		by := "set by " + m.LiftedBy()
		if _, why := m.Lifted(v.Now); why != "" {
			by = "which lifts nothing: " + why + "; set it again with another reason"
		}
		indented(out, fmt.Sprintf("Override %q, %s.", m.Override, by))
	}
	if waits := v.waits(m); waits != "" {
		fmt.Fprintf(out, "\nIt waits for: %s\n", plain(waits))
	}
	fmt.Fprintln(out)
	v.next(out)

	d, what := v.answer(m)
	if what == "" {
		if m.Latch == quorum.EntryOurs && v.unguarded() {
			fmt.Fprintln(out, "\nNobody takes its latch off while the guard is not in force. What to type:")
			indented(out, "kubectl holdfast check", "kubectl holdfast off --policies   # says how to take the latch off by hand")
		}
		return
	}
	v.verdict(out, m, what, &d)
	if typed := v.commands(m, &d); typed != nil {
		fmt.Fprintln(out, "\nWhat to type:")
		indented(out, typed...)
	}
}

// answer is what Holdfast would say to a deletion, or to the release of a Machine that is being deleted, and
// which of the two; "" if its hook is off already.
func (v *view) answer(m *quorum.Machine) (admission.Decision, string) {
	switch {
	case !m.Deleting():
		return v.deletion(m), "deleted"
	case m.Hook == quorum.EntryAbsent: // what follows is Holdfast's
		return admission.Decision{}, ""
	}
	return v.release(m), "released"
}

// foretold is how a Machine stands, and what Holdfast would answer to a request about it, as data.
type foretold struct {
	Machine  string      `json:"machine"`
	Standing string      `json:"standing"` // follows the name in a sentence
	WaitsFor string      `json:"waitsFor,omitempty"`
	Request  string      `json:"request,omitempty"` // deleted or released; none where its hook is off already
	User     string      `json:"user,omitempty"`
	Passes   *bool       `json:"passes"`         // it would have its way: it is neither denied nor put back; null where etcd is not known, or the guard is not in force
	Rule     quorum.Rule `json:"rule,omitempty"` // that denies it
	Says     []string    `json:"says,omitempty"`
	Type     []string    `json:"type,omitempty"` // commands
}

func (v *view) foretell(m *quorum.Machine) foretold {
	out := foretold{Machine: m.Name, Standing: v.standing(m), WaitsFor: v.waits(m)}
	d, what := v.answer(m)
	if what == "" {
		return out
	}
	out.Request, out.User, out.Says, out.Type = what, v.user.Name, lines(&d), v.commands(m, &d)
	if v.Ring.Known && !v.unguarded() {
		out.Passes = new(!refused(&d))
	}
	if denial := d.Denial(); denial != nil {
		out.Rule = denial.Rule
	}
	return out
}

// standing is whether the Machine is held, and why, in words that follow its name.
func (v *view) standing(m *quorum.Machine) string {
	since := "has been deleting for " + v.age(m.DeletedAt) + ", "
	switch {
	case m.Mirrored:
		return "is mirrored from another API, and Holdfast leaves it alone."
	case m.Deleting() && m.Hook == quorum.EntryOurs:
		return since + "and held: it is neither drained nor terminated while its hook is on."
	case m.Deleting() && m.Hook == quorum.EntryForeign:
		return since + "and held by a hook of the right name that somebody else owns."
	case m.Deleting() && m.Latch == quorum.EntryOurs:
		return since + "its hook was taken off, and it is drained, but not terminated while its latch is on."
	case m.Deleting() && len(m.OtherHooks) > 0:
		return since + "and let go by Holdfast. Another lifecycle hook holds it: " + strings.Join(m.OtherHooks, " and ") + "."
	case m.Deleting():
		return since + "and let go: the machine controller drains and terminates it."
	case m.Protected():
		if d := v.deletion(m); refused(&d) {
			return "is live and protected: a deletion would be refused now."
		}
		return "is live and protected: a deletion is held until etcd can do without its member."
	case m.Hook == quorum.EntryOurs:
		return "is live, and its hook is on."
	}
	return "is live and not protected: nothing would hold its deletion."
}

// hosts are sentences on where the Machine runs and what it hosts.
func (v *view) hosts(m *quorum.Machine) []string {
	var out []string
	if n := v.join.Node(m); n != nil {
		out = append(out, "Its Node is "+nodeCell(n)+".")
	} else {
		out = append(out, "It has no Node.")
	}
	is, why := v.join.Hosting(m)
	switch is {
	case quorum.HostingMember:
		for _, member := range v.join.Members(m) {
			text := fmt.Sprintf("It hosts etcd %s %s, %s", v.role(member), member, v.healthOf(member))
			if member.Why != "" {
				text += ": " + member.Why
			}
			out = append(out, text+".")
			if !v.join.Host(member).Known() {
				out = append(out, "That member is joined to another host as well. Which one hosts it is not known, so Holdfast holds both.")
			}
		}
	case quorum.HostingNothing:
		out = append(out, "It hosts no etcd member.")
	default:
		out = append(out, "Whether it hosts an etcd member is not known: "+strings.TrimRight(why, ".")+".")
	}
	return out
}

// commands are what a person may want to type next: what helps first, what costs something last.
func (v *view) commands(m *quorum.Machine, d *admission.Decision) []string {
	n := ""
	if v.namespace != defaultNamespace {
		n = " -n " + v.namespace
	}
	follow := "kubectl holdfast status" + n + " --watch"
	replace := "kubectl holdfast replace" + n + " " + m.Name
	release := "kubectl holdfast release" + n + " " + m.Name + " --reason '...'"
	switch denied := refused(d); {
	case m.Deleting():
		typed := []string{follow}
		if v.alone(m) {
			typed = []string{replace + "   # create its replacement, and follow", follow}
		}
		switch {
		case denied:
		case !v.join.MayRelease(m):
			typed = append(typed,
				"kubectl -n "+v.namespace+" annotate machine.machine.openshift.io "+m.Name+" --overwrite "+quorum.OverrideAnnotation+"='"+string(quorum.RuleEscapeHatch)+": ...'   # etcd and the API server stop by it: only if it must go all the same, and then",
				release)
		default:
			typed = append(typed, release+"   # only if it must go without a replacement")
		}
		return typed
	case denied:
		return nil // the refusal says what to type
	case v.kept(m):
		return []string{
			replace + "   # delete it; the set creates another",
			replace + " --instance-type ...   # change the set's template: all its Machines are replaced, one after the other",
		}
	default:
		return []string{
			replace + "   # a replacement first, then the deletion",
			replace + " --instance-type ...   # the same, with another instance type",
			"kubectl -n " + v.namespace + " delete machine.machine.openshift.io " + m.Name + "   # only the deletion",
		}
	}
}

// alone reports whether a Machine that is being deleted waits for a replacement that does not exist yet: no live Machine is without a Node.
func (v *view) alone(m *quorum.Machine) bool {
	for i := range v.Machines {
		if other := &v.Machines[i]; !other.Deleting() && v.join.Node(other) == nil {
			return false
		}
	}
	return !v.kept(m) && v.phase(m.Name) == membership.PhaseAwaitNode
}

// refused reports whether the decision keeps the request from what it is for: it denies it, or puts the hook back.
func refused(d *admission.Decision) bool {
	return d.Denial() != nil || d.Repairs.Hook == admission.FixAsOld
}

func verdictWords(d *admission.Decision) string {
	if denial := d.Denial(); denial != nil {
		return "refused (" + string(denial.Rule) + "):"
	}
	if refused(d) {
		return "useless, because Holdfast would put the hook back:"
	}
	if len(d.Findings) == 0 {
		return "allowed."
	}
	return "allowed, and Holdfast would say:"
}

// lines are what the decision says: why it denies, else its Warnings.
func lines(d *admission.Decision) []string {
	if denial := d.Denial(); denial != nil {
		return denial.Lines
	}
	return d.Warnings()
}
