// Package plugin is the kubectl plugin: kubectl holdfast. A file for each command; cluster.go connects, view.go and print.go show.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// usageError is what the person who typed the command can mend: exit status 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// terminal is what a command is run at.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	now      func() time.Time
	dial     dialer
}

// Main runs the process's command line until it is done or interrupted, and returns the exit status.
func Main() int {
	ctrllog.SetLogger(logr.Discard()) // else controller-runtime complains, with a stack trace, that it has none
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, os.Args[1:], terminal{os.Stdin, shown(os.Stdout), shown(os.Stderr), time.Now, network{}})
}

// execute runs the command line and returns the exit status: 0, 1 for a failure, 2 for a bad command line, and as shells have it 130
// where it was interrupted.
func execute(ctx context.Context, args []string, t terminal) int {
	root := &cobra.Command{
		Use:         "kubectl-holdfast",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl holdfast"},
		Short:       "See what Holdfast, the deletion guard of control-plane Machines, does and why",
		Long: `Holdfast keeps a control-plane Machine from taking etcd's quorum with it: it refuses or repairs
changes to Machines that would. This plugin shows what it sees, what it did and why, and replaces or
releases Machines the way that it expects.`,
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				return usage("unknown command %q; did you mean %s? See kubectl holdfast --help", args[0], strings.Join(like, " or "))
			}
			return usage("unknown command %q; see kubectl holdfast --help", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(checkCommand(t), statusCommand(t), explainCommand(t), simulateCommand(t), replaceCommand(t), releaseCommand(t), auditCommand(t), reportCommand(t), offCommand(t), uninstallCommand(t), versionCommand())
	helpFlags(root)
	root.SetArgs(args)
	root.SetOut(t.out)
	root.SetErr(t.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(t.err, "kubectl holdfast: %v\n", err)
	switch {
	case errors.As(err, new(usageError)):
		return 2
	case ctx.Err() != nil:
		return 130
	}
	return 1
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  kubectl holdfast version`,
		Args:    exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// exactly wants that many arguments; what says which.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == n:
			return nil
		case n == 0:
			return usage("%s takes no arguments, but was given %q", cmd.CommandPath(), args)
		}
		if len(args) == 0 {
			return usage("%s takes %s, and was given none", cmd.CommandPath(), what)
		}
		return usage("%s takes %s, but was given %q", cmd.CommandPath(), what, args)
	}
}

// oneMachine wants one Machine, by its name or, as kubectl does, by its type and name; it leaves the name.
func oneMachine(cmd *cobra.Command, args []string) error {
	if err := exactly(1, "the name of a Machine")(cmd, args); err != nil {
		return err
	}
	kind, name, typed := strings.Cut(args[0], "/")
	if !typed {
		return nil
	}
	if machines := machinev1beta1.GroupName; name == "" || !slices.Contains([]string{"machine", "machines", "machine." + machines, "machines." + machines}, strings.ToLower(kind)) {
		return usage("%q is no Machine; give its name, or machine/NAME", args[0])
	}
	args[0] = name
	return nil
}

// version is what the Go toolchain stamped into the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "kubectl-holdfast (unknown build)"
	}
	return fmt.Sprintf("kubectl-holdfast %s %s", info.Main.Version, info.GoVersion)
}
