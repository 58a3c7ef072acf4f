package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// etcdWait is a time in which there is nothing to do but to wait for etcd: a learner starts, or catches up. The rounds in it ask etcd
// alone, not the API server, until the ring looks different, a Machine or Node has changed, or the time is over. The zero
// value is none.
type etcdWait struct {
	ring  string // how the ring looked
	until time.Time
}

const maxEtcdWait = time.Second

// beginEtcdWait begins a wait, where a round had nothing to do.
func (r *Reconciler) beginEtcdWait(s *quorum.Snapshot, plan *membership.Plan, tried bool) {
	if _, steadying := s.SteadyIn(); !tried && plan.InProgress && s.Ring.Known && !steadying {
		r.etcdWait = etcdWait{shape(&s.Ring, s.Limits), s.Now.Add(maxEtcdWait)}
	}
}

// etcdWaitLasts reads etcd once and reports whether the wait goes on. If it does not, it ends the wait.
func (r *Reconciler) etcdWaitLasts(ctx context.Context) bool {
	was := r.etcdWait
	r.etcdWait = etcdWait{}
	if r.changed.Swap(false) || !r.Observer.Clock.Now().Before(was.until) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, observe.EtcdTimeout)
	defer cancel()
	ring := r.Etcd.Read(ctx)
	if shape(&ring, r.Observer.Limits) != was.ring {
		return false
	}
	r.etcdWait = was
	return true
}

// shape is a text of all facts of the ring that a plan depends on, except how far a learner is behind. A wait ends when it changes.
func shape(ring *quorum.Ring, limits quorum.Limits) string {
	var b strings.Builder
	s := quorum.Snapshot{Ring: *ring, Limits: limits}
	fmt.Fprintln(&b, ring.Known, ring.Leader, ring.Version, ring.Alarms)
	for i := range ring.Members {
		m := &ring.Members[i]
		fmt.Fprintln(&b, m.ID, m.Name, m.PeerURLs, m.ClientURLs, m.Learner, m.Healthy, m.MaxLearners, s.CaughtUp(m))
	}
	return b.String()
}
