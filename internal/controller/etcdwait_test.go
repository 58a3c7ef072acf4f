package controller

import (
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestLull: while a learner is waited for, rounds ask the API server for nothing until something has changed.
func TestLull(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	voter := quorum.Member{ID: 1, Name: "old", Healthy: true, Applied: 10000}
	learner := quorum.Member{ID: 2, Name: "new", Learner: true, Healthy: true, Applied: 5000}
	with := func(m quorum.Member, change func(*quorum.Member)) quorum.Member {
		change(&m)
		return m
	}
	limits := quorum.Limits{MaxLag: 100, SteadyFor: time.Minute}
	waits := membership.Plan{InProgress: true}
	// begin is a reconciler after a round that saw the learner and left that plan.
	begin := func(plan membership.Plan, seen quorum.Member) (*Reconciler, *fixedRing, *clocktesting.FakePassiveClock) {
		ring, now := &fixedRing{[]quorum.Member{voter, seen}}, clocktesting.NewFakePassiveClock(noon)
		r := &Reconciler{Etcd: ring, Observer: &observe.Observer{Limits: limits, Clock: now}}
		r.beginEtcdWait(&quorum.Snapshot{Ring: ring.Read(t.Context()), Now: noon, Limits: limits}, &plan, len(plan.Actions) > 0)
		return r, ring, now
	}

	r, ring, now := begin(waits, learner)
	ring.members[1] = with(learner, func(m *quorum.Member) { m.Applied += 100 }) // on its way, and that is all
	for range 2 {
		if !r.etcdWaitLasts(t.Context()) {
			t.Error("nothing has changed, and the wait is over")
		}
	}
	now.SetTime(noon.Add(maxEtcdWait))
	if r.etcdWaitLasts(t.Context()) {
		t.Error("a wait lasts for longer than it may")
	}

	for what, change := range map[string]func(*quorum.Member){
		"unhealthy": func(m *quorum.Member) { m.Healthy = false },
		"caught up": func(m *quorum.Member) { m.Applied = voter.Applied },
		"a voter":   func(m *quorum.Member) { m.Learner = false },
		"renamed":   func(m *quorum.Member) { m.Name = "" },
		"another":   func(m *quorum.Member) { m.ID = 3 },
	} {
		r, ring, _ := begin(waits, learner)
		ring.members[1] = with(learner, change)
		if r.etcdWaitLasts(t.Context()) {
			t.Errorf("the learner is %s, and the wait goes on", what)
		}
		ring.members = slices.Clone([]quorum.Member{voter, learner})
		if r.etcdWaitLasts(t.Context()) {
			t.Errorf("the learner was %s, and the wait begins again without a round", what)
		}
	}

	r, _, _ = begin(waits, learner)
	r.changed.Store(true)
	if r.etcdWaitLasts(t.Context()) {
		t.Error("a Machine has changed, and the wait goes on")
	}

	for what, plan := range map[string]membership.Plan{
		"at rest":              {},
		"with something to do": {InProgress: true, Actions: []membership.Action{{Change: membership.SizeGuard{}}}},
	} {
		if r, _, _ = begin(plan, learner); r.etcdWaitLasts(t.Context()) {
			t.Errorf("a wait after a round %s", what)
		}
	}
	if r, _, _ = begin(waits, with(learner, func(m *quorum.Member) { m.Applied = voter.Applied })); r.etcdWaitLasts(t.Context()) {
		t.Error("a wait while a learner has only to keep up for a moment")
	}
}
