package decisions_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestConditionReasons: each reason is told in a transcript.
func TestConditionReasons(t *testing.T) {
	told := transcripts(t, "condition")
	for _, reason := range []membership.Reason{
		membership.ReasonAsExpected, membership.ReasonEtcdUnknown, membership.ReasonEtcdNoLeader, membership.ReasonQuorumLost, membership.ReasonEtcdMembersUnhealthy, membership.ReasonEtcdMembersNotStarted, membership.ReasonEtcdVotersMissing,
		membership.ReasonReplacementInProgress, membership.ReasonLearnerBehind, membership.ReasonLearnerOrphaned, membership.ReasonQuorumGuardAbsent, membership.ReasonQuorumGuardTooSmall, membership.ReasonQuorumGuardTooLarge, membership.ReasonMachineAPINotFunctional, membership.ReasonDesiredReplicasUnknown,
	} {
		if !strings.Contains(told, " "+string(reason)) {
			t.Errorf("no transcript in testdata/condition tells of %s", reason)
		}
	}
	for _, phase := range membership.Phases() {
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
	look := func(previous []membership.Condition, after time.Duration) []membership.Condition {
		w.witness()
		p := membership.Decide(&w.s)
		return membership.Settle(previous, membership.Conditions(&p), noon().Add(after))
	}
	is := func(when string, all []membership.Condition, want membership.Status) {
		t.Helper()
		for _, c := range all {
			if c.Type == membership.ConditionDegraded && c.Status != want {
				t.Errorf("%s: Degraded is %s", when, c.Status)
			}
		}
	}
	// Degraded was told before the restart; the member is back, and has been for no known time.
	before := []membership.Condition{{Type: membership.ConditionDegraded, Status: membership.StatusTrue, Reason: string(membership.ReasonEtcdMembersUnhealthy), Since: noon().Add(-time.Hour)}}
	told := look(before, 0)
	is("after a restart", told, membership.StatusTrue)
	if since := told[2].Since; !since.Equal(noon().Add(-time.Hour)) {
		t.Errorf("it is said to be so since %s", since)
	}
	told = look(told, -time.Hour)
	is("with the clock put back", told, membership.StatusTrue)
	is("within the inertia", look(told, -time.Hour+29*time.Second), membership.StatusTrue)
	is("after it", look(told, -time.Hour+30*time.Second), membership.StatusFalse)
	is("the first time", look(nil, 0), membership.StatusFalse)
}

// TestLearners: a learner waits where there is a seat, and is being sent data if it grew lately or etcd's leader says so.
func TestLearners(t *testing.T) {
	for _, c := range []struct {
		name, lines        string
		waiting, receiving int
	}{
		{"a voter leaves", "machine m-0 deleting", 1, 0},
		{"a voter is missing", "gone member a0", 1, 0},
		{"warm", "", 0, 0},
		{"behind", "machine m-0 deleting\nmember b0 10.0.0.4 learner lag=2000", 1, 1},
		{"behind, and stands still", "machine m-0 deleting\nmember b0 10.0.0.4 learner lag=2000 idle=15s", 1, 0},
		{"not started", "machine m-0 deleting\nmember b0 10.0.0.4 learner unstarted", 1, 0},
		{"silent", "machine m-0 deleting\nmember b0 10.0.0.4 learner dead=1m", 1, 0},
		{"silent, and sent a snapshot", "machine m-0 deleting\nmember b0 10.0.0.4 learner dead=1m receiving", 1, 1},
		{"not started, and sent a snapshot", "machine m-0 deleting\nmember b0 10.0.0.4 learner unstarted receiving", 1, 1},
		{"desired unknown", "machine m-0 deleting\ndesired unknown: no", 0, 0},
		{"etcd unknown", "machine m-0 deleting\netcd unknown: no", 0, 0},
	} {
		w := witnessed(t, "member b0 10.0.0.4 learner\n"+c.lines)
		if waiting, receiving := membership.Learners(q.NewJoin(&w.s)); waiting != c.waiting || receiving != c.receiving {
			t.Errorf("%s: %d wait and %d are sent data, want %d and %d", c.name, waiting, receiving, c.waiting, c.receiving)
		}
	}
}

// TestInMaintenance: Holdfast expects an unhealthy voter to come back if its Node is cordoned, as in an upgrade.
func TestInMaintenance(t *testing.T) {
	for _, c := range []struct {
		name, lines string
		want        int
	}{
		{"at rest", "", 0},
		{"cordoned, and not down yet", "machine m-0 cordoned", 0},
		{"restarting", "machine m-0 cordoned\nmember a0 dead=1m", 1},
		{"its Machine leaves", "machine m-0 cordoned deleting\nmember a0 dead=1m", 0},
		{"down without a word", "member a0 dead=1m", 0},
		{"another Node is cordoned", "machine m-1 cordoned\nmember a0 dead=1m", 0},
		{"a learner", "machine m-3 cordoned\nmember b0 10.0.0.4 learner dead=1m", 0},
	} {
		if got := membership.InMaintenance(q.NewJoin(&witnessed(t, c.lines).s)); len(got) != c.want {
			t.Errorf("%s: %v are in maintenance, want %d", c.name, got, c.want)
		}
	}
}

// TestGuardNodes: each Node that hosts a member or is to is to have a guard pod, until a drain has taken it.
func TestGuardNodes(t *testing.T) {
	for lines, want := range map[string]int{
		"guard 2":                                4,
		"guard 2\npod m-0\nmachine m-0 cordoned": 4,
		"guard 2\nmachine m-0 cordoned":          3,
		"mode guard\nguard 2":                    3,
		"mode guard\nguard 2\npod m-3":           4,
	} {
		if got := len(membership.GuardNodes(q.NewJoin(&witnessed(t, lines).s))); got != want {
			t.Errorf("%q: %d pods are wanted, want %d", lines, got, want)
		}
	}
}

// witnessed is a world of three voters and a fourth Machine, with more lines, a second after it was first seen.
func witnessed(t *testing.T, lines string) *world {
	t.Helper()
	w := newWorld()
	text := "machine m-0 10.0.0.1\nmachine m-1 10.0.0.2\nmachine m-2 10.0.0.3\nmachine m-3 10.0.0.4\n" +
		"member a0 10.0.0.1\nmember a1 10.0.0.2\nmember a2 10.0.0.3\n" + lines
	for line := range strings.Lines(text) {
		if err := w.set(strings.TrimSpace(line)); err != nil {
			t.Fatal(err)
		}
	}
	w.witness()
	w.s.Now = w.s.Now.Add(time.Second)
	return w
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
	fine := membership.Decide(&w.s)
	refused := membership.Plan{Join: fine.Join, Violated: membership.InvariantVoterCount, Notes: []membership.Note{{Reason: membership.ReasonInvariantViolated, Message: "nothing is done"}}}
	told := membership.Settle(membership.Settle(nil, membership.Conditions(&fine), noon()), membership.Conditions(&refused), noon().Add(time.Second))
	if got := told[2]; got.Status != membership.StatusTrue || got.Reason != string(membership.ReasonInvariantViolated) || !strings.Contains(got.Message, "report it") {
		t.Errorf("it is told as %s", got.Describe())
	}
}

// TestUnreadable: while the API server does not show the cluster, nobody is told that all is well.
func TestUnreadable(t *testing.T) {
	w := newWorld()
	for _, line := range []string{"machine m-0 10.0.0.1", "machine m-1 10.0.0.2", "machine m-2 10.0.0.3", "member a0 10.0.0.1", "member a1 10.0.0.2", "member a2 10.0.0.3"} {
		if err := w.set(line); err != nil {
			t.Fatal(err)
		}
	}
	w.witness()
	calm := membership.Decide(&w.s)
	told := membership.Settle(nil, membership.Conditions(&calm), noon())
	s := &q.Snapshot{Mode: w.s.Mode, Ring: w.s.Ring, Limits: w.s.Limits}
	p := membership.Unreadable(s, errors.New("nodes is forbidden"))
	if len(p.Actions) > 0 || p.Records != nil || p.Ledger != nil {
		t.Errorf("it would do %s", p.Describe())
	}
	for _, after := range []time.Duration{0, 31 * time.Second} {
		told = membership.Settle(told, membership.Conditions(&p), noon().Add(after))
	}
	want := []membership.Status{membership.StatusTrue, membership.StatusUnknown, membership.StatusTrue, membership.StatusFalse}
	for i, c := range told {
		if c.Status != want[i] || i > 0 && (c.Reason != "ClusterUnreadable" || !strings.Contains(c.Message, "nodes is forbidden")) {
			t.Errorf("it is told as %s", c.Describe())
		}
	}
}
