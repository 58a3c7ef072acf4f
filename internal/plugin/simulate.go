package plugin

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

func simulateCommand(t terminal) *cobra.Command {
	var file, output string
	cmd := &cobra.Command{
		Use:   "simulate -f FILE",
		Short: "Decide on a snapshot file: the plan, the conditions, and what each deletion would do",
		Long: `Decide on a snapshot file as Holdfast would: what it does next, the conditions that it tells, and for
each control-plane Machine what it would answer to a deletion. No cluster is needed. The file is what
status -o yaml writes; docs/kubectl-holdfast.md lists its fields, so that it can be written or changed
by hand to ask what would be.`,
		Example: `  kubectl holdfast status -o yaml > snapshot.yaml
  kubectl holdfast simulate -f snapshot.yaml

  # What if two are wanted less?
  sed 's/^desired: 5/desired: 3/' snapshot.yaml | kubectl holdfast simulate -f -`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := oneOf("output", []string{"text", "json", "yaml"}, output); err != nil {
				return err
			}
			if file == "" {
				return usage("--filename is missing: a snapshot file, or - for standard input")
			}
			v, err := readFile(t, file)
			if err != nil {
				return err
			}
			return v.simulate(t, output)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "filename", "f", "", "the snapshot file, - for standard input")
	f.StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

// simulation is what simulate finds, as data.
type simulation struct {
	Actions    []simulatedAction    `json:"actions"`
	Notes      []simulatedNote      `json:"notes"`
	Conditions []simulatedCondition `json:"conditions"`
	Deletions  []simulatedDeletion  `json:"deletions"`
}

type simulatedAction struct {
	Step   int    `json:"step"`
	Kind   string `json:"kind"`
	Action string `json:"action"`
	Why    string `json:"why"`

	FailsSince string `json:"failsSince,omitempty"` // the elected Holdfast tries it, and says why not
	Fails      string `json:"fails,omitempty"`
}

type simulatedNote struct {
	Reason  membership.Reason `json:"reason"`
	Machine string            `json:"machine,omitempty"`
	Message string            `json:"message"`
}

type simulatedCondition struct {
	Type    membership.ConditionType `json:"type"`
	Status  membership.Status        `json:"status"`
	Reason  string                   `json:"reason"`
	Message string                   `json:"message"`
}

type simulatedDeletion struct {
	Machine string      `json:"machine"`
	Allowed bool        `json:"allowed"`
	Rule    quorum.Rule `json:"rule,omitempty"` // that denies it
	Says    []string    `json:"says,omitempty"`
}

// planData are the plan's actions and notes, lists also where they are empty.
func (v *view) planData() ([]simulatedAction, []simulatedNote) {
	actions, notes := []simulatedAction{}, []simulatedNote{}
	if v.silent {
		return actions, notes // Holdfast knows more
	}
	for _, a := range v.plan.Actions {
		one := simulatedAction{Step: a.Step, Kind: a.Kind().String(), Action: a.Describe(), Why: a.Why}
		if f := membership.Failing(v.Snapshot, a); f != nil {
			one.FailsSince, one.Fails = at(f.Since), f.Why
		}
		actions = append(actions, one)
	}
	for _, n := range v.plan.Notes {
		notes = append(notes, simulatedNote(n))
	}
	return actions, notes
}

func (v *view) simulate(t terminal, output string) error {
	conditions := membership.Conditions(v.Snapshot, &v.plan)
	if output != "text" {
		out := simulation{Deletions: []simulatedDeletion{}}
		out.Actions, out.Notes = v.planData()
		for _, c := range conditions {
			out.Conditions = append(out.Conditions, simulatedCondition{c.Type, c.Status, c.Reason, c.Message})
		}
		for i := range v.Machines {
			m := &v.Machines[i]
			d := v.deletion(m)
			one := simulatedDeletion{Machine: m.Name, Allowed: d.Denial() == nil, Says: lines(&d)}
			if denial := d.Denial(); denial != nil {
				one.Rule = denial.Rule
			}
			out.Deletions = append(out.Deletions, one)
		}
		return printData(t.out, output, out)
	}
	fmt.Fprintf(t.out, "Etcd: %s\nMode: %s\nTaken: %s\n\n", plain(v.etcdLine()), v.modeLine(), at(v.Now))
	v.next(t.out)
	fmt.Fprintln(t.out, "\nConditions:")
	for _, c := range conditions {
		fmt.Fprintf(t.out, "  %s=%s %s\n", c.Type, c.Status, c.Reason)
		for _, line := range strings.Split(c.Message, "\n") {
			fmt.Fprintf(t.out, "    %s\n", plain(line))
		}
	}
	fmt.Fprintln(t.out, "\nIf a person deleted one of the Machines now:")
	for i := range v.Machines {
		m := &v.Machines[i]
		if m.Deleting() {
			fmt.Fprintf(t.out, "  %s: it is being deleted already.\n", plain(m.Name))
			continue
		}
		d := v.deletion(m)
		fmt.Fprintf(t.out, "  %s: %s\n", plain(m.Name), verdictWords(&d))
		for _, line := range lines(&d) {
			fmt.Fprintf(t.out, "    %s\n", plain(line))
		}
	}
	return nil
}
