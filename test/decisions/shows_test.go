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
		"a learner that is listed":            {membership.Action{Change: membership.RemoveLearner{Member: membership.Member{ID: 1}}}, false},
		"a learner that is not":               {membership.Action{Change: membership.RemoveLearner{Member: membership.Member{ID: 9}}}, true},
		"a voter that is listed":              {membership.Action{Change: membership.RemoveVoter{Member: membership.Member{ID: 2}}}, false},
		"a voter that is not":                 {membership.Action{Change: membership.RemoveVoter{Member: membership.Member{ID: 9}}}, true},
		"a learner that is one still":         {membership.Action{Change: membership.Promote{Member: membership.Member{ID: 1}}}, false},
		"a learner that votes":                {membership.Action{Change: membership.Promote{Member: membership.Member{ID: 2}}}, true},
		"a learner that is gone":              {membership.Action{Change: membership.Promote{Member: membership.Member{ID: 9}}}, false},
		"leadership that moved":               {membership.Action{Change: membership.MoveLeader{From: membership.Member{ID: 1}, To: membership.Member{ID: 2}}}, true},
		"leadership that did not":             {membership.Action{Change: membership.MoveLeader{From: membership.Member{ID: 2}, To: membership.Member{ID: 1}}}, false},
		"a member that was added":             {membership.Action{Change: membership.AddLearner{PeerURL: url}}, true},
		"a member that was not":               {membership.Action{Change: membership.AddLearner{PeerURL: "https://10.0.0.3:2380"}}, false},
		"a release of both":                   {membership.Action{UID: "n", Change: membership.ReleaseHook{Hook: true, Latch: true}}, true},
		"a release of which the latch stays":  {membership.Action{UID: "l", Change: membership.ReleaseHook{Hook: true, Latch: true}}, false},
		"a release of the hook alone":         {membership.Action{UID: "l", Change: membership.ReleaseHook{Hook: true}}, true},
		"a release that was not made":         {membership.Action{UID: "b", Change: membership.ReleaseHook{Hook: true}}, false},
		"a release of a Machine that is gone": {membership.Action{UID: "gone", Change: membership.ReleaseHook{Hook: true}}, true},
		"a hook that is there":                {membership.Action{UID: "b", Change: membership.AddHook{Hook: true, Latch: true}}, true},
		"a hook that is not":                  {membership.Action{UID: "l", Change: membership.AddHook{Hook: true, Latch: true}}, false},
		"evidence that is not":                {membership.Action{UID: "b", Change: membership.AddHook{Evidence: q.Evidence{MachineUID: "b", MemberIDs: []q.MemberID{1}}}}, false},
		"a latch that is not":                 {membership.Action{UID: "n", Change: membership.AddHook{Latch: true}}, false},
		"a hook on a Machine that is gone":    {membership.Action{UID: "gone", Change: membership.AddHook{Hook: true}}, false},
		"the quorum guard":                    {membership.Action{Change: membership.SizeGuard{MinAvailable: 2}}, false},
		"a guard pod":                         {membership.Action{Change: membership.DeleteGuardPod{PodUID: "p"}}, false},
	} {
		s := cluster()
		if got := membership.Shows(s, c.action); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
		s.Ring.Known = false
		if c.action.Kind().Membership() && membership.Shows(s, c.action) {
			t.Errorf("%s: an unknown ring shows it", name)
		}
	}
}
