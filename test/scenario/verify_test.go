package scenario_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestVerify: what Holdfast renders is what hosts start from, through holdfast verify membership.
func TestVerify(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3})
	c.watch(t, 2)
	c.atRest(t)

	t.Run("the ConfigMaps name the ring", func(t *testing.T) {
		c.published(t)
	})

	t.Run("every host loses its power at once", func(t *testing.T) {
		names := []string{"master-0", "master-1", "master-2"}
		for _, name := range names {
			must(t, c.Power(name, false))
		}
		for _, name := range names {
			eventually(t, quickly, "no etcd on "+name, func(context.Context) error {
				if host, _ := c.Host(name); host.Etcd != nil {
					return errors.New("it runs")
				}
				return nil
			})
		}
		for _, name := range names {
			must(t, c.Power(name, true))
		}
		c.recovers(t)
		for _, name := range names {
			host, _ := c.Host(name)
			if aside, err := filepath.Glob(host.DataDir + "-removed-*"); err != nil || len(aside) > 0 {
				t.Errorf("%s: data put aside: %q, %v", name, aside, err)
			}
		}
		c.nodeReady(t, "master-2")
	})

	for _, left := range []struct {
		name, machine, next string
		write               func(dir string) error
	}{
		{"an older member's data are where the replacement's go", "master-0", "reused", func(dir string) error {
			metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: new(uint64(9)), ClusterID: new(uint64(9))})
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Join(dir, "member"), 0o700); err != nil {
				return err
			}
			log, err := wal.Create(nil, filepath.Join(dir, "member", "wal"), metadata)
			if err != nil {
				return err
			}
			return log.Close()
		}},
		{"a corrupt log is where the replacement's goes", "master-1", "corrupt", func(dir string) error {
			wal := filepath.Join(dir, "member", "wal")
			if err := os.MkdirAll(wal, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(wal, "0000000000000000-0000000000000000.wal"), bytes.Repeat([]byte{0xff}, 4096), 0o600)
		}},
	} {
		t.Run(left.name, func(t *testing.T) {
			must(t, c.remove(t.Context(), left.machine))
			must(t, c.Holdfast.Stop())
			must(t, c.replacement(t.Context(), left.machine, left.next))
			c.nodeReady(t, left.next)
			host, _ := c.Host(left.next)
			must(t, left.write(host.DataDir))
			must(t, os.WriteFile(filepath.Join(host.DataDir, "precious"), []byte("years of work"), 0o600))
			must(t, c.Holdfast.Start())
			must(t, c.WaitHoldfast(t.Context()))
			c.becomes(t, left.next, "voter")
			c.gone(t, slowly, left.machine)
			c.atRest(t)
			aside, err := filepath.Glob(host.DataDir + "-removed-*")
			if err != nil || len(aside) != 1 {
				t.Fatalf("data put aside: %q, %v", aside, err)
			}
			if kept, err := os.ReadFile(filepath.Join(aside[0], "precious")); err != nil || string(kept) != "years of work" {
				t.Errorf("not all was kept: %q, %v", kept, err)
			}
			if _, err := os.Stat(filepath.Join(host.DataDir, "precious")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the new member has the old one's file: %v", err)
			}
			c.published(t)
		})
	}
}

// published waits until the ConfigMaps say what etcd says: an environment for each Node, with etcd's
// members and no other ones, and the voters' addresses.
func (c *cluster) published(t *testing.T) {
	t.Helper()
	eventually(t, quickly, "ConfigMaps as etcd is", func(ctx context.Context) error {
		list, err := c.etcd.MemberList(ctx)
		if err != nil {
			return err
		}
		var environments, endpoints corev1.ConfigMap
		admin := c.as(sandbox.Admin)
		if err := admin.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.Name}, &environments); err != nil {
			return err
		}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.EndpointsName}, &endpoints); err != nil {
			return err
		}
		var want, voters []string
		for _, m := range list.Members {
			want = append(want, fmt.Sprintf("%x=%s", m.GetID(), m.GetPeerURLs()[0]))
			if !m.GetIsLearner() {
				voters = append(voters, fmt.Sprintf("%x", m.GetID()))
			}
		}
		slices.Sort(want)
		for _, m := range list.Members {
			e, err := hostenv.Parse(environments.Data[m.GetName()])
			if err != nil {
				return fmt.Errorf("environment of %s: %w", m.GetName(), err)
			}
			got := strings.Split(e.Members.String(), ",")
			slices.Sort(got)
			if !slices.Equal(got, want) || len(e.InitialCluster) != len(want) {
				return fmt.Errorf("environment of %s: %q, etcd lists %q", m.GetName(), environments.Data[m.GetName()], want)
			}
		}
		for _, id := range voters {
			if endpoints.Data[id] == "" || len(endpoints.Data) != len(voters) {
				return fmt.Errorf("endpoints %v, voters %q", endpoints.Data, voters)
			}
		}
		return nil
	})
}
