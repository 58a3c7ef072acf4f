package decisions_test

import (
	"testing"
	"time"

	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestSteadying: how long until the next promotion is told only of a learner that has just caught up.
func TestSteadying(t *testing.T) {
	s := q.Snapshot{Now: noon(), Limits: q.DefaultLimits(), Ring: q.Ring{Index: 10_000}}
	s.Limits.SteadyFor = 30 * time.Second
	member := q.Member{Name: "m", Healthy: true, Learner: true, Applied: 10_000, CaughtUpAt: noon()}
	with := func(change func(*q.Member)) q.Member {
		m := member
		change(&m)
		return m
	}
	for name, test := range map[string]struct {
		members []q.Member
		want    time.Duration // -1 for none
	}{
		"nobody":                            {nil, -1},
		"a learner that has just caught up": {[]q.Member{member}, 30 * time.Second},
		"one that nobody has watched":       {[]q.Member{with(func(m *q.Member) { m.CaughtUpAt = time.Time{} })}, 30 * time.Second},
		"one that caught up before":         {[]q.Member{member, with(func(m *q.Member) { m.CaughtUpAt = noon().Add(-20 * time.Second) })}, 10 * time.Second},
		"one that has kept up":              {[]q.Member{with(func(m *q.Member) { m.CaughtUpAt = noon().Add(-time.Minute) })}, -1},
		"one that is behind":                {[]q.Member{with(func(m *q.Member) { m.Applied, m.CaughtUpAt = 1, time.Time{} })}, -1},
		"one that does not answer":          {[]q.Member{with(func(m *q.Member) { m.Healthy = false })}, -1},
		"a voter":                           {[]q.Member{with(func(m *q.Member) { m.Learner, m.CaughtUpAt = false, time.Time{} })}, -1},
	} {
		s.Ring.Members = test.members
		if got, ok := s.SteadyIn(); ok != (test.want >= 0) || ok && got != test.want {
			t.Errorf("%s: %s, %t", name, got, ok)
		}
	}
}

// TestDead: a member is dead that does not answer and that etcd's leader has called lost for long enough.
func TestDead(t *testing.T) {
	s := q.Snapshot{Now: noon(), Limits: q.DefaultLimits()}
	long, short := noon().Add(-2*time.Minute), noon().Add(-time.Minute)
	for name, test := range map[string]struct {
		member q.Member
		want   bool
	}{
		"lost for long":                             {q.Member{Since: long, LostSince: long}, true},
		"lost for long, and silent for a moment":    {q.Member{Since: short, LostSince: long}, true},
		"lost for a moment":                         {q.Member{Since: long, LostSince: short}, false},
		"silent, and the leader says that it is up": {q.Member{Since: long}, false},
		"it answers":                                {q.Member{Healthy: true, Since: long, LostSince: long}, false},
	} {
		if got := s.Dead(&test.member); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
