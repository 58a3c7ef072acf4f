package scenario_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// plugin runs kubectl holdfast as alice. With etcd it is told how to reach etcd, as etcdctl is.
func (c *cluster) plugin(t *testing.T, etcd bool, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	path, err := assets.Path("kubectl-holdfast")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*slowly) // a command may replace three Machines
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

// says runs the plugin as somebody who has kubectl alone, and wants an exit status and words.
func (c *cluster) says(t *testing.T, status int, words []string, args ...string) string {
	t.Helper()
	got, out, errs := c.plugin(t, false, args...)
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

// comesToSay runs the plugin until it says all the words.
func (c *cluster) comesToSay(t *testing.T, words []string, args ...string) {
	t.Helper()
	eventually(t, slowly, "kubectl holdfast "+strings.Join(args, " "), func(context.Context) error {
		_, out, errs := c.plugin(t, false, args...)
		for _, word := range words {
			if !strings.Contains(out+errs, word) {
				return fmt.Errorf("it does not say %q: %s%s", word, out, errs)
			}
		}
		return nil
	})
}

// ring is the ConfigMap in which Holdfast tells the ring.
func (c *cluster) ring(ctx context.Context) (*corev1.ConfigMap, error) {
	var cm corev1.ConfigMap
	err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: "holdfast-system", Name: snapshotfile.RingName}, &cm)
	return &cm, err
}

// seenRow matches the row of a Machine in status.
func seenRow(out, machine string, words ...string) error {
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, machine+" ") {
			continue
		}
		for _, word := range words {
			if !strings.Contains(line, word) {
				return fmt.Errorf("the row of Machine %s has no %q: %s", machine, word, line)
			}
		}
		return nil
	}
	return fmt.Errorf("there is no row of Machine %s: %s", machine, out)
}

// TestPlugin is a resize and an escape by kubectl holdfast alone.
func TestPlugin(t *testing.T) {
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--member-dead-timeout=3s", "--max-learner-lag=400"}})
	c.atRest(t)

	t.Run("status", func(t *testing.T) {
		c.comesToSay(t, []string{"3 of 3 voters healthy, 3 wanted", "quorum is 2, so 1 more may fail", "as Holdfast saw it", "Mode: full", "master-2", "leader", "Nothing to do."}, "status")
		if status, out, errs := c.plugin(t, true, "status"); status != 0 || !strings.Contains(out, "3 of 3 voters healthy, 3 wanted") || strings.Contains(out, "as Holdfast saw it") {
			t.Errorf("with etcd: status %d, %s", status, errs)
		}
		// What it writes, simulate reads, without the cluster, and Holdfast's own flags are in it.
		file := filepath.Join(t.TempDir(), "snapshot.yaml")
		written := c.says(t, 0, []string{"deadAfter: 3s", "maxLag: 400"}, "status", "-o", "yaml")
		must(t, os.WriteFile(file, []byte(written), 0o600))
		c.says(t, 0, []string{"Available=True", "master-0: allowed, and Holdfast would say:", "(held)"}, "simulate", "-f", file)
	})

	t.Run("check", func(t *testing.T) {
		c.says(t, 0, []string{"it would be held", "The guard is in force."}, "check", "--wait")
		must(t, c.Holdfast.Stop())
		c.says(t, 1, []string{"WRONG reached", "the guard is not in force"}, "check")
		must(t, c.Holdfast.Start())
		c.says(t, 0, []string{"The guard is in force."}, "check", "--wait")
	})

	t.Run("explain", func(t *testing.T) {
		c.says(t, 0, []string{"is live and protected", "It hosts etcd", "Etcd is as Holdfast saw it", "If you (alice) deleted it now, it would be allowed", "kubectl holdfast replace master-0"}, "explain", "master-0")
		c.says(t, 1, []string{"no control-plane Machine master-9", "master-0, master-1, master-2"}, "explain", "master-9")
	})

	t.Run("replace", func(t *testing.T) {
		c.says(t, 0, []string{"name: bigger", "instanceType: m5.2xlarge"}, "replace", "master-0", "--instance-type=m5.2xlarge", "--name=bigger", "--dry-run")
		if m, err := c.machine(t.Context(), "bigger"); err != nil || m != nil {
			t.Fatalf("a dry run made %v, %v", m, err)
		}
		// It is interrupted before it can be done, and goes on where it was. How long it takes to create the Machine depends on the computer.
		for _, limit := range []string{"1500ms", "4s", "12s"} {
			status, out, errs := c.plugin(t, false, "replace", "master-0", "--instance-type=m5.2xlarge", "--name=bigger", "--yes", "--timeout="+limit)
			m, err := c.machine(t.Context(), "bigger")
			must(t, err)
			if status != 1 || m != nil && !strings.Contains(out+errs, "the same command goes on") {
				t.Errorf("interrupted, it ends with %d, and Machine bigger is there: %t", status, m != nil)
			}
			if m != nil {
				break
			}
		}
		c.says(t, 0, []string{"Machine bigger is there already", "Machine bigger has replaced it, and its etcd member votes"}, "replace", "master-0", "--instance-type=m5.2xlarge", "--name=bigger", "--yes")
		m, err := c.machine(t.Context(), "bigger")
		must(t, err)
		if m == nil || !strings.Contains(string(m.Spec.ProviderSpec.Value.Raw), `"m5.2xlarge"`) {
			t.Errorf("the replacement is %+v", m)
		}
		c.atRest(t)
	})

	t.Run("during", func(t *testing.T) {
		must(t, c.remove(t.Context(), "master-2"))
		c.comesToSay(t, []string{"as Holdfast saw it", "ReplacementWaits"}, "status")
		eventually(t, quickly, "status shows the Machine that is deleted", func(context.Context) error {
			_, out, _ := c.plugin(t, false, "status")
			return seenRow(out, "master-2", "Deleting", "healthy", "on     on", "a new Machine's Node")
		})
		c.comesToSay(t, []string{"and held", "Etcd is as Holdfast saw it", "It waits for: a new Machine's Node", "If you (alice) released it now, it would be allowed", "2 without this Machine"}, "explain", "master-2")
		// Another voter's Machine has to wait.
		c.says(t, 0, []string{"refused (one-too-many)", "master-2"}, "explain", "master-1")
		must(t, c.replacement(t.Context(), "master-2", "fresh"))
		eventually(t, slowly, "status shows the replacement's member", func(context.Context) error {
			_, out, _ := c.plugin(t, false, "status")
			return seenRow(out, "fresh", "Running", "fresh", "healthy", "on     on")
		})
		c.gone(t, slowly, "master-2")
		c.atRest(t)
		c.comesToSay(t, []string{"3 of 3 voters healthy, 3 wanted", "fresh", "Nothing to do."}, "status")
	})

	t.Run("release", func(t *testing.T) {
		c.says(t, 1, []string{"is live", "delete it first: kubectl -n openshift-machine-api delete machine.machine.openshift.io master-1"}, "release", "master-1", "--reason=test", "--confirm=master-1")
		must(t, c.remove(t.Context(), "master-1"))
		c.says(t, 2, []string{"--confirm master-1"}, "release", "master-1", "--reason=test")
		c.comesToSay(t, []string{"Healthy voters: 3 of 3 now, 2 without this Machine", "nothing was changed"}, "release", "master-1", "--reason=test", "--dry-run")
		if m, err := c.seen(t.Context(), "master-1"); err != nil || !m.Protected() {
			t.Fatalf("after a trial it is %+v, %v", m, err)
		}
		said := c.says(t, 0, []string{"escape-hatch", "The hook of Machine master-1 is off for good"}, "release", "master-1", "--reason=the host burnt down", "--confirm=master-1")
		if strings.Contains(said, "Holdfast itself did not answer") {
			t.Errorf("Holdfast answered: %s", said)
		}
		c.gone(t, slowly, "master-1")
		c.tells(t, "master-1", "EscapeHatchUsed")
		c.says(t, 0, []string{"escape-hatch", "alice", `"the host burnt down"`}, "audit", c.AuditLogs()[0], "--rule=escape-hatch")
		c.says(t, 1, []string{"there is no pod of Holdfast", "--holdfast-namespace"}, "audit")
		c.comesToSay(t, []string{"REPLACED BY", "LearnerPromoted", "MemberRemoved", "escape-hatch", "Machine master-1 is gone.", "machine-drain-controller"}, "report", "--events", c.AuditLogs()[0])
		c.says(t, 0, []string{"<!doctype html>", "fresh", "LearnerPromoted"}, "report", "-o=html", "--machine=master-2,fresh", c.AuditLogs()[0])
	})

	t.Run("Holdfast is away", func(t *testing.T) {
		must(t, c.Holdfast.Stop())
		eventually(t, quickly, "a reading of a minute ago", func(ctx context.Context) error {
			cm, err := c.ring(ctx)
			if err != nil {
				return err
			}
			told, err := snapshotfile.ParseRing(cm.Data)
			if err != nil {
				return err
			}
			told.Snapshot.Now = told.Snapshot.Now.Add(-2 * time.Minute)
			if cm.Data, err = snapshotfile.RingData(told.Snapshot, told.By, cm.Data); err != nil {
				return err
			}
			return c.as(sandbox.Holdfast).Update(ctx, cm) // nobody else may
		})
		c.says(t, 0, []string{"Etcd: not known: Holdfast's last report", " old", "Is Holdfast running? kubectl -n holdfast-system get pods", "--endpoints"}, "status")
		cm, err := c.ring(t.Context())
		must(t, err)
		cm.Data = map[string]string{"snapshot.yaml": "}{"}
		must(t, c.as(sandbox.Holdfast).Update(t.Context(), cm))
		c.says(t, 0, []string{"Etcd: not known", "cannot be understood"}, "status")
		must(t, c.as(sandbox.Admin).Delete(t.Context(), cm))
		c.says(t, 0, []string{"Etcd: not known: ConfigMap holdfast-system/holdfast-ring does not exist"}, "status")
		must(t, c.Holdfast.Start())
		c.comesToSay(t, []string{"as Holdfast saw it"}, "status")
	})
}
