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

// lull is a time in which nothing is to be done but to wait for etcd: a learner starts, or catches up. The rounds in it ask etcd
// alone, not the API server, until the ring looks different, a Machine or Node has changed, or the time is over. The zero
// value is none.
type lull struct {
	ring  string // how the ring looked
	until time.Time
}

const longestLull = time.Second

// rests begins a lull, where a round had nothing to do.
func (r *Reconciler) rests(s *quorum.Snapshot, plan *membership.Plan, tried bool) {
	if _, steadying := s.SteadyIn(); !tried && plan.Moving && s.Ring.Known && !steadying {
		r.lull = lull{shape(&s.Ring, s.Limits), s.Now.Add(longestLull)}
	}
}

// lasts says whether the lull goes on, by one read of etcd, and ends it if not.
func (r *Reconciler) lasts(ctx context.Context) bool {
	was := r.lull
	r.lull = lull{}
	if r.stirred.Swap(false) || !r.Observer.Clock.Now().Before(was.until) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, observe.EtcdBound)
	defer cancel()
	ring := r.Etcd.Read(ctx)
	if shape(&ring, r.Observer.Limits) != was.ring {
		return false
	}
	r.lull = was
	return true
}

// shape is all of a ring that a plan can hang on but how far a learner is behind.
func shape(ring *quorum.Ring, limits quorum.Limits) string {
	var b strings.Builder
	s := quorum.Snapshot{Ring: *ring, Limits: limits}
	fmt.Fprintln(&b, ring.Known, ring.Leader, ring.Version, ring.Alarms)
	for i := range ring.Members {
		m := &ring.Members[i]
		fmt.Fprintln(&b, m.ID, m.Name, m.PeerURLs, m.ClientURLs, m.Learner, m.Healthy, s.CaughtUp(m))
	}
	return b.String()
}
