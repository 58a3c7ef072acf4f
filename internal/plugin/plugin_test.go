package plugin

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/internal/audit"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	log     = "testdata/audit.log"
	rotated = "testdata/audit-2026-03-01T00-00-00.000.log.gz"
	demoLog = "../../docs/examples/audit.log"
	mixed   = "testdata/mixed.log.txt" // a process's output with records in it, one of a user with a bad name
)

// typed runs the command line as a person would, on 1 March 2026 at 13:00.
func typed(t *testing.T, in io.Reader, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	now := func() time.Time { return time.Date(2026, 3, 1, 13, 0, 0, 0, time.UTC) }
	status = execute(t.Context(), args, terminal{in, &out, &errs, now, network{}})
	return status, out.String(), errs.String()
}

func TestGolden(t *testing.T) {
	for name, c := range map[string]struct {
		in   string // a file for standard input
		args string
	}{
		"table":          {args: "audit " + log},
		"json":           {args: "audit -o json --verdict denied " + log},
		"yaml":           {args: "audit -o yaml --rule one-too-many " + log},
		"rotated":        {args: "audit " + rotated + " " + log},
		"twice":          {args: "audit --verdict denied " + log + " " + log},
		"machine-user":   {args: "audit --machine master-0,master-2 --user alice --user mallory " + log},
		"since":          {args: "audit --since 55m " + log},
		"between":        {args: "audit --since 2026-03-01T12:01:00Z --until 58m " + log},
		"nothing":        {args: "audit --user nobody " + log},
		"nothing-json":   {args: "audit --user nobody -o json " + log},
		"mixed":          {args: "audit " + mixed},
		"standard-input": {in: mixed, args: "audit -"},
		"both":           {in: mixed, args: "audit --rule held - " + log},
		"report":         {args: "report --machine master-1 " + demoLog},
		"report-json":    {args: "report -o json --machine master-2 " + demoLog},
		"report-mixed":   {args: "report " + mixed},
		"report-nothing": {args: "report --since 1h " + log},
	} {
		t.Run(name, func(t *testing.T) {
			var in io.Reader = strings.NewReader("")
			if c.in != "" {
				f, err := os.Open(c.in)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = f.Close() })
				in = f
			}
			status, stdout, stderr := typed(t, in, strings.Fields(c.args)...)
			if status != 0 {
				t.Errorf("status %d: %s", status, stderr)
			}
			got := "$ kubectl holdfast " + c.args
			if c.in != "" {
				got += " < " + c.in
			}
			golden(t, name+".txt", got+"\n"+stdout+stderr)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not so any more (-want +got; -update writes it anew):\n%s", path, diff)
	}
	for _, r := range got {
		if r < ' ' && r != '\n' && r != '\t' || r == '\u202e' {
			t.Errorf("%s holds %q, which a terminal acts on", path, r)
		}
	}
}

func TestBadCommandLines(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string // all in one line of stderr
	}{
		"unknown command":      {[]string{"guard"}, []string{`"guard"`}},
		"no Machine":           {[]string{"explain"}, []string{"kubectl holdfast explain takes the name of one Machine"}},
		"unknown flag":         {[]string{"audit", "--rules=held"}, []string{"--rules", "kubectl holdfast audit --help"}},
		"rule":                 {[]string{"audit", "--rule=hold"}, []string{"--rule", `"hold"`, "one-too-many"}},
		"verdict":              {[]string{"audit", "--verdict=denied,refused"}, []string{"--verdict", `"refused"`, "denied, overridden, repaired, allowed"}},
		"output":               {[]string{"audit", "-o", "xml"}, []string{"--output", `"xml"`, "table, json, yaml"}},
		"since":                {[]string{"audit", "--since=yesterday"}, []string{"--since", `"yesterday"`, "90m"}},
		"until":                {[]string{"audit", "--until=-1h"}, []string{"--until", `"-1h"`}},
		"nothing between":      {[]string{"audit", "--since=1h", "--until=2h"}, []string{"--since 1h", "--until 2h"}},
		"arguments of version": {[]string{"version", "now"}, []string{`"now"`}},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := typed(t, strings.NewReader(""), c.args...)
			if status != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "kubectl holdfast: ") {
				t.Errorf("status %d, want 2 and one line on stderr; stdout %q, stderr %q", status, stdout, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q does not hold %q", stderr, want)
				}
			}
		})
	}
}

// TestOneBadFile: a file that is cut off hides no records of the others.
func TestOneBadFile(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "a.log.gz")
	if err := os.WriteFile(bad, []byte("\x1f\x8bcut"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"audit", "report"} {
		status, all, _ := typed(t, nil, command, rotated)
		if status != 0 || all == "" {
			t.Fatalf("%s: status %d, %q", command, status, all)
		}
		_, stdout, stderr := typed(t, nil, command, bad, rotated)
		if !strings.Contains(stdout, strings.TrimSpace(all)) || !strings.Contains(stderr, bad) {
			t.Errorf("%s: %q, not %q; stderr %q", command, stdout, all, stderr)
		}
	}
}

func TestFailures(t *testing.T) {
	dir := t.TempDir()
	half := filepath.Join(dir, "half.log.gz")
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(bytes.Repeat([]byte("\n"), 1<<16)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(half, z.Bytes()[:z.Len()/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		in   io.Reader
		args []string
		want string
	}{
		"no file":          {nil, []string{"/nowhere/audit.log"}, "/nowhere/audit.log"},
		"a folder":         {nil, []string{t.TempDir()}, "is a directory"},
		"cut off":          {nil, []string{half}, half},
		"nothing but junk": {strings.NewReader("a\nb\n"), []string{"-"}, "there is no audit event in -"},
		"broken pipe":      {io.MultiReader(strings.NewReader("\n"), broken{}), []string{"-"}, "standard input: the pipe broke"},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := typed(t, c.in, append([]string{"audit"}, c.args...)...)
			if status != 1 || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
			}
		})
	}
	if status, stdout, stderr := typed(t, strings.NewReader(""), "audit", "-"); status != 0 || stdout != "No records.\n" || stderr != "" {
		t.Errorf("an empty log: status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the pipe broke") }

// TestInterrupted: Ctrl-C ends it although the input does not end.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if status := execute(ctx, []string{"audit", "-"}, terminal{endless{}, &out, &errs, time.Now, network{}}); status != 130 {
		t.Errorf("status %d: %s", status, errs.String())
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, "\n"), nil }

// TestCtrlC: it ends a process that waits for more of its standard input.
func TestCtrlC(t *testing.T) {
	if args := os.Getenv("HOLDFAST_TYPED"); args != "" {
		os.Args = strings.Fields(args)
		os.Exit(Main())
	}
	for _, args := range []string{"audit -", "report -", "status -f -", "simulate -f -"} {
		t.Run(args, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCtrlC$")
			cmd.Env = append(os.Environ(), "HOLDFAST_TYPED=kubectl-holdfast "+args)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err == nil {
				_, err = in.Write(bytes.Repeat([]byte("\n"), 1<<20)) // more than a pipe holds: now it reads
			}
			if err == nil {
				err = cmd.Process.Signal(os.Interrupt)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 || !strings.Contains(stderr.String(), "interrupted") {
				t.Errorf("it ends with %v: %s", err, stderr.String())
			}
		})
	}
}

func TestHelpTeaches(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{}, []string{"audit", "version", "kubectl holdfast"}},
		{[]string{"audit", "--help"}, []string{"--since", "kubectl holdfast audit --machine", "overridden"}},
		{[]string{"version"}, []string{"kubectl-holdfast "}},
	} {
		status, stdout, stderr := typed(t, nil, c.args...)
		if status != 0 || stderr != "" {
			t.Errorf("%q: status %d, stderr %q", c.args, status, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%q does not mention %q:\n%s", c.args, want, stdout)
			}
		}
	}
}

func FuzzAudit(f *testing.F) {
	for _, path := range []string{log, mixed} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, output := range []string{"table", "yaml"} {
			status, stdout, stderr := typed(t, bytes.NewReader(data), "audit", "-", "-o", output)
			if status == 2 || output == "table" && strings.ContainsRune(stdout+stderr, '\x1b') {
				t.Errorf("%s: status %d, %q, %q", output, status, stdout, stderr)
			}
		}
	})
}

// TestNotEnforced: of a request that passed although it was denied the table says so.
func TestNotEnforced(t *testing.T) {
	var e audit.Entry
	e.Annotations = map[string]string{audit.RuleAnnotation: "one-too-many", audit.VerdictAnnotation: "denied", audit.EnforcementAnnotation: "warn"}
	if row := entryRow(&e); row[1] != "denied (warn)" || !strings.HasPrefix(row[6], "it passed as it was, ") {
		t.Errorf("%q", row)
	}
	e.Annotations[audit.VerdictAnnotation] = "allowed"
	if row := entryRow(&e); row[1] != "allowed (warn)" || row[6] != "" {
		t.Errorf("%q", row)
	}
}
