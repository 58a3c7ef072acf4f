package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// auditOptions are the flags of audit.
type auditOptions struct {
	machines, users, rules, verdicts []string
	since, until                     string
	output, by                       string
	rotated                          bool

	from, to time.Time // since and until
}

func auditCommand(t terminal) *cobra.Command {
	var o auditOptions
	cmd := &cobra.Command{
		Use:   "audit [FILE...]",
		Short: "Show what Holdfast refused, repaired and let pass",
		Long: `Show what Holdfast refused, repaired and let pass, out of its audit log (--audit-log-path of
holdfast run). A FILE is such a log; the ones rotated from it, compressed or not, are read with it,
and of a folder all logs. Without a FILE, or for -, standard input is read.

The verdicts: denied (the request was refused), repaired (it passed, with what a rule protects put
back), overridden (a person had lifted the rule), allowed (it passed, and is worth a record: a
deletion that is held, an escape hatch that was used). A repair that goes on and on is summed up
every few minutes: "repaired x29" stands for 29 of them.

Other audit events in a log are left out. A line that is none is reported and left out.`,
		Example: `  # What was refused in the last hour
  kubectl holdfast audit /var/log/holdfast/audit.log --verdict denied --since 1h

  # All there is on one Machine, with what etcd looked like each time
  kubectl holdfast audit audit.log --machine master-0 -o wide

  # Which tools fight over which hooks, from the standard output of all replicas
  kubectl -n holdfast-system logs deploy/holdfast --all-pods | kubectl holdfast audit --by user

  # Every escape hatch used in March, for a report
  kubectl holdfast audit audit.log --rule escape-hatch --since 2026-03-01T00:00:00Z --until 2026-04-01T00:00:00Z -o json`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.machines, "machine", nil, "only of these Machines")
	f.StringSliceVar(&o.users, "user", nil, "only of these users, by full name")
	f.StringSliceVar(&o.rules, "rule", nil, "only by these rules: "+strings.Join(ruleNames(), ", "))
	f.StringSliceVar(&o.verdicts, "verdict", nil, "only with these verdicts: "+strings.Join(verdictNames(), ", "))
	f.StringVar(&o.since, "since", "", "only from this time on: an age such as 90m, or a time such as 2026-03-01T12:00:00Z")
	f.StringVar(&o.until, "until", "", "only before this time: an age or a time, like --since")
	f.StringVarP(&o.output, "output", "o", "table", "table, wide, json or yaml")
	f.StringVar(&o.by, "by", "", "sum up by user, rule or machine, the busiest first")
	f.BoolVar(&o.rotated, "rotated", true, "read the logs that were rotated from a FILE, too")
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
	for v := quorum.Denied; v >= quorum.Allowed; v-- { // the gravest first
		out = append(out, v.String())
	}
	return out
}

// check finds what is wrong with the flags before anything is read.
func (o *auditOptions) check(now time.Time) (err error) {
	for _, list := range [...]struct {
		flag         string
		given, known []string
	}{
		{"rule", o.rules, ruleNames()},
		{"verdict", o.verdicts, verdictNames()},
		{"output", []string{o.output}, []string{"table", "wide", "json", "yaml"}},
		{"by", []string{o.by}, []string{"", byUser, byRule, byMachine}},
	} {
		for _, value := range list.given {
			if !slices.Contains(list.known, value) {
				return usage("--%s is %q; it is one of %s", list.flag, value, strings.TrimPrefix(strings.Join(list.known, ", "), ", "))
			}
		}
	}
	if o.from, err = when("since", o.since, now); err != nil {
		return err
	}
	if o.to, err = when("until", o.until, now); err != nil {
		return err
	}
	if !o.from.IsZero() && !o.to.IsZero() && !o.from.Before(o.to) {
		return usage("--since %s is not before --until %s", o.since, o.until)
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
	return time.Time{}, usage("--%s is %q; it is an age such as 90m or a time such as 2026-03-01T12:00:00Z", flag, value)
}

// wants says whether the filters let an entry through. One that stands for several lies between the
// first and the last of them.
func (o *auditOptions) wants(e *audit.Entry) bool {
	match := func(wanted []string, has ...string) bool {
		return len(wanted) == 0 || slices.ContainsFunc(has, func(h string) bool { return slices.Contains(wanted, h) })
	}
	return match(o.machines, e.Name()) && match(o.users, e.User.Username) && match(o.rules, e.Rules()...) && match(o.verdicts, e.Verdicts()...) &&
		(o.from.IsZero() || !e.Last().Before(o.from)) && (o.to.IsZero() || e.First().Before(o.to))
}

func (o *auditOptions) run(ctx context.Context, t terminal, args []string) error {
	if err := o.check(t.now()); err != nil {
		return err
	}
	paths, err := o.files(args)
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		if f, ok := t.in.(*os.File); ok && isTerminal(f) {
			return usage("name a log, or pipe one in; see kubectl holdfast audit --help")
		}
		paths = []string{stdin}
	}
	var (
		entries []audit.Entry
		sum     audit.Tally
	)
	seen := opened{}
	for _, path := range paths {
		in, name, err := seen.open(t, path)
		if err != nil {
			return err
		}
		if in == nil {
			continue // read already
		}
		tally, err := scan(ctx, t, in, name, func(e audit.Entry) {
			if o.wants(&e) {
				entries = append(entries, e)
			}
		})
		if err := errors.Join(err, in.Close()); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		sum.Ours, sum.Foreign, sum.Bad = sum.Ours+tally.Ours, sum.Foreign+tally.Foreign, sum.Bad+tally.Bad
	}
	if sum.Bad > 0 && sum.Ours+sum.Foreign == 0 {
		return fmt.Errorf("there is no audit event in %s", strings.Join(paths, ", "))
	}
	audit.Sort(entries)
	if o.by != "" {
		return printSummary(t.out, o.output, o.by, summarize(o.by, entries))
	}
	return printEntries(t.out, o.output, entries)
}

// stdin is the FILE that means standard input.
const stdin = "-"

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// files are the logs that the arguments name.
func (o *auditOptions) files(args []string) ([]string, error) {
	var out []string
	for _, arg := range args {
		if arg == stdin {
			out = append(out, arg)
			continue
		}
		info, err := os.Stat(arg)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() && !o.rotated {
			out = append(out, arg)
			continue
		}
		files, err := audit.Files(arg)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("there is no log (*.log, *.log.gz) in the folder %s", arg)
		}
		out = append(out, files...)
	}
	return out, nil
}

// opened are the files that were opened: one that is named twice is read once.
type opened []fs.FileInfo

// open is nil for a file that was opened before.
func (o *opened) open(t terminal, path string) (in io.ReadCloser, name string, err error) {
	if path == stdin {
		return io.NopCloser(t.in), "standard input", nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) { // it may have been compressed since it was listed
		if z, zErr := os.Open(path + ".gz"); zErr == nil {
			f, err = z, nil
		}
	}
	if err != nil {
		return nil, path, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, path, errors.Join(err, f.Close())
	}
	if slices.ContainsFunc(*o, func(other fs.FileInfo) bool { return os.SameFile(info, other) }) {
		return nil, path, f.Close()
	}
	*o = append(*o, info)
	return f, path, nil
}

// tolerated is how many bad lines of a log are reported one by one: a log on standard output stands
// among the other lines of the process.
const tolerated = 3

func scan(ctx context.Context, t terminal, in io.Reader, name string, each func(audit.Entry)) (audit.Tally, error) {
	bad := 0
	tally, err := audit.Read(interruptible{ctx, in}, each, func(line int, err error) {
		if bad++; bad <= tolerated {
			fmt.Fprintf(t.err, "%s:%d: left out: %s\n", name, line, plain(err.Error()))
		}
	})
	if more := bad - tolerated; more > 0 {
		fmt.Fprintf(t.err, "%s: left out %d more lines that are no audit events\n", name, more)
	}
	return tally, err
}

// interruptible stops reading at the next chunk when somebody pressed Ctrl-C.
type interruptible struct {
	ctx context.Context
	in  io.Reader
}

func (r interruptible) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.in.Read(p)
}
