// Command bench measures what the guard costs: requests that it has nothing to do with, requests that it
// decides, the process itself, and a replacement. What is compared is measured in turns on one API
// server, in one go, because two runs on one computer differ by more than the guard costs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	sections     []string
	rounds       int
	requests     int
	block        int
	replacements int
	nodes        int
	machines     int
	idle         time.Duration
	json         string
}

// bench is one run of it.
type bench struct {
	options
	dir    string
	report report
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == nothingCommand {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err := serveNothing(ctx, os.Args[2:])
		stop()
		exit(err)
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	sections := flags.String("run", "routine,guarded,footprint,replacement", "what to measure")
	flags.IntVar(&o.rounds, "rounds", 3, "rounds of -requests")
	flags.IntVar(&o.requests, "requests", 1000, "requests of a round, for each kind of request")
	flags.IntVar(&o.block, "block", 250, "requests between two turns; less is fairer and slower")
	flags.IntVar(&o.replacements, "replacements", 10, "how many Machines to replace")
	flags.IntVar(&o.nodes, "nodes", 5000, "worker Nodes to create for the footprint")
	flags.IntVar(&o.machines, "machines", 10000, "worker Machines to create for the footprint")
	flags.DurationVar(&o.idle, "idle", time.Minute, "how long the manager is watched doing nothing")
	flags.StringVar(&o.json, "json", "", "file for the numbers; none if empty")
	if err := flags.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		return
	} else if err != nil || flags.NArg() > 0 {
		os.Exit(2)
	}
	o.sections = strings.Split(*sections, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, o options) (err error) {
	if o.rounds < 1 || o.requests < 1 || o.block < 1 || o.replacements < 1 || o.nodes < 1 || o.machines < 1 || o.idle <= 0 {
		return errors.New("the numbers are to be more than 0")
	}
	sections := map[string]func(*bench, context.Context) error{"routine": (*bench).routine, "guarded": (*bench).guarded, "footprint": (*bench).footprint, "replacement": (*bench).replacement}
	for _, name := range o.sections {
		if sections[name] == nil {
			return fmt.Errorf("there is no section %q", name)
		}
	}
	b := &bench{options: o, report: report{When: time.Now().UTC(), Rounds: o.rounds, Requests: o.requests}}
	b.report.LoadBefore = load()
	if b.dir, err = os.MkdirTemp("", "hf-bench-"); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(b.dir)
		} else {
			err = fmt.Errorf("%w\nThe logs of every process are below %s", err, b.dir)
		}
	}()
	for _, name := range o.sections {
		if err := sections[name](b, ctx); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", name, err), b.tell()) // what was measured until then is not lost
		}
	}
	return b.tell()
}

// tell prints the report, and writes it where -json says.
func (b *bench) tell() error {
	b.report.LoadAfter = load()
	b.report.print(os.Stdout)
	if b.json == "" {
		return nil
	}
	raw, err := json.MarshalIndent(b.report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(b.json), 0o755); err != nil {
		return err
	}
	return os.WriteFile(b.json, append(raw, '\n'), 0o644)
}

// progress tells people how it goes.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}
