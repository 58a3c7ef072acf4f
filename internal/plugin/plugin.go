// Package plugin is the kubectl plugin: kubectl holdfast. A file for each command; cluster.go connects, view.go and print.go show.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

// terminal is what a command is run at.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	now      func() time.Time
	dial     dialer
}

// open opens a file, or standard input for -. It can be read until the context ends.
func (t terminal) open(ctx context.Context, path string) (in io.ReadCloser, name string, err error) {
	from, name := io.NopCloser(t.in), "standard input"
	if path != stdin {
		if from, err = os.Open(path); err != nil {
			return nil, "", err
		}
		name = path
	}
	in, w := io.Pipe()
	go func() { // a read of a terminal cannot be interrupted: Ctrl-C leaves it behind
		_, err := io.Copy(w, from)
		w.CloseWithError(errors.Join(err, from.Close()))
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(errors.New("interrupted")) })
	return in, name, nil
}

// Main runs the process's command line until it is done or interrupted, and returns the exit status.
func Main() int {
	ctrllog.SetLogger(logr.Discard()) // else controller-runtime complains, with a stack trace, that it has none
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, os.Args[1:], terminal{os.Stdin, os.Stdout, os.Stderr, time.Now, network{}})
}

// execute runs the command line and returns the exit status: cli.Execute's, and as shells have it 130 where it was interrupted.
func execute(ctx context.Context, args []string, t terminal) int {
	root := &cobra.Command{
		Use:         "kubectl-holdfast",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
		Short:       "See what Holdfast, the deletion guard of control-plane Machines, does and why",
		Long: `Holdfast keeps a control-plane Machine from taking etcd's quorum with it: it refuses or repairs
changes to Machines that would. This plugin shows what it sees, what it did and why, and replaces or
releases Machines the way that it expects.`,
	}
	c := clusterFlags{stop: func() {}}
	defer func() { c.stop() }()
	c.bind(root.PersistentFlags())
	root.AddCommand(checkCommand(t, &c), statusCommand(t, &c), explainCommand(t, &c), simulateCommand(t), replaceCommand(t, &c), releaseCommand(t, &c),
		auditCommand(t, &c), reportCommand(t, &c), offCommand(t, &c), uninstallCommand(t, &c), cli.VersionCommand("kubectl holdfast"))
	fold(root, widthOf(t.out))
	status, err := cli.Execute(ctx, root, args, t.out, t.err)
	if err == nil {
		return 0
	}
	for n, line := range strings.Split(err.Error(), "\n") { // it may hold what somebody wrote on a Machine
		fmt.Fprintln(t.err, map[bool]string{true: "kubectl holdfast: "}[n == 0]+plain(line))
	}
	if status == 1 && ctx.Err() != nil {
		return 130
	}
	return status
}

// oneMachine wants the name of one Machine.
func oneMachine(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes the name of one Machine, but was given %q", cmd.CommandPath(), args)
	}
	return nil
}

// oneOf checks the values of a flag.
func oneOf(flag string, known []string, values ...string) error {
	for _, value := range values {
		if !slices.Contains(known, value) {
			return cli.Usage("--%s is %q; it is one of %s", flag, value, strings.Join(known, ", "))
		}
	}
	return nil
}
