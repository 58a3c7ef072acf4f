package quorum_test

import (
	"strings"
	"testing"
	"time"

	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestConditionReasons: each reason is told in a transcript.
func TestConditionReasons(t *testing.T) {
	told := transcripts(t, "condition")
	for _, reason := range []q.Reason{
		q.AsExpected, q.EtcdUnknown, q.EtcdNoLeader, q.QuorumLost, q.EtcdMembersUnhealthy, q.EtcdMembersNotStarted, q.EtcdVotersMissing,
		q.ReplacementInProgress, q.LearnerBehind, q.LearnerOrphaned, q.QuorumGuardAbsent, q.MachineAPINotFunctional, q.DesiredReplicasUnknown,
	} {
		if !strings.Contains(told, " "+string(reason)) {
			t.Errorf("no transcript in testdata/condition tells of %s", reason)
		}
	}
	for _, phase := range q.Phases() {
		if strings.Count(phase.String(), " ") > 0 || phase.String() == "" {
			t.Errorf("phase %d has no name for a label", phase)
		}
	}
}

// TestSettle holds what transcripts cannot show: what was read back from where it was told stands after
// a restart, and a clock that is put back takes nothing away.
func TestSettle(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"machine m-0 10.0.0.1", "machine m-1 10.0.0.2", "machine m-2 10.0.0.3", "member a0 10.0.0.1", "member a1 10.0.0.2", "member a2 10.0.0.3"} {
		if err := w.set(line); err != nil {
			t.Fatal(err)
		}
	}
	look := func(previous []q.Condition, after time.Duration) []q.Condition {
		w.witness()
		p := q.Decide(&w.s)
		return q.Settle(previous, q.Conditions(&w.s, &p), noon().Add(after))
	}
	is := func(when string, all []q.Condition, want q.Status) {
		t.Helper()
		for _, c := range all {
			if c.Type == q.Degraded && c.Status != want {
				t.Errorf("%s: Degraded is %s", when, c.Status)
			}
		}
	}
	// Degraded was told before the restart; the member is back, and has been for no known time.
	before := []q.Condition{{Type: q.Degraded, Status: q.True, Reason: string(q.EtcdMembersUnhealthy), Since: noon().Add(-time.Hour)}}
	told := look(before, 0)
	is("after a restart", told, q.True)
	if since := told[2].Since; !since.Equal(noon().Add(-time.Hour)) {
		t.Errorf("it is said to be so since %s", since)
	}
	told = look(told, -time.Hour)
	is("with the clock put back", told, q.True)
	is("within the inertia", look(told, -time.Hour+29*time.Second), q.True)
	is("after it", look(told, -time.Hour+30*time.Second), q.False)
	is("the first time", look(nil, 0), q.False)
}

// TestPromotable: a learner could vote if it is steady, its Machine stays, and a seat is free.
func TestPromotable(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		want        int
	}{
		{"a voter leaves", "machine m-0 deleting", 1},
		{"a voter is missing", "gone member a0", 1},
		{"warm", "", 0},
		{"behind", "machine m-0 deleting\nmember b0 10.0.0.4 learner lag=2000", 0},
		{"its Machine leaves", "machine m-0 deleting\nmachine m-3 deleting", 0},
		{"desired unknown", "machine m-0 deleting\ndesired unknown: no", 0},
		{"etcd unknown", "machine m-0 deleting\netcd unknown: no", 0},
	} {
		w := newWorld()
		text := "machine m-0 10.0.0.1\nmachine m-1 10.0.0.2\nmachine m-2 10.0.0.3\nmachine m-3 10.0.0.4\n" +
			"member a0 10.0.0.1\nmember a1 10.0.0.2\nmember a2 10.0.0.3\nmember b0 10.0.0.4 learner\n" + c.lines
		for line := range strings.Lines(text) {
			if err := w.set(strings.TrimSpace(line)); err != nil {
				t.Fatal(err)
			}
		}
		w.witness()
		w.s.Now = w.s.Now.Add(time.Second)
		if got := w.s.Promotable(); got != c.want {
			t.Errorf("%s: %d are promotable, want %d", c.name, got, c.want)
		}
	}
}

// TestDefect: a plan that was refused is told at once, as the defect that it is.
func TestDefect(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"machine m-0 10.0.0.1", "member a0 10.0.0.1", "desired 1"} {
		if err := w.set(line); err != nil {
			t.Fatal(err)
		}
	}
	w.witness()
	fine := q.Decide(&w.s)
	refused := q.Plan{Violated: q.I4, Notes: []q.Note{{Reason: q.InvariantViolated, Message: "nothing is done"}}}
	told := q.Settle(q.Settle(nil, q.Conditions(&w.s, &fine), noon()), q.Conditions(&w.s, &refused), noon().Add(time.Second))
	if got := told[2]; got.Status != q.True || got.Reason != string(q.InvariantViolated) || !strings.Contains(got.Message, "report it") {
		t.Errorf("it is told as %s", got.Describe())
	}
}
