package decisions_test

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/membership"
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
			Machines: []q.Machine{{Name: "both", UID: "b", Hook: q.EntryOurs, Latch: q.EntryOurs}, {Name: "latch", UID: "l", Hook: q.EntryAbsent, Latch: q.EntryOurs}, {Name: "none", UID: "n", Hook: q.EntryAbsent, Latch: q.EntryAbsent}},
		}
	}
	for name, c := range map[string]struct {
		action membership.Action
		want   bool
	}{
		"a learner that is listed":            {membership.Action{Kind: membership.RemoveLearner, Member: 1}, false},
		"a learner that is not":               {membership.Action{Kind: membership.RemoveLearner, Member: 9}, true},
		"a voter that is listed":              {membership.Action{Kind: membership.RemoveVoter, Member: 2}, false},
		"a voter that is not":                 {membership.Action{Kind: membership.RemoveVoter, Member: 9}, true},
		"a learner that is one still":         {membership.Action{Kind: membership.Promote, Member: 1}, false},
		"a learner that votes":                {membership.Action{Kind: membership.Promote, Member: 2}, true},
		"a learner that is gone":              {membership.Action{Kind: membership.Promote, Member: 9}, false},
		"leadership that moved":               {membership.Action{Kind: membership.MoveLeader, Member: 1, To: 2}, true},
		"leadership that did not":             {membership.Action{Kind: membership.MoveLeader, Member: 2, To: 1}, false},
		"a member that was added":             {membership.Action{Kind: membership.AddLearner, PeerURL: url}, true},
		"a member that was not":               {membership.Action{Kind: membership.AddLearner, PeerURL: "https://10.0.0.3:2380"}, false},
		"a release of both":                   {membership.Action{Kind: membership.ReleaseHook, UID: "n", Hook: true, Latch: true}, true},
		"a release of which the latch stays":  {membership.Action{Kind: membership.ReleaseHook, UID: "l", Hook: true, Latch: true}, false},
		"a release of the hook alone":         {membership.Action{Kind: membership.ReleaseHook, UID: "l", Hook: true}, true},
		"a release that was not made":         {membership.Action{Kind: membership.ReleaseHook, UID: "b", Hook: true}, false},
		"a release of a Machine that is gone": {membership.Action{Kind: membership.ReleaseHook, UID: "gone", Hook: true}, true},
		"a hook that is there":                {membership.Action{Kind: membership.AddHook, UID: "b", Hook: true, Latch: true}, true},
		"a hook that is not":                  {membership.Action{Kind: membership.AddHook, UID: "l", Hook: true, Latch: true}, false},
		"a latch that is not":                 {membership.Action{Kind: membership.AddHook, UID: "n", Latch: true}, false},
		"a hook on a Machine that is gone":    {membership.Action{Kind: membership.AddHook, UID: "gone", Hook: true}, false},
		"the quorum guard":                    {membership.Action{Kind: membership.SizeGuard, MinAvailable: 2}, false},
		"a guard pod":                         {membership.Action{Kind: membership.DeleteGuardPod, PodUID: "p"}, false},
	} {
		s := cluster()
		if got := membership.Shows(s, c.action); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		s.Ring.Known = false
		if c.action.Kind.Membership() && membership.Shows(s, c.action) {
			t.Errorf("%s: an unknown ring shows it", name)
		}
	}
}
