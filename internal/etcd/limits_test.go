package etcd

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/ring"
)

func TestMaxLearners(t *testing.T) {
	for line, want := range map[string]int{
		"":                                     0,
		"etcd --name=a":                        0,
		"etcd --max-learners=2":                2,
		"etcd -max-learners 3":                 3,
		"etcd --experimental-max-learners=2":   2,
		"etcd --max-learners=2 --max-learners": 0,
		"etcd --max-learners=3 --max-learners=2 --name=max-learners=9": 2,
		"etcd --max-learners=2 --config-file=x":                        0,
		"etcd --config-file x --max-learners 2":                        0,
		"etcd --max-learners=-1":                                       0,
		"etcd --max-learners=x":                                        0,
		"etcd max-learners=7":                                          0,
	} {
		if got := maxLearners(strings.Fields(line)); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}

// TestInRaft: a leader of etcd 3.7 has each listed member in raft, and so says nothing of what those of 3.6 in its ring survive.
func TestInRaft(t *testing.T) {
	for version, want := range map[string]bool{"3.5.21": true, "3.6.16": true, "3.7.0": false} {
		var said vars
		if err := json.Unmarshal([]byte(`{"raft.status": {"commit": 7, "progress": {"b": {"match": 5, "state": "StateProbe"}}}}`), &said); err != nil {
			t.Fatal(err)
		}
		ring := quorum.Ring{Members: []quorum.Member{{ID: 0xb}, {ID: 0xc}}}
		said.account(&ring, version)
		if b, c := ring.Members[0], ring.Members[1]; b.InRaft != want || b.Match != 5 || b.Behind != 2 || c.InRaft {
			t.Errorf("%s: %+v", version, ring.Members)
		}
	}
}

// TestLimits: members say how many learners they take. One that takes fewer than the others ends at the learner that is one too many for it,
// and does not start again. So nobody is to add one that any member does not take.
func TestLimits(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	const two = "--max-learners=2"
	old, err := assets.Before("etcd", "3.6")
	g.Expect(err).NotTo(HaveOccurred())
	for i := range 2 {
		spec := r.Members[i].Spec()
		spec.Extra = append(slices.Clone(spec.Extra), two)
		g.Expect(r.Members[i].Stop()).To(Succeed())
		again, err := ring.StartMember(r.CA, spec)
		g.Expect(err).NotTo(HaveOccurred())
		if old {
			g.Eventually(again.Process().Done(), "2m").Should(BeClosed(), "it knows no such flag: it takes one learner")
			return
		}
		r.Members[i] = again
		g.Expect(ring.WaitHealthy(t.Context(), r.Config, again)).To(Succeed())
	}
	cfg := configFor(r, r.Members...)
	cfg.Limits = true
	c, err := New(cfg)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(c.Close)
	taken := func() map[string]int {
		out := map[string]int{}
		for _, m := range c.Read(t.Context()).Members {
			out[m.Name] = m.MaxLearners
		}
		return out
	}
	g.Expect(taken()).To(Equal(map[string]int{"m0": 0, "m1": 0, "m2": 0}), "nobody asks while there is no learner")
	addWhenAccepted(t, c, r.Ports.PeerURL(r.Next("first").Address))
	g.Eventually(taken, "2m", "50ms").Should(Equal(map[string]int{"m0": 2, "m1": 2, "m2": 0, "": 0}))

	// This is what has to be spared people. The leader says yes for all, and yet each does as its own limit says.
	got := c.Read(t.Context())
	if first := named(&got, "m0").ID; got.Leader != first {
		g.Expect(moveLeader(t, c, first)).To(Succeed())
	}
	spec := r.Next("second")
	spec.Extra = append(spec.Extra, two)
	_, _ = add(t, c, r.Ports.PeerURL(spec.Address))
	spec.InitialCluster = map[string]string{}
	for i, m := range c.Read(t.Context()).Members {
		name := m.Name
		if m.PeerURLs[0] == r.Ports.PeerURL(spec.Address) {
			name = spec.Name
		} else if name == "" {
			name = string(rune('a' + i))
		}
		spec.InitialCluster[name] = m.PeerURLs[0]
	}
	second, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = second.Kill() })
	low := r.Members[2]
	g.Eventually(low.Process().Done(), "2m").Should(BeClosed(), "the member with the lower limit ends")
	again, err := low.Restart(r.CA)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = again.Kill() })
	g.Eventually(again.Process().Done(), "2m").Should(BeClosed(), "and does not start again")
}
