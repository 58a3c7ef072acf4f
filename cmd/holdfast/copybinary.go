package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
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
			to := filepath.Join(args[0], "holdfast")
			if err := copyFile(own, to); err != nil {
				return fmt.Errorf("copying this binary: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is there.\n", to)
			return nil
		},
	}
}

// copyFile makes a file that can be executed. It replaces one that is there at once, and leaves the same one alone.
func copyFile(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	is, err := source.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(to); err == nil && os.SameFile(is, there) {
		return nil
	}
	made, err := os.CreateTemp(filepath.Dir(to), ".holdfast-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(made.Name()))
		}
	}()
	_, err = io.Copy(made, source)
	if err = errors.Join(err, made.Chmod(0o755), made.Close()); err != nil {
		return err
	}
	return os.Rename(made.Name(), to)
}
