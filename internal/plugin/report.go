package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/report"
)

type reportOptions struct {
	cluster       *clusterFlags
	machines      []string
	since, output string
	events        bool
}

func reportCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := reportOptions{cluster: c}
	cmd := &cobra.Command{
		Use:   "report [FILE...]",
		Short: "Show one timeline of requests, Holdfast's steps, etcd's members and Events",
		Long: `Show one timeline of the control plane's Machines: who asked for what and what Holdfast answered, what it
did of its own accord, how etcd's members changed, and the Events of other controllers.

-o html makes one page that is complete in itself, to send with a support case: a lane for each Machine, the
phases of each replacement, everything by time, with filters. Look through it before you send it: it has the
names of users and Machines, and addresses, in it.

Records are read as kubectl holdfast audit does, and Events from the API server, with a FILE only if --events says so.
Events are gone after an hour or so; records live as long as their logs.`,
		Example: `  # What happened in the last two hours
  kubectl holdfast report --since 2h

  # A page to send with a support case
  kubectl holdfast report --since 24h -o html > report.html

  # All about one Machine and its replacement, for a script
  kubectl holdfast report --machine master-1 -o json

  # From logs that a collector kept
  kubectl holdfast report -o html holdfast-1.log holdfast-2.log > report.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("events") {
				o.events = len(args) == 0
			}
			return o.run(cmd.Context(), t, args)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.machines, "machine", nil, "only of these Machines, and of the control plane as a whole")
	f.StringVar(&o.since, "since", "", "only from this time on: an age such as 90m, or a time such as 2026-03-01T12:00:00Z")
	f.StringVarP(&o.output, "output", "o", "table", "table, html or json")
	f.BoolVar(&o.events, "events", true, "read the Events from the API server, too; off with a FILE unless it is set")
	return cmd
}

func (o *reportOptions) run(ctx context.Context, t terminal, args []string) error {
	from, err := when("since", o.since, t.now())
	if err := cmp.Or(err, oneOf("output", []string{"table", "html", "json"}, o.output)); err != nil {
		return err
	}
	w := report.Wanted{From: from, Machines: o.machines}
	lacks := func(why error) { // on the terminal, and in the report
		text := plain(oneLine(why))
		w.Missing = append(w.Missing, text)
		fmt.Fprintf(t.err, "The report is without this: %s\n", text)
	}
	// All records, since a look before --since shows how things stood then.
	all := auditOptions{cluster: o.cluster, steps: true}
	entries, err := all.read(ctx, t, args)
	if err != nil && len(entries) == 0 {
		return err
	}
	if err != nil {
		lacks(err)
	}
	if len(args) == 0 {
		w.To = t.now()
		for i := range entries { // the hosts' clocks may be ahead of this one
			if last := entries[i].Last(); last.After(w.To) {
				w.To = last
			}
		}
	}
	if o.events {
		if w.Events, err = o.ofAPI(ctx, t, entries); err != nil {
			lacks(err)
		}
	}
	made := report.New(entries, w)
	switch o.output {
	case "html":
		return made.HTML(t.out, cli.Build("kubectl-holdfast"))
	case "json":
		return printData(t.out, o.output, made)
	}
	return printReport(t, made)
}

// ofAPI are the Events about control-plane Machines, those that are there and those that the records name, and about their set.
func (o *reportOptions) ofAPI(ctx context.Context, t terminal, entries []audit.Entry) ([]corev1.Event, error) {
	config, err := o.cluster.config()
	if err != nil {
		return nil, err
	}
	api, err := t.dial.api(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	ours := map[string]bool{}
	for i := range entries {
		ours[entries[i].Name()] = true
	}
	machines, err := listMachines(ctx, api, o.cluster.namespace())
	if err != nil {
		return nil, err
	}
	for i := range machines {
		if m := machineapi.Machine(&machines[i]); m.ControlPlane() {
			ours[m.Name] = true
		}
	}
	var events corev1.EventList
	if err := api.List(ctx, &events, client.InNamespace(o.cluster.namespace())); err != nil {
		return nil, fmt.Errorf("list Events in namespace %s: %w", o.cluster.namespace(), err)
	}
	return slices.DeleteFunc(events.Items, func(e corev1.Event) bool {
		about := e.InvolvedObject.GroupVersionKind()
		machine := about.Group == machinev1beta1.GroupName && about.Kind == "Machine" && ours[e.InvolvedObject.Name]
		return !machine && (about.Group != machinev1.GroupName || about.Kind != "ControlPlaneMachineSet")
	}), nil
}

// printReport prints a report as two tables: of the Machines that were deleted, and of everything by time.
func printReport(t terminal, r *report.Report) error {
	if len(r.Items) == 0 {
		_, err := fmt.Fprintln(t.out, "There is no record and no Event of this time.")
		return err
	}
	if len(r.Replacements) > 0 {
		rows := [][]string{{"DELETED", "AT", "BY USER", "REPLACED BY", "TOOK", "PHASES"}}
		for i := range r.Replacements {
			p := &r.Replacements[i]
			var phases []string
			for _, phase := range p.Phases() {
				phases = append(phases, phase.Name+" "+phase.Length())
			}
			rows = append(rows, []string{p.Machine, at(p.Deleted), p.User, p.By, p.Took(), strings.Join(phases, ", ")})
		}
		if err := printRows(t.out, widthOf(t.out), rows, "AT"); err != nil {
			return err
		}
		fmt.Fprintln(t.out)
	}
	rows := [][]string{{"TIME", "MACHINE", "KIND", "WHAT", "WHO", "SAID"}}
	for i := range r.Items {
		item := &r.Items[i]
		kind, what := item.Class(), item.What
		if item.Count > 0 {
			kind += fmt.Sprintf(" x%d", item.Count)
		}
		if item.Rule != "" {
			what += " " + item.Rule
		}
		rows = append(rows, []string{at(item.At), item.Machine, kind, what, item.User, shorten(strings.Join(item.Said, " "), 100)})
	}
	return printRows(t.out, widthOf(t.out), rows, "KIND")
}
