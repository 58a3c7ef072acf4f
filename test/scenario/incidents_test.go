package scenario_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/install"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestIncidents does what docs/incidents.md says, as a person would type it.
func TestIncidents(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--member-dead-timeout=3s"}})
	c.watch(t, 2)
	c.atRest(t)

	t.Run("etcd has no quorum", func(t *testing.T) {
		must(t, c.Power("master-1", false))
		must(t, c.Power("master-2", false))
		eventually(t, slowly, "the plugin to name the page", func(context.Context) error {
			status, out, errs := c.plugin(t, false, "status")
			if status != 1 || !strings.Contains(errs, "incidents.md#etcd-has-no-quorum") {
				return fmt.Errorf("status %d: %s%s", status, out, errs)
			}
			return nil
		})
		out, err := c.shell(t, "etcdctl endpoint status -w table || true; etcdctl member list --consistency=s -w table")
		if err != nil || strings.Count(out, "started") != 3 {
			t.Errorf("%v\n%s", err, out)
		}
		must(t, c.Power("master-1", true))
		must(t, c.Power("master-2", true))
		c.atRest(t)
	})

	t.Run("a member is dead", func(t *testing.T) {
		must(t, c.Power("master-2", false))
		c.comesToSay(t, []string{"2 of 3 voters healthy", "unhealthy"}, "status")
		out, err := c.documented(t, "incidents.md", "A member is dead")
		if err != nil || !strings.Contains(out, "has replaced it, and its etcd member votes") {
			t.Fatalf("%v\n%s", err, out)
		}
		c.gone(t, quickly, "master-2")
		c.atRest(t)
	})

	t.Run("a GitOps tool fights over the hook", func(t *testing.T) {
		must(t, c.strip(t.Context(), sandbox.GitOps, "master-0"))
		log := c.AuditLogs()[0]
		out := c.says(t, 0, nil, "audit", "--verdict", "repaired", log)
		if !strings.Contains(out, string(sandbox.GitOps)) {
			t.Errorf("the tool is not named:\n%s", out)
		}
	})
}

// documented does what a page of docs says under a heading, by a person.
func (c *cluster) documented(t *testing.T, page, heading string) (string, error) {
	t.Helper()
	return c.shell(t, strings.Join(c.scripts(t, page, heading), "\n"))
}

// scripts are those that a page of docs has under a heading.
func (c *cluster) scripts(t *testing.T, page, heading string) []string {
	t.Helper()
	scripts, err := install.Documented(page, heading)
	must(t, err)
	return scripts
}

// shell runs a script of a person who has kubectl, the plugin, etcd's tools and a client certificate of etcd.
func (c *cluster) shell(t *testing.T, script string) (string, error) {
	t.Helper()
	kubectl, err := assets.Path("kubectl")
	must(t, err)
	plugin, err := assets.Path("kubectl-holdfast")
	must(t, err)
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(sandbox.Alice), "PATH="+filepath.Dir(kubectl)+":"+filepath.Dir(plugin)+":"+os.Getenv("PATH"),
		"ETCDCTL_ENDPOINTS="+strings.Join(c.VoterEndpoints(), ","), "ETCDCTL_CACERT="+c.EtcdFiles.CA, "ETCDCTL_CERT="+c.EtcdFiles.Cert, "ETCDCTL_KEY="+c.EtcdFiles.Key)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
