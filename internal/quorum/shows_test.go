package quorum_test

import (
	"testing"

	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestShows tells of each kind of action whether the cluster is as it leaves it.
func TestShows(t *testing.T) {
	const url, other = "https://10.0.0.1:2380", "https://10.0.0.2:2380"
	cluster := func() *q.Snapshot {
		return &q.Snapshot{
			Ring: q.Ring{Known: true, Leader: 2, Members: []q.Member{
				{ID: 1, PeerURLs: []string{url}, Learner: true}, {ID: 2, PeerURLs: []string{other}},
			}},
			Machines: []q.Machine{{Name: "both", UID: "b", Hook: q.Ours, Latch: q.Ours}, {Name: "latch", UID: "l", Hook: q.Absent, Latch: q.Ours}, {Name: "none", UID: "n", Hook: q.Absent, Latch: q.Absent}},
		}
	}
	for name, c := range map[string]struct {
		action q.Action
		want   bool
	}{
		"a learner that is listed":            {q.Action{Kind: q.RemoveLearner, Member: 1}, false},
		"a learner that is not":               {q.Action{Kind: q.RemoveLearner, Member: 9}, true},
		"a voter that is listed":              {q.Action{Kind: q.RemoveVoter, Member: 2}, false},
		"a voter that is not":                 {q.Action{Kind: q.RemoveVoter, Member: 9}, true},
		"a learner that is one still":         {q.Action{Kind: q.Promote, Member: 1}, false},
		"a learner that votes":                {q.Action{Kind: q.Promote, Member: 2}, true},
		"a learner that is gone":              {q.Action{Kind: q.Promote, Member: 9}, false},
		"leadership that moved":               {q.Action{Kind: q.MoveLeader, Member: 1, To: 2}, true},
		"leadership that did not":             {q.Action{Kind: q.MoveLeader, Member: 2, To: 1}, false},
		"a member that was added":             {q.Action{Kind: q.AddLearner, PeerURL: url}, true},
		"a member that was not":               {q.Action{Kind: q.AddLearner, PeerURL: "https://10.0.0.3:2380"}, false},
		"a release of both":                   {q.Action{Kind: q.ReleaseHook, UID: "n", Hook: true, Latch: true}, true},
		"a release of which the latch stays":  {q.Action{Kind: q.ReleaseHook, UID: "l", Hook: true, Latch: true}, false},
		"a release of the hook alone":         {q.Action{Kind: q.ReleaseHook, UID: "l", Hook: true}, true},
		"a release that was not made":         {q.Action{Kind: q.ReleaseHook, UID: "b", Hook: true}, false},
		"a release of a Machine that is gone": {q.Action{Kind: q.ReleaseHook, UID: "gone", Hook: true}, true},
		"a hook that is there":                {q.Action{Kind: q.AddHook, UID: "b", Hook: true, Latch: true}, true},
		"a hook that is not":                  {q.Action{Kind: q.AddHook, UID: "l", Hook: true, Latch: true}, false},
		"a latch that is not":                 {q.Action{Kind: q.AddHook, UID: "n", Latch: true}, false},
		"a hook on a Machine that is gone":    {q.Action{Kind: q.AddHook, UID: "gone", Hook: true}, false},
		"the quorum guard":                    {q.Action{Kind: q.SizeGuard, MinAvailable: 2}, false},
		"a guard pod":                         {q.Action{Kind: q.DeleteGuardPod, PodUID: "p"}, false},
	} {
		s := cluster()
		if got := s.Shows(c.action); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		s.Ring.Known = false
		if c.action.Kind.Membership() && s.Shows(c.action) {
			t.Errorf("%s: an unknown ring shows it", name)
		}
	}
}
