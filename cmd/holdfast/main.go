// Command holdfast guards the Machines of an etcd ring. This file and its neighbours hold flags and
// wiring only. internal/admission decides about requests, internal/membership about the next step.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

// wrong is cli.Usage where a condition holds, else nil. cmp.Or finds the first of several: one clear sentence, not a list.
func wrong(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return cli.Usage(format, args...)
}

func main() {
	// The signal that Linux sends a process when its starter dies belongs to a thread. A command that takes the place of this process
	// (verify membership) keeps it only if the first thread executes it.
	runtime.LockOSThread()
	os.Exit(execute(ctrl.SetupSignalHandler(), os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs the command line and returns the exit status.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "A deletion guard for the control-plane Machines that etcd runs on",
		Long: `Holdfast keeps a control-plane Machine from taking etcd's quorum with it.

Admission webhooks check every change and delete of a control-plane Machine, so that etcd's preDrain
hook (EtcdQuorumOperator) is neither lost nor regained wrongly. In full mode a reconciler also moves
etcd's membership from a deleted Machine to its replacement, and only then lets the old one go.`,
		Args: unknown("command"),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), manifestsCommand(), verifyCommand(), snapshotCommand(), hostFilesCommand(), copyBinaryCommand(), cli.VersionCommand("holdfast"), pauseCommand())
	status, err := cli.Execute(ctx, root, args, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "holdfast: %v\n", err)
	}
	return status
}

// unknown refuses what is none of a command's own commands; what is what these are called.
func unknown(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return cli.Usage("unknown %s %q; see %s --help", what, args[0], cmd.CommandPath())
	}
}
