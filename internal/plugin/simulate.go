package plugin

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/membership"
)

func simulateCommand(t terminal) *cobra.Command {
	var file, output string
	cmd := &cobra.Command{
		Use:   "simulate -f FILE",
		Short: "Decide on a snapshot file: the plan, the conditions, and what each deletion would do",
		Long: `Decide on a snapshot file as Holdfast would: what it does next, the conditions that it reports, and for
each control-plane Machine what it would answer to a deletion. No cluster is needed. The file is what
status -o yaml writes; docs/kubectl-holdfast.md lists its fields, so that it can be written or changed
by hand to ask what would be.`,
		Example: `  kubectl holdfast status -o yaml > snapshot.yaml
  kubectl holdfast simulate -f snapshot.yaml

  # What if two are wanted less?
  sed 's/^desired: 5/desired: 3/' snapshot.yaml | kubectl holdfast simulate -f -`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("output", []string{"text", "json", "yaml"}, output); err != nil {
				return err
			}
			if file == "" {
				return cli.Usage("--filename is missing: a snapshot file, or - for standard input")
			}
			v, err := readFile(cmd.Context(), t, file)
			if err != nil {
				return err
			}
			return v.simulate(t.out, output)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "filename", "f", "", "the snapshot file, - for standard input")
	f.StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

// simulation is what simulate finds, as data.
type simulation struct {
	Actions    []plannedAction        `json:"actions"`
	Notes      []membership.Note      `json:"notes"`
	Conditions []membership.Condition `json:"conditions"`
	Machines   []foretold             `json:"machines"`
}

type plannedAction struct {
	Step   int    `json:"step"`
	Kind   string `json:"kind"`
	Action string `json:"action"`
	Why    string `json:"why"`

	FailsSince string `json:"failsSince,omitempty"` // the elected Holdfast tries it, and says why not
	Fails      string `json:"fails,omitempty"`
}

func (v *view) simulate(out io.Writer, format string) error {
	conditions := membership.Conditions(&v.plan)
	if format != "text" {
		data := simulation{Actions: []plannedAction{}, Notes: append([]membership.Note{}, v.plan.Notes...), Conditions: conditions, Machines: []foretold{}}
		for _, a := range v.plan.Actions {
			one := plannedAction{Step: a.Step, Kind: a.Kind().String(), Action: a.Describe(), Why: a.Why}
			if f := membership.Failing(v.Snapshot, a); f != nil {
				one.FailsSince, one.Fails = at(f.Since), f.Why
			}
			data.Actions = append(data.Actions, one)
		}
		for i := range v.Machines {
			data.Machines = append(data.Machines, v.foretell(&v.Machines[i]))
		}
		return printData(out, format, data)
	}
	fmt.Fprintf(out, "Etcd: %s\nMode: %s\nTaken: %s\n\n", plain(v.etcdLine()), v.modeLine(), at(v.Now))
	v.next(out)
	fmt.Fprintln(out, "\nConditions:")
	for _, c := range conditions {
		fmt.Fprintf(out, "  %s=%s %s\n", c.Type, c.Status, c.Reason)
		for line := range strings.Lines(c.Message) {
			indented(out, "  "+strings.TrimSpace(line))
		}
	}
	fmt.Fprintln(out, "\nIf a person deleted one of the Machines now:")
	for i := range v.Machines {
		m := &v.Machines[i]
		if m.Deleting() {
			indented(out, m.Name+": it is being deleted already.")
			continue
		}
		d := v.deletion(m)
		indented(out, m.Name+": "+verdictWords(&d))
		for _, line := range lines(&d) {
			indented(out, "  "+line)
		}
	}
	return nil
}
