package scenario_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
	"github.com/holdfast-dev/holdfast/test/writer"
)

// TestRestore restores etcd from a snapshot on one host, as docs/operations.md says. Holdfast follows the new cluster without a
// restart, and the other hosts' members join it anew.
func TestRestore(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.atRest(t)
	must(t, c.remove(t.Context(), "master-1")) // as of the snapshot it is being deleted, and held
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	before, err := c.members(t.Context())
	must(t, err)
	c.save(t, snapshot)
	later := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: "later-than-the-snapshot"}}
	must(t, c.as(sandbox.Admin).Create(t.Context(), later))
	holdfast := c.Holdfast.Process()

	c.restore(t, "master-0", snapshot)
	must(t, c.Power("master-1", true)) // without data it waits
	c.logs(t, "etcd was restored: following another cluster")
	c.published(t)
	must(t, c.SetEnvironment("master-0", ""))
	c.comesToSay(t, []string{"as after a restore"}, "explain", "master-1")

	if m, err := c.seen(t.Context(), "master-1"); err != nil || !m.Protected() {
		t.Errorf("Machine master-1, deleted before the snapshot, is let go with one voter of three: %v", err)
	}

	// Somebody forgot to move this one's data aside.
	late, _ := c.Host("master-2")
	must(t, os.Rename(late.DataDir+"-before-restore", late.DataDir))
	must(t, c.Power("master-2", true))
	c.becomes(t, "master-2", "voter")
	c.gone(t, slowly, "master-1") // its member alone is missing now, as if somebody had removed it
	must(t, c.replacement(t.Context(), "master-2", "next"))
	c.atRest(t)

	if c.Holdfast.Process() != holdfast {
		t.Error("Holdfast was started again")
	}
	after, err := c.members(t.Context())
	must(t, err)
	for _, old := range before {
		for _, m := range after {
			if m.GetID() == old.GetID() {
				t.Errorf("member %s has the ID %x that it had before", m.GetName(), m.GetID())
			}
		}
	}
	if err := c.as(sandbox.Admin).Get(t.Context(), client.ObjectKeyFromObject(later), later); !apierrors.IsNotFound(err) {
		t.Errorf("what was made after the snapshot: %v", err)
	}
	c.sameData(t)
	if n := c.putAside(t, late); n != 1 {
		t.Errorf("%s: data of %d members were put aside", late.Name, n)
	}
	c.recovers(t)
}

// TestRestoreBesideOperator: in guard mode Holdfast follows the restored etcd too, says how many voters it lacks, and lets go of none.
func TestRestoreBesideOperator(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, Mode: "guard"})
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		must(t, c.hook(t.Context(), name))
	}
	c.atRest(t)
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	c.save(t, snapshot)
	c.restore(t, "master-0", snapshot)
	c.comesToSay(t, []string{"1 of 1 voters healthy", "EtcdVotersMissing"}, "status")
	must(t, c.remove(t.Context(), "master-0"))
	c.comesToSay(t, []string{"held"}, "explain", "master-0")
	if m, err := c.seen(t.Context(), "master-0"); err != nil || !m.Protected() {
		t.Errorf("the only voter's Machine is not protected: %v", err)
	}
}

// TestSurvivor loses two of three hosts for good, under writes, and the third comes back at another address. What its log holds is restored
// there by "holdfast snapshot", with every acknowledged write, and Machines in the place of the lost ones make it three again.
func TestSurvivor(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.atRest(t)
	before, err := c.etcd.MemberList(t.Context())
	must(t, err)
	c.off(t, "master-2") // so a quorum has the survivor in it
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	writes := writer.New(c.etcd)
	var writing sync.WaitGroup
	writing.Go(func() { writes.Run(ctx) })
	eventually(t, quickly, "writes", func(context.Context) error {
		if n := writes.Stats().Acked; n < 20 {
			return fmt.Errorf("%d are acknowledged", n)
		}
		return nil
	})
	must(t, c.Power("master-0", false))
	c.off(t, "master-1")
	c.off(t, "master-0")
	stop()
	writing.Wait()

	must(t, c.Readdress("master-0"))
	host, _ := c.Host("master-0")
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	etcd, err := assets.Path("etcd")
	must(t, err)
	holdfast := "holdfast snapshot --etcd " + etcd + " --data-dir " + host.DataDir + " --out " + snapshot
	c.typed(t, holdfast+" --dry-run")
	c.typed(t, holdfast)
	c.restore(t, "master-0", snapshot)
	c.logs(t, "etcd was restored: following another cluster")
	c.published(t)
	must(t, c.SetEnvironment("master-0", ""))
	if lost, err := writes.Lost(t.Context()); err != nil || lost > 0 {
		t.Errorf("%d of %d acknowledged writes are lost: %v", lost, writes.Stats().Acked, err)
	}
	after, err := c.etcd.MemberList(t.Context())
	must(t, err)
	if after.Header.GetClusterId() == before.Header.GetClusterId() {
		t.Errorf("the cluster has the ID %x that it had before", after.Header.GetClusterId())
	}
	for lost, next := range map[string]string{"master-1": "second", "master-2": "third"} {
		must(t, c.remove(t.Context(), lost))
		must(t, c.replacement(t.Context(), "master-0", next))
	}
	c.gone(t, slowly, "master-1")
	c.gone(t, slowly, "master-2")
	c.recovers(t)
	c.sameData(t)
	if lost, err := writes.Lost(t.Context()); err != nil || lost > 0 {
		t.Errorf("%d of %d acknowledged writes are lost with three members: %v", lost, writes.Stats().Acked, err)
	}
}

// save takes a snapshot of etcd, of one member as etcdctl wants it.
func (c *cluster) save(t *testing.T, snapshot string) {
	t.Helper()
	c.typed(t, "ETCDCTL_ENDPOINTS="+c.VoterEndpoints()[0]+" etcdctl snapshot save "+snapshot)
}

// restore does what docs/operations.md says: all hosts off and their data aside, then one restored and started.
func (c *cluster) restore(t *testing.T, on, snapshot string) {
	t.Helper()
	for _, host := range c.Hosts() {
		c.off(t, host.Name)
		must(t, os.Rename(host.DataDir, host.DataDir+"-before-restore"))
	}
	scripts := c.scripts(t, "operations.md", "Restore etcd from a snapshot")
	host, _ := c.Host(on)
	environment := filepath.Join(t.TempDir(), "etcd.env")
	// In the place of the first script, which names the reader's host.
	scripts[0] = fmt.Sprintf("name=%s peer=%s data=%s snapshot=%s environment=%s", on, host.PeerURL, host.DataDir, snapshot, environment)
	c.typed(t, strings.Join(scripts[:2], "\n"))
	text, err := os.ReadFile(environment)
	must(t, err)
	must(t, c.SetEnvironment(on, string(text)))
	must(t, c.Power(on, true))
	t.Cleanup(func() { _ = c.SetEnvironment(on, "") })
}

// typed runs a script that has to succeed.
func (c *cluster) typed(t *testing.T, script string) {
	t.Helper()
	out, err := c.shell(t, script)
	t.Logf("%s\n%s", script, out)
	must(t, err)
}

// sameData waits until all members hold the same.
func (c *cluster) sameData(t *testing.T) {
	t.Helper()
	eventually(t, quickly, "the same data in all members", func(ctx context.Context) error {
		list, err := c.members(ctx)
		if err != nil {
			return err
		}
		var at int64
		hashes := map[uint32]bool{}
		for _, m := range list {
			h, err := c.etcd.HashKV(ctx, m.GetClientURLs()[0], at)
			if err != nil {
				return err
			}
			at, hashes[h.Hash] = h.HashRevision, true
		}
		if len(hashes) != 1 {
			return fmt.Errorf("%d hashes: %v", len(hashes), slices.Collect(maps.Keys(hashes)))
		}
		return nil
	})
}
