package observe

import (
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestMemory: how long a member has been as it is counts from when this process first saw it so.
func TestMemory(t *testing.T) {
	memory := &Memory{}
	at := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }
	look := func(now time.Time, members ...quorum.Member) []quorum.Member {
		s := &quorum.Snapshot{Now: now, Ring: quorum.Ring{Known: true, Members: members}}
		memory.Recall(s)
		return s.Ring.Members
	}
	up := quorum.Member{ID: 1, Healthy: true, Applied: 10}
	down := quorum.Member{ID: 1}

	for i, step := range []struct {
		now             time.Time
		member          quorum.Member
		since, progress time.Time
	}{
		{at(0), up, at(0), at(0)},
		{at(5), up, at(0), at(0)},
		{at(6), quorum.Member{ID: 1, Healthy: true, Applied: 11}, at(0), at(6)},
		{at(7), down, at(7), at(6)},
		{at(9), down, at(7), at(6)},
		{at(10), up, at(10), at(6)}, // applied fell and came back: no progress
	} {
		got := look(step.now, step.member)[0]
		if got.Since != step.since || got.ProgressAt != step.progress {
			t.Errorf("step %d: since %v, progress %v; want %v, %v", i, got.Since, got.ProgressAt, step.since, step.progress)
		}
	}

	unknown := &quorum.Snapshot{Now: at(11), Ring: quorum.Ring{Members: []quorum.Member{down}}}
	memory.Recall(unknown)
	if !unknown.Ring.Members[0].Since.IsZero() {
		t.Error("a read that is not known aged a member")
	}
	if got := look(at(12), up)[0]; got.Since != at(10) {
		t.Errorf("a read that was not known made the process forget: since %v", got.Since)
	}
	look(at(13))
	if got := look(at(14), up)[0]; got.Since != at(14) {
		t.Errorf("a member that was removed and listed again counts from %v", got.Since)
	}
	// Who was elected long after it last looked knows nothing of the time between.
	later := at(14).Add(3 * time.Hour)
	look(at(14), down)
	if got := look(later, down)[0]; got.Since != later || got.ProgressAt != later {
		t.Errorf("after three hours without a look: since %v, progress %v", got.Since, got.ProgressAt)
	}
	memory = &Memory{}
	learner := quorum.Member{ID: 2, Healthy: true, Learner: true}
	look(at(15), learner)
	learner.Learner = false
	if got := look(at(20), learner)[0]; got.Since != at(20) {
		t.Errorf("a voter counts from %v, when it was a learner", got.Since)
	}
}

// TestLostSince: a member is lost since the first look at which it lacked entries and after which the leader has got none to it.
func TestLostSince(t *testing.T) {
	memory := &Memory{}
	at := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }
	for i, step := range []struct {
		now           time.Time
		leader        quorum.MemberID
		match, behind uint64
		since         time.Time
	}{
		{at(0), 1, 0, 0, time.Time{}},  // not asked
		{at(1), 1, 10, 1, at(1)},       // it may just be on its way
		{at(2), 1, 11, 1, at(2)},       // it was
		{at(3), 1, 11, 5, at(2)},       // nothing got there
		{at(4), 1, 0, 0, time.Time{}},  // not asked: not known
		{at(5), 1, 11, 9, at(2)},       // still not
		{at(6), 2, 11, 9, at(6)},       // another leader's account begins anew
		{at(7), 2, 20, 0, time.Time{}}, // it is back
		{at(8), 2, 20, 1, at(8)},
	} {
		s := &quorum.Snapshot{Now: step.now, Ring: quorum.Ring{Known: true, Leader: step.leader, Members: []quorum.Member{{ID: 3, Match: step.match, Behind: step.behind}}}}
		memory.Recall(s)
		if got := s.Ring.Members[0].LostSince; got != step.since {
			t.Errorf("step %d: lost since %v, want %v", i, got, step.since)
		}
	}
}

// TestPace: a learner keeps up since the first look at which it was near enough to the leader, and
// how long it still needs is told from how it went since it was first seen behind.
func TestPace(t *testing.T) {
	memory := &Memory{}
	at := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }
	learner := func(applied uint64) quorum.Member {
		return quorum.Member{ID: 1, Name: "new", Learner: true, Healthy: true, Applied: applied}
	}
	silent := learner(0)
	silent.Healthy = false
	for i, step := range []struct {
		now      time.Time
		member   quorum.Member
		caughtUp time.Time
		needs    time.Duration
	}{
		{at(0), learner(0), time.Time{}, 0}, // one look tells no pace
		{at(2), learner(2000), time.Time{}, 8 * time.Second},
		{at(3), learner(1000), time.Time{}, 27 * time.Second},
		{at(4), learner(9900), at(4), 0},
		{at(6), learner(10000), at(4), 0},
		{at(7), learner(9000), time.Time{}, 0}, // fell behind again: its pace counts anew
		{at(8), learner(9899), time.Time{}, 112 * time.Millisecond},
		{at(9), learner(9950), at(9), 0},
		{at(10), silent, time.Time{}, 0},
		{at(11), learner(9950), at(11), 0},
	} {
		s := &quorum.Snapshot{Now: step.now, Ring: quorum.Ring{Known: true, Index: 10000, Members: []quorum.Member{step.member}}}
		s.Limits.MaxLag = 100
		memory.Recall(s)
		got := s.Ring.Members[0]
		if got.CaughtUpAt != step.caughtUp || got.CatchUp.Round(time.Millisecond) != step.needs {
			t.Errorf("step %d: caught up %v, needs %v; want %v, %v", i, got.CaughtUpAt, got.CatchUp, step.caughtUp, step.needs)
		}
	}
}

// TestClockJump: how long a member has been as it is counts on the monotonic clock, so that a wall
// clock which jumps makes nobody dead, settled or stalled.
func TestClockJump(t *testing.T) {
	memory := &Memory{}
	s := &quorum.Snapshot{Now: clock.RealClock{}.Now(), Ring: quorum.Ring{Known: true, Members: []quorum.Member{{ID: 1, Name: "new", Learner: true, Healthy: true}}}}
	memory.Recall(s)
	m := s.Ring.Members[0]
	for what, at := range map[string]time.Time{"Since": m.Since, "ProgressAt": m.ProgressAt, "CaughtUpAt": m.CaughtUpAt, "Now": s.Now} {
		if !strings.Contains(at.String(), " m=") { // the monotonic reading
			t.Errorf("%s is wall time alone: %v", what, at)
		}
	}
}

// TestMarkedOnce: a tool that takes the mark off a Machine does not have it put on again and again.
func TestMarkedOnce(t *testing.T) {
	memory := &Memory{}
	look := func(marked bool, uid string) bool {
		s := &quorum.Snapshot{Machines: []quorum.Machine{{UID: uid, Marked: marked}}}
		memory.Recall(s)
		return s.Machines[0].Marked
	}
	if look(false, "a") || !look(true, "a") || !look(false, "a") || look(false, "b") || look(false, "a") {
		t.Error("a mark is forgotten while its Machine is there, or remembered for another")
	}
}
