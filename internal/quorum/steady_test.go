package quorum_test

import (
	"testing"
	"time"

	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestSteadying: the next look is soon only for a learner that has just caught up.
func TestSteadying(t *testing.T) {
	s := q.Snapshot{Now: noon(), Limits: q.DefaultLimits(), Ring: q.Ring{Index: 10_000}}
	member := q.Member{Name: "m", Healthy: true, Learner: true, Applied: 10_000, CaughtUpAt: noon()}
	for name, test := range map[string]struct {
		change func(*q.Member)
		want   bool
	}{
		"a learner that has just caught up": {func(*q.Member) {}, true},
		"one that has kept up":              {func(m *q.Member) { m.CaughtUpAt = noon().Add(-time.Minute) }, false},
		"one that is behind":                {func(m *q.Member) { m.Applied, m.CaughtUpAt = 1, time.Time{} }, false},
		"one that does not answer":          {func(m *q.Member) { m.Healthy = false }, false},
		"a voter":                           {func(m *q.Member) { m.Learner, m.CaughtUpAt = false, time.Time{} }, false},
	} {
		m := member
		test.change(&m)
		s.Ring.Members = []q.Member{m}
		if got := s.Steadying(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
