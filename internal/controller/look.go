package controller

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// snapshot reads the cluster, with what is remembered of etcd's members.
func (r *Reconciler) snapshot(ctx context.Context) (*quorum.Snapshot, error) {
	s, err := r.Observer.Snapshot(ctx)
	if err == nil {
		r.memory.Recall(s)
	}
	return s, err
}

// readCluster reads the cluster, and what the webhooks have no use for: the quorum guard, and whether somebody else
// changes etcd's members or has the lock for that.
func (r *Reconciler) readCluster(ctx context.Context) (*quorum.Snapshot, error) {
	var (
		s      *quorum.Snapshot
		guard  quorum.Guard
		driver string
		lock   quorum.Lock
	)
	if r.Observer.Mode == quorum.ModeFull {
		lock = r.lock // until it is read: a read that fails makes an old lock no new one
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		s, err = r.snapshot(ctx)
		return err
	})
	group.Go(func() error {
		driver = r.otherDriver(ctx)
		return nil
	})
	if r.Observer.Mode == quorum.ModeFull {
		group.Go(func() error {
			seen, err := r.Etcd.LockHolder(ctx)
			if err != nil {
				r.Log.V(1).Info("not known", "reason", err.Error()) // who wants the lock finds out
				return nil
			}
			lock = seen
			return nil
		})
	}
	group.Go(func() error {
		r.machineCRD.look(ctx, r.Observer.API, r.Observer.Clock.Now())
		return nil
	})
	if r.QuorumGuard != nil {
		group.Go(func() (err error) {
			guard, err = r.QuorumGuard.readGuard(ctx)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	s.QuorumGuard, s.OtherDriver = guard, driver
	s.Failures = slices.Concat(r.attempts.failures(), r.Publisher.failures(), r.ClusterOperator.failures(), r.machineCRD.failures())
	if lock.Key != r.lock.Key {
		r.lock = lock
		r.lock.Since = s.Now
	}
	if lock.Key != "" {
		s.Lock = r.lock
	}
	return s, nil
}

// otherDriver is EtcdOperator for a Snapshot. Where it cannot be read, somebody else may be at work.
func (r *Reconciler) otherDriver(ctx context.Context) string {
	if r.Observer.Mode != quorum.ModeFull || !r.StandDown {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, observe.APITimeout)
	defer cancel()
	sign, err := observe.EtcdOperator(ctx, r.Observer.API)
	if err != nil {
		return err.Error()
	}
	return sign
}
