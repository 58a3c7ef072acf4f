// Command holdfast guards the Machines of an etcd ring. This file and its neighbours hold flags and
// wiring only. internal/admission decides about requests, internal/membership about the next step.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
)

// usageError is what the person who typed the command can mend: exit status 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// wrong is usage where a condition holds, else nil. cmp.Or finds the first of several: one clear sentence, not a list.
func wrong(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return usage(format, args...)
}

func main() {
	// The signal that Linux sends a process when its starter dies belongs to a thread. A command that takes the place of this process
	// (verify membership) keeps it only if the first thread executes it.
	runtime.LockOSThread()
	os.Exit(execute(ctrl.SetupSignalHandler(), os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs the command line and returns the exit status: 0, 1 for a failure, 2 for a bad command line.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "A deletion guard for the control-plane Machines that etcd runs on",
		Long: `Holdfast keeps a control-plane Machine from taking etcd's quorum with it.

Admission webhooks check every change and delete of a control-plane Machine, so that etcd's preDrain
hook (EtcdQuorumOperator) is neither lost nor regained wrongly. In full mode a reconciler also moves
etcd's membership from a deleted Machine to its replacement, and only then lets the old one go.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknown("command"),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v; see %s --help", err, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), manifestsCommand(), verifyCommand(), snapshotCommand(), hostFilesCommand(), copyBinaryCommand(), versionCommand(), pauseCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "holdfast: %v\n", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// version is what the Go toolchain stamped into the binary.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "holdfast (unknown build)"
	}
	out := "holdfast " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			out += " " + s.Value
		}
	}
	return out + " " + info.GoVersion
}

func noArgs(cmd *cobra.Command, args []string) error {
	return wrong(len(args) > 0, "%s takes no arguments, but was given %q; see %[1]s --help", cmd.CommandPath(), args)
}

// unknown refuses what is none of a command's own commands; what is what these are called.
func unknown(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return usage("unknown %s %q; see %s --help", what, args[0], cmd.CommandPath())
	}
}
