package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/metrics"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

// replaced is one replacement.
type replaced struct {
	whole   time.Duration // from the deletion until the old Machine is gone
	caught  time.Duration // from the deletion to the learner that caught up
	release time.Duration // from the learner that caught up to the old hook's release
	stall   time.Duration // the writer's longest wait
	api     float64
	lost    int
}

// replacement replaces one Machine after the other, while somebody writes to etcd.
func (b *bench) replacement(ctx context.Context) (err error) {
	c, err := b.start(ctx, "replacement", sandbox.Options{Mode: "full"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	n, names := b.replacements, masters()
	var all []replaced
	for i := range n {
		next := fmt.Sprintf("master-%d", len(names)+i)
		r, err := c.replace(ctx, names[i%len(names)], next)
		if err != nil {
			return fmt.Errorf("replacement %d, of %s: %w", i+1, names[i%len(names)], err)
		}
		names[i%len(names)] = next
		all = append(all, r)
		progress("replacement: %d of %d: %.1f s, caught up after %.1f s, from there to released %d ms, longest stall %d ms, %.0f API requests",
			i+1, n, r.whole.Seconds(), r.caught.Seconds(), r.release.Milliseconds(), r.stall.Milliseconds(), r.api)
	}
	column := func(of func(*replaced) float64) (out []float64) {
		for i := range all {
			out = append(out, of(&all[i]))
		}
		return out
	}
	add := func(what, unit string, part, bar float64, of func(*replaced) float64) {
		b.report.figure("replacement", what, quantile(column(of), part), unit, bar)
	}
	add("from deletion to gone, median", "s", .5, 0, func(r *replaced) float64 { return r.whole.Seconds() })
	add("from the learner that caught up to the old hook's release, median", "ms", .5, 700, func(r *replaced) float64 { return ms(r.release) })
	add("the same, longest", "ms", 1, 0, func(r *replaced) float64 { return ms(r.release) })
	add("the writer's longest wait, median", "ms", .5, 0, func(r *replaced) float64 { return ms(r.stall) })
	add("the writer's longest wait, longest", "ms", 1, 0, func(r *replaced) float64 { return ms(r.stall) })
	add("API requests, median", "requests", .5, 0, func(r *replaced) float64 { return r.api })
	add("from deletion to the learner that caught up, median", "s", .5, 0, func(r *replaced) float64 { return r.caught.Seconds() })
	lost := 0
	for _, r := range all {
		lost += r.lost
	}
	b.report.figure("replacement", "acknowledged writes that are lost", float64(lost), "writes", 0)
	if lost > 0 {
		return fmt.Errorf("%d acknowledged writes are lost", lost)
	}
	return nil
}

// replace deletes a Machine, creates its replacement, and waits until the one is gone and the other votes.
func (c *cluster) replace(ctx context.Context, old, next string) (r replaced, err error) {
	if err := until(ctx, "all Machines guarded", c.guarded); err != nil {
		return r, err
	}
	var was machinev1beta1.Machine
	key := client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: old}
	if err := c.admin.Get(ctx, key, &was); err != nil {
		return r, err
	}
	m, err := sandbox.Replacement(&was, next, "m5.2xlarge")
	if err != nil {
		return r, err
	}
	etcd, err := c.EtcdClient()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	before, err := metrics.Read(ctx, c.plain, c.MetricsURL())
	if err != nil {
		return r, err
	}

	w, err := c.watch(ctx, etcd, old, next)
	if err != nil {
		return r, err
	}
	defer w.stop()
	began := time.Now()
	if err := c.swap(ctx, &was, m); err != nil {
		return r, err
	}
	r.whole = time.Since(began)
	after, err := metrics.Read(ctx, c.plain, c.MetricsURL())
	if err != nil {
		return r, err
	}
	w.stop()
	r.stall = w.writer.Stats().Longest
	if w.caughtUp.IsZero() || w.released.IsZero() {
		return r, fmt.Errorf("it was not seen when the learner caught up (%t) or the hook was released (%t)", !w.caughtUp.IsZero(), !w.released.IsZero())
	}
	r.caught, r.release = w.caughtUp.Sub(began), w.released.Sub(w.caughtUp)
	const requests = "rest_client_requests_total"
	r.api = after.Sum(requests) - before.Sum(requests)
	r.lost, err = lost(ctx, w.writer)
	return r, err
}

// swap deletes a Machine, creates the one in its place, and waits until the first is gone.
func (c *cluster) swap(ctx context.Context, old, next *machinev1beta1.Machine) error {
	if err := c.admin.Delete(ctx, old); err != nil {
		return err
	}
	if err := c.admin.Create(ctx, next); err != nil {
		return err
	}
	return until(ctx, "Machine "+old.Name+" gone", func(ctx context.Context) error {
		err := c.admin.Get(ctx, client.ObjectKeyFromObject(old), &machinev1beta1.Machine{})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

// watched is what is seen of a replacement while it happens. The fields may be read once stop has returned.
type watched struct {
	writer   *writer.Writer
	caughtUp time.Time // when the learner had caught up
	released time.Time // when the old Machine's hook was released

	stop func() // may be called twice
}

// watch watches the replacement of a Machine by another, and writes to etcd meanwhile.
func (c *cluster) watch(ctx context.Context, etcd *clientv3.Client, old, next string) (*watched, error) {
	ctx, cancel := context.WithCancel(ctx)
	watcher, err := c.admin.Watch(ctx, &machinev1beta1.MachineList{}, client.InNamespace(sandbox.MachineNamespace), client.MatchingFields{"metadata.name": old})
	if err != nil {
		cancel()
		return nil, err
	}
	var work sync.WaitGroup
	w := &watched{writer: writer.New(etcd), stop: func() {
		cancel()
		watcher.Stop()
		work.Wait()
	}}
	work.Go(func() { w.writer.Run(ctx) })
	work.Go(func() { w.caughtUp = catchesUp(ctx, etcd, next) })
	work.Go(func() {
		for event := range watcher.ResultChan() {
			if m, ok := event.Object.(*machinev1beta1.Machine); ok && w.released.IsZero() && machineapi.Machine(m).Hook == quorum.EntryAbsent {
				w.released = time.Now()
			}
		}
	})
	return w, nil
}

// lost asks the writer, again while its client looks for a member that is still there.
func lost(ctx context.Context, w *writer.Writer) (n int, err error) {
	err = until(ctx, "the writes to be read back", func(ctx context.Context) error {
		n, err = w.Lost(ctx)
		return err
	})
	return n, err
}

// catchesUp is when the learner of that name has applied all but what it may lack to be promoted.
func catchesUp(ctx context.Context, etcd *clientv3.Client, name string) time.Time {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	allowed := quorum.DefaultLimits().MaxLag
	for {
		if at, ok := caughtUp(ctx, etcd, name, allowed); ok {
			return at
		}
		select {
		case <-ctx.Done():
			return time.Time{}
		case <-tick.C:
		}
	}
}

func caughtUp(ctx context.Context, etcd *clientv3.Client, name string, allowed uint64) (time.Time, bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	list, err := etcd.MemberList(ctx)
	if err != nil {
		return time.Time{}, false
	}
	var own, most uint64
	for _, m := range list.Members {
		for _, endpoint := range m.GetClientURLs() {
			status, err := etcd.Status(ctx, endpoint)
			if err != nil {
				continue
			}
			if most = max(most, status.RaftIndex); m.GetName() == name {
				own = status.RaftAppliedIndex
			}
		}
	}
	return time.Now(), own > 0 && own+allowed >= most
}
