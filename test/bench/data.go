package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

const (
	gib = 1 << 30
	// quota is etcd's for its database, the most that it recommends. Values take about an eighth more than their bytes.
	quota    = 8 * gib
	mostData = 6 * gib
	// valueSize is that of a large object of Kubernetes. It is small enough for a member to keep the last
	// 5,000 entries of the log in memory, as etcd does, and for a gigabyte to be more than these: a new
	// member is then given a snapshot.
	valueSize = 64 << 10
	fillers   = 48 // writes in flight
	fillStall = time.Minute
)

// volume is an amount of data in bytes.
type volume int64

func (v volume) String() string { return number(float64(v)/gib) + " GiB" }

// parseVolumes reads a list of GiB, fractions among them.
func parseVolumes(list string) ([]volume, error) {
	var out []volume
	for part := range strings.SplitSeq(list, ",") {
		n, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return nil, fmt.Errorf("-data is a list of GiB, such as 0,0.25,1: %q is no number", part)
		}
		if !(n >= 0 && n <= mostData/gib) { // not a number is neither
			return nil, fmt.Errorf("-data takes 0 to %s: etcd's database is not to be larger than %s, and %q is", volume(mostData), volume(quota), part)
		}
		out = append(out, volume(n*gib))
	}
	return out, nil
}

// needs is how much disk a ring of three and a replacement take with so much data: the database, pages that
// it does not use again while a snapshot is read, and the log.
func (v volume) needs() volume { return 4 * (v + v/4 + min(v, gib)) }

// roomFor says which of the volumes the disk below a directory has no room for.
func roomFor(dir string, volumes []volume) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("how much the disk of %s has free: %w", dir, err)
	}
	free := volume(disk.Bavail) * volume(disk.Bsize)
	for _, v := range volumes {
		if v.needs() > free {
			return fmt.Errorf("-data: %s in etcd take about %s of disk (three members, a replacement, their logs), and %s has %s free: choose less, or another disk by TMPDIR",
				v, v.needs(), dir, free)
		}
	}
	return nil
}

// data replaces Machines with more and more data in etcd. A new member gets all of it from the leader,
// while the replacement waits and everybody writes.
func (b *bench) data(ctx context.Context) error {
	for _, v := range b.volumes {
		if err := b.dataOf(ctx, v); err != nil {
			return fmt.Errorf("with %s: %w", v, err)
		}
	}
	return nil
}

// dataOf does so with one amount. The disks are removed in the end, whatever came of it; the logs stay for a failure.
func (b *bench) dataOf(ctx context.Context, v volume) (err error) {
	if err := roomFor(b.dir, []volume{v}); err != nil {
		return err
	}
	section := "data, " + v.String()
	c, err := b.start(ctx, fmt.Sprintf("data-%d", v>>20), "full", fmt.Sprintf("--quota-backend-bytes=%d", int64(quota)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop(), os.RemoveAll(filepath.Join(c.Dir, "hosts"))) }()
	began := time.Now()
	if err := c.fill(ctx, v); err != nil {
		return err
	}
	if v > 0 {
		b.report.figure(section, "to write it", time.Since(began).Seconds(), "s", 0)
	}
	size, err := c.database(ctx)
	if err != nil {
		return err
	}
	b.report.figure(section, "etcd's database", float64(size)/(1<<20), "MiB", 0)
	within := 3*time.Minute + 5*time.Minute*time.Duration(v)/gib
	return b.replaceSeveral(ctx, c, section, b.each, within)
}

// fill writes so many bytes of values, each once.
func (c *cluster) fill(ctx context.Context, v volume) (err error) {
	etcd, err := c.EtcdClient()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	var next, written atomic.Int64
	values := int64(v+valueSize-1) / valueSize
	group, ctx := errgroup.WithContext(ctx)
	for range fillers {
		group.Go(func() error {
			value := make([]byte, valueSize)
			_, _ = rand.Read(value) // never fails
			for n := next.Add(1); n <= values; n = next.Add(1) {
				if err := put(ctx, etcd, fmt.Sprintf("/holdfast-bench/%09d", n), string(value)); err != nil {
					return err
				}
				written.Add(valueSize)
			}
			return nil
		})
	}
	go func() { // until the group has ended
		tell := time.NewTicker(5 * time.Second)
		defer tell.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tell.C:
				progress("writing to etcd: %d of %d MiB", written.Load()>>20, v>>20)
			}
		}
	}()
	return group.Wait()
}

// put writes one value, again while etcd has an election or is too busy.
func put(ctx context.Context, etcd *clientv3.Client, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, fillStall)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, fillStall/6)
		_, err := etcd.Put(attempt, key, value)
		cancel()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, rpctypes.ErrNoSpace), ctx.Err() != nil:
			return fmt.Errorf("fill etcd: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("fill etcd: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// database is the size of the largest member's database in bytes, once all have applied what was written.
func (c *cluster) database(ctx context.Context) (size int64, err error) {
	etcd, err := c.EtcdClient()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	err = until(ctx, "the members to apply what was written", func(ctx context.Context) error {
		size = 0
		var applied, index uint64
		for i, endpoint := range c.VoterEndpoints() {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			status, err := etcd.Status(ctx, endpoint)
			cancel()
			if err != nil {
				return err
			}
			if i == 0 || status.RaftAppliedIndex < applied {
				applied = status.RaftAppliedIndex
			}
			size, index = max(size, status.DbSize), max(index, status.RaftIndex)
		}
		if applied+100 < index {
			return fmt.Errorf("one is %d entries behind", index-applied)
		}
		return nil
	})
	return size, err
}
