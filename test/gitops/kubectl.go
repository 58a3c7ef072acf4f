package gitops

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Kubectl runs a command of kubectl, with its flags, on a manifest. Its error holds what kubectl
// printed, and wraps an *exec.ExitError with its exit code.
func (c *Cluster) Kubectl(identity string, command ...string) func(context.Context, *unstructured.Unstructured) error {
	return func(ctx context.Context, m *unstructured.Unstructured) error {
		text, err := m.MarshalJSON()
		if err != nil {
			return fmt.Errorf("manifest of Machine %s: %w", m.GetName(), err)
		}
		file := filepath.Join(c.files, "manifest.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
		args := append([]string{"--kubeconfig=" + c.Kubeconfig(identity), "--cache-dir=" + filepath.Join(c.files, "cache")}, command...)
		output := &bytes.Buffer{}
		run := exec.CommandContext(ctx, c.Binary("kubectl"), append(args, "--filename="+file)...)
		run.Stdout, run.Stderr = output, output
		if err := run.Run(); err != nil {
			return fmt.Errorf("kubectl %s: %w\n%s", command[0], err, output)
		}
		return nil
	}
}

// KubectlDiff is kubectl's own comparison: it answers with its exit code.
func (c *Cluster) KubectlDiff(identity string, flags ...string) func(context.Context, *unstructured.Unstructured) (bool, error) {
	diff := c.Kubectl(identity, append([]string{"diff"}, flags...)...)
	return func(ctx context.Context, m *unstructured.Unstructured) (bool, error) {
		err := diff(ctx, m)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
			return true, nil
		}
		return false, err
	}
}
