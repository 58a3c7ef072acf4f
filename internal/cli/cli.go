// Package cli is what the command lines of holdfast and of its kubectl plugin have in common.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// UsageError is what the person who typed the command can mend.
type UsageError struct{ error }

// Unwrap is errors.Unwrap's.
func (u UsageError) Unwrap() error { return u.error }

// Usage makes a UsageError.
func Usage(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Execute runs a command line. It returns the exit status, and for all but 0 what went wrong: 1 for a failure, 2 for a bad command line.
func Execute(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) (status int, err error) {
	root.SilenceUsage, root.SilenceErrors = true, true
	runs := false // what goes wrong before a command runs is in the command line
	root.PersistentPreRun = func(*cobra.Command, []string) { runs = true }
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return 0, nil
	case !runs, errors.As(err, new(UsageError)):
		return 2, err
	default:
		return 1, err
	}
}

// NoArgs is for a command without arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage("%s takes no arguments, but was given %q; see %[1]s --help", cmd.CommandPath(), args)
	}
	return nil
}

// Readable wants a flag's file to be there and open.
func Readable(flag, path string) error {
	if path == "" {
		return Usage("--%s is missing", flag)
	}
	f, err := os.Open(path)
	if err != nil {
		return Usage("--%s: %w", flag, err)
	}
	return f.Close()
}

// VersionCommand prints the version. It is a command of root, as people type that.
func VersionCommand(root string) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  " + root + " version",
		Args:    NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), Build(cmd.Root().Name()))
			return err
		},
	}
}

// Version is the version that the Go toolchain stamped into the binary, "" if it did not.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}

// Build is a binary's name with all that the Go toolchain stamped into it: version, commit, and Go's own version.
func Build(name string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return name + " (unknown build)"
	}
	name += " " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			name += " " + s.Value
		}
	}
	return name + " " + info.GoVersion
}
