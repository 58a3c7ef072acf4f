package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// auditOptions are the flags of audit.
type auditOptions struct {
	machines, users, rules, verdicts []string
	since, until                     string
	output                           string
	steps                            bool // steps as well as decisions, for report
	cluster                          *clusterFlags

	from, to time.Time // since and until
}

func auditCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := auditOptions{cluster: c}
	cmd := &cobra.Command{
		Use:   "audit [FILE...]",
		Short: "Show what Holdfast refused, repaired and let pass",
		Long: `Show what Holdfast refused, repaired and let pass, out of its audit records.

Without a FILE they are read from the logs of Holdfast's pods (label ` + holdfastPods + `),
where they stand if holdfast run has --audit-log-path=-. A FILE is such a log, compressed or not: name those that were rotated from it as well
(audit*.log*). For - standard input is read. Lines of a FILE that are no audit events are counted and left out.

A pod's log goes with the pod. With deploy/components/host-audit the replicas write to ` + hostAudit + ` of their hosts as well, and the
files there are read, too, each record once. So they are where no pod of Holdfast is left. The kubelets of the control-plane Nodes serve these
files through the API server: you need the rights to list nodes and to get nodes/proxy. What cannot be read is named, the rest is shown, and
the exit status is 1.

The verdicts: denied (the request was refused), repaired (it passed, with what a rule protects put
back), overridden (a person had lifted the rule), allowed (it passed, and is worth a record: a
deletion that is held, an escape hatch that was used). "repaired x29" stands for 29 repairs. "(abandoned)" stands behind a verdict for which
the API server did not wait: what became of the request is not in the record.`,
		Example: `  # What was refused in the last hour
  kubectl holdfast audit --verdict denied --since 1h

  # All there is on one Machine, with what etcd looked like each time
  kubectl holdfast audit --machine master-0 -o yaml

  # Which tools fight over which hooks, from files that were brought along
  kubectl holdfast audit /var/log/holdfast/audit*.log* --verdict repaired

  # Every escape hatch used in March and the reasons given, for a report
  kubectl holdfast audit --rule escape-hatch --since 2026-03-01T00:00:00Z --until 2026-04-01T00:00:00Z -o json`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.machines, "machine", nil, "only of these Machines")
	f.StringSliceVar(&o.users, "user", nil, "only of these users, by full name")
	f.StringSliceVar(&o.rules, "rule", nil, "only by these rules: "+strings.Join(ruleNames(), ", "))
	f.StringSliceVar(&o.verdicts, "verdict", nil, "only with these verdicts: "+strings.Join(verdictNames(), ", "))
	f.StringVar(&o.since, "since", "", "only from this time on: an age such as 90m, or a time such as 2026-03-01T12:00:00Z")
	f.StringVar(&o.until, "until", "", "only before this time: an age or a time, like --since")
	f.StringVarP(&o.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

func ruleNames() []string {
	var out []string
	for _, rule := range quorum.Rules {
		out = append(out, string(rule))
	}
	return out
}

func verdictNames() []string {
	var out []string
	for v := admission.VerdictDenied; v >= admission.VerdictAllowed; v-- { // the gravest first
		out = append(out, v.String())
	}
	return out
}

// check finds what is wrong with the flags before anything is read.
func (o *auditOptions) check(now time.Time) (err error) {
	if err := cmp.Or(
		oneOf("rule", ruleNames(), o.rules...),
		oneOf("verdict", verdictNames(), o.verdicts...),
		oneOf("output", []string{"table", "json", "yaml"}, o.output),
	); err != nil {
		return err
	}
	if o.from, err = when("since", o.since, now); err != nil {
		return err
	}
	if o.to, err = when("until", o.until, now); err != nil {
		return err
	}
	if !o.from.IsZero() && !o.to.IsZero() && !o.from.Before(o.to) {
		return cli.Usage("--since %s is not before --until %s", o.since, o.until)
	}
	return nil
}

// when reads an age or a time; zero is none.
func when(flag, value string, now time.Time) (time.Time, error) {
	if value == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(value); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	if at, err := time.Parse(time.RFC3339, value); err == nil {
		return at, nil
	}
	return time.Time{}, cli.Usage("--%s is %q; it is an age such as 90m or a time such as 2026-03-01T12:00:00Z", flag, value)
}

// wants reports whether the filters let an entry through. One that stands for several lies between the
// first and the last of them.
func (o *auditOptions) wants(e *audit.Entry) bool {
	match := func(wanted []string, has ...string) bool {
		return len(wanted) == 0 || slices.ContainsFunc(has, func(h string) bool { return slices.Contains(wanted, h) })
	}
	return (o.steps || e.Step() == "") && match(o.machines, e.Name()) && match(o.users, e.User.Username) && match(o.rules, e.Rules()...) && match(o.verdicts, e.Verdicts()...) &&
		(o.from.IsZero() || !e.Last().Before(o.from)) && (o.to.IsZero() || e.First().Before(o.to))
}

func (o *auditOptions) run(ctx context.Context, t terminal, args []string) error {
	if err := o.check(t.now()); err != nil {
		return err
	}
	entries, failed := o.read(ctx, t, args)
	if len(entries) == 0 && failed != nil {
		return failed // and not "No records."
	}
	return errors.Join(printEntries(t.out, o.output, entries), failed)
}

// read reads the records that are wanted, from files, or without those from the logs of Holdfast's pods.
func (o *auditOptions) read(ctx context.Context, t terminal, files []string) (entries []audit.Entry, err error) {
	keep := func(e audit.Entry) {
		if o.wants(&e) {
			entries = append(entries, e)
		}
	}
	if len(files) > 0 {
		err = readFiles(ctx, t, files, keep)
	} else {
		err = o.ofPods(ctx, t, keep)
	}
	return audit.Merge(entries), err
}

// stdin is the FILE that means standard input.
const stdin = "-"

// readFiles reads all files that can be read, and says what is wrong with the others.
func readFiles(ctx context.Context, t terminal, files []string, each func(audit.Entry)) error {
	var sum audit.Tally
	var failed []error
	for _, path := range files {
		in, name, err := t.open(ctx, path)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		bad := sum.Bad
		if err := errors.Join(readRecords(in, each, &sum), in.Close()); err != nil {
			failed = append(failed, fmt.Errorf("read %s: %w", name, err))
		}
		if bad = sum.Bad - bad; bad > 0 {
			fmt.Fprintf(t.err, "%s: left out %d lines that are no audit events\n", name, bad)
		}
	}
	if sum.Bad > 0 && sum.Ours+sum.Foreign == 0 {
		failed = append(failed, fmt.Errorf("there is no audit event in %s", strings.Join(files, ", ")))
	}
	return errors.Join(failed...)
}
