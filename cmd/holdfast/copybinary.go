package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/hostfiles"
)

func copyBinaryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "copy-binary DIRECTORY",
		Short: "Copy this binary into a directory, for a container of another image",
		Long: `Copy this binary into a directory, as "holdfast". An init container of etcd's static pod does so, for the container of
etcd, whose image has no holdfast: it runs "holdfast verify membership" each time before etcd starts.`,
		Example: `  holdfast copy-binary /opt/holdfast`,
		Args: func(cmd *cobra.Command, args []string) error {
			return wrong(len(args) != 1, "%s takes one directory, and was given %q; see %[1]s --help", cmd.CommandPath(), args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			own, err := os.Executable()
			if err != nil {
				return err
			}
			source, err := os.Open(own)
			if err != nil {
				return err
			}
			defer func() { _ = source.Close() }()
			to := filepath.Join(args[0], "holdfast")
			if err := hostfiles.Replace(to, 0o755, source); err != nil {
				return fmt.Errorf("copying this binary: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is there.\n", to)
			return nil
		},
	}
}
