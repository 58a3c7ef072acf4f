package scenario_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// plugin runs kubectl holdfast as alice. With etcd it is told how to reach etcd, as etcdctl is.
func (c *cluster) plugin(t *testing.T, etcd bool, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	path, err := assets.Path("kubectl-holdfast")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(sandbox.Alice), "ETCDCTL_ENDPOINTS=", "ETCDCTL_CACERT=", "ETCDCTL_CERT=", "ETCDCTL_KEY=")
	if etcd {
		cmd.Env = append(cmd.Env, "ETCDCTL_ENDPOINTS="+strings.Join(c.VoterEndpoints(), ","),
			"ETCDCTL_CACERT="+c.EtcdFiles.CA, "ETCDCTL_CERT="+c.EtcdFiles.Cert, "ETCDCTL_KEY="+c.EtcdFiles.Key)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	t.Logf("$ kubectl holdfast %s\n%s%s", strings.Join(args, " "), out.String(), errs.String())
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// says runs the plugin and wants an exit status and words.
func (c *cluster) says(t *testing.T, status int, words []string, args ...string) string {
	t.Helper()
	got, out, errs := c.plugin(t, true, args...)
	if got != status {
		t.Errorf("kubectl holdfast %s exits %d, not %d", strings.Join(args, " "), got, status)
	}
	for _, word := range words {
		if !strings.Contains(out+errs, word) {
			t.Errorf("kubectl holdfast %s does not say %q", strings.Join(args, " "), word)
		}
	}
	return out
}

// TestPlugin is a resize and an escape by kubectl holdfast alone.
func TestPlugin(t *testing.T) {
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--member-dead-timeout=3s"}})
	c.atRest(t)

	t.Run("status", func(t *testing.T) {
		c.says(t, 0, []string{"3 of 3 voters healthy, 3 wanted", "Mode: full", "master-2", "leader", "Nothing is to be done."}, "status")
		status, out, errs := c.plugin(t, false, "status")
		if status != 0 || !strings.Contains(out, "Etcd: not asked") || !strings.Contains(out, "--endpoints") || !strings.Contains(out, "master-1") {
			t.Errorf("without etcd: status %d, %s", status, errs)
		}
		// What it writes, simulate reads, without the cluster.
		file := filepath.Join(t.TempDir(), "snapshot.yaml")
		must(t, os.WriteFile(file, []byte(c.says(t, 0, nil, "status", "-o", "yaml")), 0o600))
		c.says(t, 0, []string{"Available=True", "master-0: allowed, and Holdfast would say:", "(held)"}, "simulate", "-f", file)
	})

	t.Run("explain", func(t *testing.T) {
		c.says(t, 0, []string{"is live and protected", "It hosts etcd", "If you (alice) deleted it now, it would be allowed", "kubectl holdfast replace master-0"}, "explain", "master-0")
		c.says(t, 1, []string{"no control-plane Machine master-9", "master-0, master-1, master-2"}, "explain", "master-9")
	})

	t.Run("replace", func(t *testing.T) {
		c.says(t, 0, []string{"name: bigger", "instanceType: m5.2xlarge"}, "replace", "master-0", "--instance-type=m5.2xlarge", "--name=bigger", "--dry-run")
		if m, err := c.machine(t.Context(), "bigger"); err != nil || m != nil {
			t.Fatalf("a dry run made %v, %v", m, err)
		}
		// It is interrupted before it can be done, and goes on where it was.
		c.says(t, 1, []string{"Machine bigger is created", "the same command goes on"}, "replace", "master-0", "--instance-type=m5.2xlarge", "--name=bigger", "--timeout=1500ms")
		c.says(t, 0, []string{"Machine bigger is there already", "Machine bigger has replaced it"}, "replace", "master-0", "--instance-type=m5.2xlarge", "--name=bigger")
		c.gone(t, quickly, "master-0")
		c.becomes(t, "bigger", "voter")
		m, err := c.machine(t.Context(), "bigger")
		must(t, err)
		if m == nil || !strings.Contains(string(m.Spec.ProviderSpec.Value.Raw), `"m5.2xlarge"`) {
			t.Errorf("the replacement is %+v", m)
		}
		c.atRest(t)
	})

	t.Run("release", func(t *testing.T) {
		c.says(t, 1, []string{"is live", "delete it first: kubectl -n openshift-machine-api delete machine master-1"}, "release", "master-1", "--reason=test", "--confirm=master-1")
		must(t, c.remove(t.Context(), "master-1"))
		c.says(t, 2, []string{"--confirm master-1"}, "release", "master-1", "--reason=test")
		c.says(t, 0, []string{"Healthy voters: 3 of 3 now, 2 without this Machine", "nothing was changed"}, "release", "master-1", "--reason=test", "--dry-run")
		if m, err := c.seen(t.Context(), "master-1"); err != nil || !m.Protected() {
			t.Fatalf("after a trial it is %+v, %v", m, err)
		}
		c.says(t, 0, []string{"escape-hatch", "Machine master-1 is released"}, "release", "master-1", "--reason=the host burnt down", "--confirm=master-1")
		c.gone(t, slowly, "master-1")
		c.tells(t, "master-1", "EscapeHatchUsed")
	})
}
