//go:build compat

package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// TestEtcdUpgrade upgrades etcd member by member through the versions in HOLDFAST_ETCDS, a list of binaries with the oldest first, each
// time in the middle of a replacement. make compat runs it.
func TestEtcdUpgrade(t *testing.T) {
	etcds := filepath.SplitList(os.Getenv("HOLDFAST_ETCDS"))
	if len(etcds) < 2 {
		t.Fatal("HOLDFAST_ETCDS has to list two versions of etcd or more")
	}
	// etcd 3.7 cannot read what 3.5 wrote into the log: it has to be behind a snapshot by then, as after 10,000 writes it is.
	const snapshot = 50
	c := start(t, sandbox.Options{Replicas: 3, Etcd: etcds[0], EtcdArgs: []string{fmt.Sprintf("--snapshot-count=%d", snapshot)}})
	c.watch(t, 3)
	c.atRest(t)
	names := []string{"master-0", "master-1", "master-2"}
	for i, etcd := range etcds[1:] {
		c.SetEtcd(etcd)
		old, next := names[0], fmt.Sprintf("next-%d", i)
		names = append(names[1:], next)
		c.restart(t, names[0])
		must(t, c.remove(t.Context(), old))
		must(t, c.replacement(t.Context(), old, next))
		c.becomes(t, next, "voter")
		c.restart(t, names[1])
		c.gone(t, slowly, old)
		c.recovers(t)
		version, err := assets.Version(etcd)
		must(t, err)
		var since uint64
		eventually(t, quickly, "etcd "+version+" everywhere, and a snapshot of it", func(ctx context.Context) error {
			members, err := c.members(ctx)
			for _, m := range members {
				status, wrong := c.etcd.Status(ctx, m.GetClientURLs()[0])
				switch {
				case wrong != nil:
				case status.Version != version:
					wrong = fmt.Errorf("%s runs %s", m.GetName(), status.Version)
				case since == 0:
					since = status.RaftIndex
					fallthrough
				case status.RaftAppliedIndex < since+2*snapshot:
					wrong = fmt.Errorf("%s is at index %d, which was %d", m.GetName(), status.RaftAppliedIndex, since)
				}
				err = errors.Join(err, wrong)
			}
			return err
		})
	}
}

// restart has a host start again, and waits until its etcd is one of three that answer.
func (c *cluster) restart(t *testing.T, name string) {
	t.Helper()
	c.off(t, name)
	must(t, c.Power(name, true))
	eventually(t, slowly, "etcd on "+name, func(ctx context.Context) error {
		host, _ := c.Host(name)
		_, err := c.etcd.Status(ctx, host.ClientURL)
		return err
	})
	c.nodeReady(t, name)
}
