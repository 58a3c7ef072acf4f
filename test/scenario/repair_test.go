package scenario_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestRepair removes members from etcd by hand, each in another state, and leaves their Machines alone. Each host gets a new member, with
// the old one's data put aside. The history sees that no Machine loses its hook meanwhile.
func TestRepair(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 2)
	c.atRest(t)

	for _, one := range []struct {
		name, machine string
		before, after func(t *testing.T, host sandbox.Host)
	}{
		{"it runs", "master-0", nil, nil},
		{"its host is off", "master-1", func(t *testing.T, host sandbox.Host) {
			c.off(t, host.Name)
			c.comesToSay(t, []string{"2 of 3 voters healthy"}, "status")
		}, func(t *testing.T, host sandbox.Host) {
			must(t, c.Power(host.Name, true))
		}},
		{"it hangs", "master-2", func(t *testing.T, host sandbox.Host) { // and with it the API server, until that gives up on it
			must(t, host.Etcd.Signal(syscall.SIGSTOP))
			t.Cleanup(func() { _ = host.Etcd.Signal(syscall.SIGCONT) })
			eventually(t, quickly, "another leader", func(context.Context) error {
				if c.leader(t) == host.Name {
					return errors.New("it leads")
				}
				return nil
			})
		}, func(t *testing.T, host sandbox.Host) {
			must(t, host.Etcd.Signal(syscall.SIGCONT))
		}},
		{"its log is damaged", "master-0", func(t *testing.T, host sandbox.Host) {
			c.off(t, host.Name)
			c.damage(t, filepath.Join(host.DataDir, "member", "wal", "*.wal"))
			must(t, c.Power(host.Name, true))
			c.comesToSay(t, []string{"2 of 3 voters healthy"}, "status")
		}, nil},
		{"its database is damaged", "master-1", func(t *testing.T, host sandbox.Host) {
			c.off(t, host.Name)
			c.damage(t, filepath.Join(host.DataDir, "member", "snap", "db"))
			must(t, c.Power(host.Name, true))
			c.comesToSay(t, []string{"2 of 3 voters healthy"}, "status")
		}, nil},
	} {
		t.Run(one.name, func(t *testing.T) {
			host, ok := c.Host(one.machine)
			if !ok || host.Etcd == nil {
				t.Fatalf("no etcd on %s", one.machine)
			}
			old := c.memberID(t, one.machine)
			aside := c.putAside(t, host)
			if one.before != nil {
				one.before(t, host)
			}
			scripts := c.scripts(t, "incidents.md", "A member's data are damaged")
			// A person tries again where etcd refuses for 5 s, right after one has joined ("unhealthy cluster"), and where the answer is
			// lost because leadership moved. "member not found" then says that the first try removed it.
			eventually(t, quickly, "etcd to remove the member", func(context.Context) error {
				out, err := c.shell(t, "member="+old+"\n"+scripts[1])
				if err != nil && !strings.Contains(out, "member not found") {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			})
			if one.after != nil {
				one.after(t, host)
			}
			eventually(t, slowly, "a new member on "+one.machine, func(ctx context.Context) error {
				role, err := c.role(ctx, one.machine)
				if err == nil && role != "voter" {
					err = fmt.Errorf("it is %q", role)
				}
				return err
			})
			if now := c.memberID(t, one.machine); now == old {
				t.Errorf("the member on %s is the old one, %s", one.machine, old)
			}
			c.recovers(t)
			if now := c.putAside(t, host); now != aside+1 {
				t.Errorf("data of %d members are put aside on %s, and were of %d", now, one.machine, aside)
			}
			c.sameData(t)
		})
	}
}

// off cuts a host's power, and waits until its etcd is gone.
func (c *cluster) off(t *testing.T, name string) {
	t.Helper()
	must(t, c.Power(name, false))
	eventually(t, quickly, "no etcd on "+name, func(context.Context) error {
		if host, _ := c.Host(name); host.Etcd != nil {
			return errors.New("it runs")
		}
		return nil
	})
}

// damage overwrites the files of a pattern.
func (c *cluster) damage(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		must(t, err)
		must(t, os.WriteFile(file, bytes.Repeat([]byte{0xa5}, int(min(info.Size(), 1<<20))), 0o600))
	}
}

// putAside counts the data directories that were put aside on a host.
func (c *cluster) putAside(t *testing.T, host sandbox.Host) int {
	t.Helper()
	aside, err := filepath.Glob(host.DataDir + "-removed-*")
	must(t, err)
	return len(aside)
}

// memberID is the ID of the member of that name, as etcdctl writes it.
func (c *cluster) memberID(t *testing.T, name string) (id string) {
	t.Helper()
	eventually(t, quickly, "the member of "+name, func(ctx context.Context) error {
		list, err := c.members(ctx)
		if err != nil {
			return err
		}
		for _, m := range list {
			if m.GetName() == name {
				id = fmt.Sprintf("%x", m.GetID())
				return nil
			}
		}
		return errors.New("etcd lists none")
	})
	return id
}
