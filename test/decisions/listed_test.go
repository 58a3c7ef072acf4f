package decisions

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestRemovable: without a warning nobody is told to remove a member that an upgrade to etcd 3.6 may have brought back, which etcd would not
// survive. In the middle of an upgrade the ring's lowest version is 3.5. What the leader counts was not brought back.
func TestRemovable(t *testing.T) {
	for version, takes := range map[string]bool{"": false, "3.5.21": false, "3.6.0": false, "3.6.16": false, "3.7.3": true, "3.10.0": true, "4.0.1": true} {
		for _, inRaft := range []bool{false, true} {
			twin, lone := []string{"https://10.0.0.10:2380"}, []string{"https://10.0.0.99:2380"}
			s := &quorum.Snapshot{Desired: 3, Mode: quorum.ModeFull, Ring: ringOf(0xa,
				quorum.Member{ID: 0xa, Name: "a", PeerURLs: twin, Healthy: true, InRaft: inRaft}, quorum.Member{ID: 0xb, Name: "a", PeerURLs: twin, InRaft: inRaft}, quorum.Member{ID: 0xc, Name: "c", PeerURLs: lone, InRaft: inRaft}, quorum.Member{ID: 0xd, PeerURLs: []string{"https://10.0.0.98:2380"}, InRaft: inRaft}, quorum.Member{ID: 0xe, Name: "e", Learner: true, PeerURLs: []string{"https://10.0.0.97:2380"}, InRaft: inRaft})}
			s.Ring.Version = version
			plain := takes || inRaft
			join, notes := quorum.NewJoin(s), ""
			if text := join.ListedTwice(&s.Ring.Members[0]); strings.Contains(text, "etcdctl member remove") != plain {
				t.Errorf("%s: %s", version, text)
			}
			plan := membership.Decide(s)
			for _, n := range plan.Notes {
				answers := strings.Contains(n.Message, "etcd a (a)")
				if strings.Contains(n.Message, "etcdctl member remove") && strings.Contains(n.Message, "panic") == (plain || answers) {
					t.Errorf("%s: %s: %s", version, n.Reason, n.Message)
				}
				notes += string(n.Reason) + " "
			}
			for _, reason := range []membership.Reason{membership.ReasonMemberHostUnknown, membership.ReasonVoterNotStarted, membership.ReasonLearnerOrphaned} {
				if !strings.Contains(notes, string(reason)) {
					t.Errorf("%s: %s is not noted: %s", version, reason, notes)
				}
			}
			s.Machines = []quorum.Machine{{Name: "m", UID: "m", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.99")}}}
			s.Ring.Members = []quorum.Member{s.Ring.Members[0], s.Ring.Members[2], {ID: 0xf, Name: "f", Healthy: true}}
			plan = membership.Decide(s)
			if all := fmt.Sprint(membership.Conditions(&plan)); !strings.Contains(all, "kubectl holdfast replace m") || strings.Contains(all, "its data are damaged: etcdctl member remove c") != plain {
				t.Errorf("%s: %s", version, all)
			}
		}
	}
}
