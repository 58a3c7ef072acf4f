package decisions

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestChanges: what is new in a look, through a replacement and a time in which etcd cannot be read.
func TestChanges(t *testing.T) {
	machine := func(name string, held, deleting bool) quorum.Machine {
		m := quorum.Machine{Name: name, UID: "uid-of-" + name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, name[0]})}, Hook: quorum.EntryAbsent, Latch: quorum.EntryAbsent}
		if held {
			m.Hook, m.Latch = quorum.EntryOurs, quorum.EntryOurs
		}
		if deleting {
			m.DeletedAt = time.Unix(1, 0)
		}
		return m
	}
	at := func(machine byte) []string { return []string{fmt.Sprintf("https://10.0.0.%d:2380", machine)} }
	a, b := quorum.Member{ID: 0xa, Name: "master-a", PeerURLs: at('a'), Healthy: true}, quorum.Member{ID: 0xb, Name: "master-b", PeerURLs: at('b'), Healthy: true}
	unhealthy, learner := b, quorum.Member{ID: 0xc, PeerURLs: at('c'), Learner: true, Why: "not started"}
	unhealthy.Healthy, unhealthy.Why = false, "its endpoint does not answer"
	started := quorum.Member{ID: 0xc, Name: "master-c", PeerURLs: at('c'), Learner: true, Healthy: true}
	votes := started
	votes.Learner = false
	latched := machine("b", true, true)
	latched.Hook = quorum.EntryAbsent
	var seen membership.Changes
	for _, look := range []struct {
		what     string
		ring     quorum.Ring
		machines []quorum.Machine
		want     []string
	}{
		{"the first look", ringOf(0xa, a, b), []quorum.Machine{machine("a", true, false), machine("b", true, true)}, []string{": First look after the election: etcd has 2 voters, 2 healthy."}},
		{"the same again", ringOf(0xa, a, b), []quorum.Machine{machine("a", true, false), machine("b", true, true)}, nil},
		{"a replacement is made", ringOf(0xa, a, unhealthy), []quorum.Machine{machine("a", true, true), machine("b", true, true), machine("c", false, false)}, []string{
			"b: Member master-b (b) is not healthy: its endpoint does not answer", "a: Machine a is being deleted.", "c: Machine c has been created.",
		}},
		{"its learner", ringOf(0xa, a, b, learner), []quorum.Machine{machine("a", true, true), machine("b", true, true), machine("c", true, false)}, []string{
			"b: Member master-b (b) is healthy now.", "c: A learner has joined etcd: unstarted member c.",
		}},
		{"etcd hangs", quorum.Ring{Why: "no answer in time"}, []quorum.Machine{machine("a", true, true), machine("b", true, true), machine("c", true, false)}, []string{": etcd's members cannot be read: no answer in time"}},
		{"and hangs", quorum.Ring{Why: "no answer in time"}, []quorum.Machine{machine("a", true, true), machine("b", true, true), machine("c", true, false)}, nil},
		{"and goes on", ringOf(0xb, a, b, started), []quorum.Machine{machine("a", true, true), machine("b", true, true), machine("c", true, false)}, []string{
			": etcd's members can be read again.", "c: Member master-c (c) has started.", "c: Member master-c (c) is healthy now.", "b: Member master-b (b) leads etcd now.",
		}},
		{"the vote", ringOf(0xb, a, b, votes), []quorum.Machine{machine("a", true, true), machine("b", true, true), machine("c", true, false)}, []string{"c: Member master-c (c) votes now."}},
		{"the old one leaves", ringOf(0xb, b, votes), []quorum.Machine{machine("a", false, true), machine("b", true, true), machine("c", true, false)}, []string{"a: Member master-a (a) has left etcd.", "a: Machine a is no longer held."}},
		{"and is gone", ringOf(0xb, b, votes), []quorum.Machine{machine("b", true, true), machine("c", true, false)}, []string{"a: Machine a is gone."}},
		{"a stranger", ringOf(0xb, b, votes, a), []quorum.Machine{machine("b", true, true), machine("c", true, false)}, []string{": A voter has joined etcd: master-a (a)."}},
		{"a person takes a hook off", ringOf(0xb, b, votes, a), []quorum.Machine{latched, machine("c", true, false)}, []string{"b: The hook of Machine b, which is being deleted, is off; its latch holds it."}},
		{"and it stays", ringOf(0xb, b, votes, a), []quorum.Machine{latched, machine("c", true, false)}, nil},
	} {
		if diff := cmp.Diff(look.want, said(seen.Update(quorum.NewJoin(&quorum.Snapshot{Ring: look.ring, Machines: look.machines})))); diff != "" {
			t.Errorf("%s: %s", look.what, diff)
		}
	}
	var next membership.Changes // of the replica that is elected next
	if diff := cmp.Diff([]string{": First look after the election: etcd has 2 voters, 2 healthy.", "b: The hook of Machine b, which is being deleted, is off; its latch holds it."},
		said(next.Update(quorum.NewJoin(&quorum.Snapshot{Ring: ringOf(0xb, b, votes), Machines: []quorum.Machine{latched}})))); diff != "" {
		t.Error(diff)
	}
	var blind membership.Changes
	if diff := cmp.Diff([]string{": etcd's members cannot be read: no"}, said(blind.Update(quorum.NewJoin(&quorum.Snapshot{Ring: quorum.Ring{Why: "no"}})))); diff != "" {
		t.Error(diff)
	}
}

// said are the texts, each behind the Machine that it is about.
func said(news []membership.News) (out []string) {
	for _, one := range news {
		out = append(out, one.Machine+": "+one.Said)
	}
	return out
}

func ringOf(leader quorum.MemberID, members ...quorum.Member) quorum.Ring {
	return quorum.Ring{Known: true, Leader: leader, Members: members}
}
