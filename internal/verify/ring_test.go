package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// realRing is a ring of etcd processes with what the checks need.
type realRing struct {
	*ring.Ring
	admin *clientv3.Client
	nodes []quorum.Node
}

func startRing(t *testing.T, n int) *realRing {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := ring.Start(ctx, t.TempDir(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	admin, err := r.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	real := &realRing{Ring: r, admin: admin}
	for _, m := range r.Members {
		real.node(m.Spec())
	}
	return real
}

func (r *realRing) node(spec ring.MemberSpec) {
	r.nodes = append(r.nodes, quorum.Node{Name: spec.Name, Addresses: []netip.Addr{netip.MustParseAddr(spec.Address)}})
}

// client is a client as holdfast verify makes one, that knows of the given members.
// probe asks a member for its health.
func (r *realRing) probe(t *testing.T, m *ring.Member) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := Health(ctx, r.client(t, m), m.ClientURL())
		return err
	}
}

func (r *realRing) client(t *testing.T, members ...*ring.Member) *etcd.Client {
	t.Helper()
	config := etcd.Config{CACert: r.Files.CA, Cert: r.Files.Cert, Key: r.Files.Key}
	for _, m := range members {
		config.Endpoints = append(config.Endpoints, m.ClientURL())
	}
	c, err := etcd.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// check is the check of a member's host, with the environment that Holdfast would render now.
func (r *realRing) check(t *testing.T, spec ring.MemberSpec) *Membership {
	t.Helper()
	s := &quorum.Snapshot{Ring: r.client(t, r.Members...).Read(t.Context()), Nodes: r.nodes}
	environments, err := hostenv.Environments(quorum.NewJoin(s))
	if err != nil {
		t.Fatal(err)
	}
	return &Membership{
		Etcd: r.client(t, r.Members...), Environment: environments[spec.Name], PeerURL: spec.Ports.PeerURL(spec.Address),
		DataDir: spec.DataDir(), Timeout: 20 * time.Second, QuorumWait: 300 * time.Millisecond, Out: &bytes.Buffer{},
	}
}

func (r *realRing) id(t *testing.T, spec ring.MemberSpec) uint64 {
	t.Helper()
	list, err := r.admin.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Members {
		if hostenv.HasURL(m.GetPeerURLs(), spec.Ports.PeerURL(spec.Address)) {
			return m.GetID()
		}
	}
	t.Fatalf("no member at %s", spec.Address)
	return 0
}

func (r *realRing) cluster(t *testing.T) uint64 {
	t.Helper()
	list, err := r.admin.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list.Header.GetClusterId()
}

// TestRing is a host's life as the check sees it, on a real ring.
func TestRing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	g.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	r := startRing(t, 3)
	ctx := t.Context()

	// etcd's own log says whose data these are.
	for _, m := range r.Members {
		disk, err := readDisk(dataIn(m.Spec().DataDir(), ""))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(disk).To(Equal(Disk{Holding: HoldingData, Member: quorum.MemberID(r.id(t, m.Spec())), Cluster: r.cluster(t)}))
	}
	// And an etcd that runs on them holds locks on them.
	_, err := lockData(dataIn(r.Members[0].Spec().DataDir(), ""))
	g.Expect(err).To(MatchError(ContainSubstring("is in use")))

	// A host that is not listed waits; with the environment of before it is refused when it is listed.
	spec := r.Next("next")
	r.node(spec)
	early, out := r.check(t, spec), &transcript{}
	early.Out = out
	done := make(chan error, 1)
	go func() { done <- early.Run(ctx) }()
	g.Eventually(out.String).Should(MatchRegexp(`Waiting \(\d+ s of 20 s\): etcd lists no member at ` + regexp.QuoteMeta(early.PeerURL) + " yet"))
	g.Eventually(func() error {
		_, err := r.admin.MemberAddAsLearner(ctx, []string{early.PeerURL})
		return err
	}).Should(Succeed())
	g.Eventually(done).Should(Receive(MatchError(ContainSubstring("Not expected: etcd lists unstarted member"))))

	// With the environment of now it may start, and what it starts with works.
	check := r.check(t, spec)
	g.Expect(check.Run(ctx)).To(Succeed())
	spec.Existing, spec.InitialCluster = true, map[string]string{}
	for name, urls := range check.Environment.InitialCluster {
		spec.InitialCluster[name] = urls[0]
	}
	learner, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = learner.Kill() })
	probe := func(m *ring.Member) func() error { return r.probe(t, m) }
	g.Eventually(probe(learner)).Should(MatchError(ContainSubstring("is a learner")))
	g.Expect(probe(r.Members[0])()).To(Succeed())

	// It is killed and starts on its own data, whether etcd has its name or not.
	g.Expect(learner.Kill()).To(Succeed())
	check = r.check(t, spec)
	g.Expect(check.Run(ctx)).To(Succeed())
	g.Expect(filepath.Glob(spec.DataDir() + "-removed-*")).To(BeEmpty())

	// Two of three voters die: a member that is left would still answer from its own data.
	g.Expect(r.Members[1].Kill()).To(Succeed())
	g.Expect(r.Members[2].Kill()).To(Succeed())
	alone, err := r.Client(r.Members[0].ClientURL())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = alone.Close() })
	_, err = alone.Get(ctx, "k", clientv3.WithSerializable())
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(probe(r.Members[0])).Should(MatchError(Or(ContainSubstring("no leader"), ContainSubstring("no linearizable read"))))
	g.Expect(probe(r.Members[1])()).To(MatchError(ContainSubstring("does not answer")))

	// All of them are down, so nobody can be asked, and each starts on its own data. Without data it waits.
	checks := []*Membership{check}
	g.Expect(r.Members[0].Kill()).To(Succeed())
	for _, m := range r.Members {
		again := *check
		again.Etcd, again.PeerURL, again.DataDir = r.client(t, r.Members...), m.PeerURL(), m.Spec().DataDir()
		checks = append(checks, &again)
	}
	for _, c := range checks {
		out := &bytes.Buffer{}
		c.Out = out
		g.Expect(c.Run(ctx)).To(Succeed())
		g.Expect(out.String()).To(ContainSubstring("without its members up the ring cannot answer"))
	}
	lost := *checks[1]
	lost.DataDir, lost.Timeout = filepath.Join(t.TempDir(), "data"), time.Second
	g.Expect(lost.Run(ctx)).To(MatchError(And(ContainSubstring("not within 1s"), ContainSubstring("no data of an expected member"))))
	for i, m := range r.Members {
		r.Members[i], err = ring.StartMember(r.CA, m.Spec())
		g.Expect(err).NotTo(HaveOccurred())
	}
	for _, m := range r.Members {
		g.Eventually(probe(m)).Should(Succeed())
	}

	// The learner is removed and added again under another ID: its data are the older member's now.
	_, err = r.admin.MemberRemove(ctx, r.id(t, spec))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { _, err := r.admin.MemberAddAsLearner(ctx, []string{check.PeerURL}); return err }).Should(Succeed())
	check = r.check(t, spec)
	g.Expect(check.Run(ctx)).To(Succeed())
	g.Expect(filepath.Glob(spec.DataDir() + "-removed-*")).To(HaveLen(1))

	// A started member whose data are lost does not start without them.
	gone := r.check(t, r.Members[0].Spec())
	gone.DataDir = filepath.Join(t.TempDir(), "data")
	g.Expect(gone.Run(ctx)).To(MatchError(ContainSubstring("has started before, but no data are here")))
}

// TestLearnerThatGotNothing: it told etcd its client URLs and lost power before its first write to disk. It starts on
// the log that is there, and gets what it lacks.
func TestLearnerThatGotNothing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	r := startRing(t, 1)
	spec := r.Next("next")
	r.node(spec)
	added, err := r.admin.MemberAddAsLearner(t.Context(), []string{spec.Ports.PeerURL(spec.Address)})
	g.Expect(err).NotTo(HaveOccurred())
	check := r.check(t, spec)
	g.Expect(check.Run(t.Context())).To(Succeed())
	spec.Existing, spec.InitialCluster = true, map[string]string{}
	for name, urls := range check.Environment.InitialCluster {
		spec.InitialCluster[name] = urls[0]
	}
	start := func() *ring.Member {
		learner, err := ring.StartMember(r.CA, spec)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = learner.Kill() })
		return learner
	}
	learner := start()
	g.Eventually(func() []string {
		list, err := r.admin.MemberList(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		k := slices.IndexFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.GetID() == added.Member.GetID() })
		return list.Members[k].GetClientURLs() // they are in the order of their IDs
	}).ShouldNot(BeEmpty())
	g.Expect(learner.Kill()).To(Succeed())
	// It may have written, and told the leader so, before it was killed. A leader that starts anew does not rely on that.
	g.Expect(r.Members[0].Kill()).To(Succeed())
	r.Members[0], err = ring.StartMember(r.CA, r.Members[0].Spec())
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(r.probe(t, r.Members[0])).Should(Succeed())

	g.Expect(os.RemoveAll(spec.DataDir())).To(Succeed())
	g.Expect(emptyLog(t, spec.DataDir(), added.Member.GetID(), added.Header.GetClusterId()).Close()).To(Succeed())
	snap := filepath.Join(spec.DataDir(), "member", "snap")
	g.Expect(os.MkdirAll(snap, 0o700)).To(Succeed())
	db, err := bbolt.Open(filepath.Join(snap, "db"), 0o600, nil) // etcd opens it before its log
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(db.Close()).To(Succeed())
	g.Expect(r.check(t, spec).Run(t.Context())).To(Succeed())
	learner = start()
	t.Cleanup(func() {
		if text, err := os.ReadFile(filepath.Join(spec.Dir, "etcd.log")); t.Failed() {
			t.Logf("%s's log (%v):\n%s", spec.Name, err, text[max(0, len(text)-8000):])
		}
	})
	g.Eventually(func() error {
		_, err := r.admin.MemberPromote(t.Context(), added.Member.GetID())
		return err
	}).Should(Succeed(), "it caught up")
	g.Eventually(r.probe(t, learner)).Should(Succeed(), "it votes")
}

func TestHealthGolden(t *testing.T) {
	for _, c := range []struct {
		etcd canned
		want string
	}{
		{canned{err: errors.New("https://10.0.0.1:2379: no answer in time")}, "the member does not answer: https://10.0.0.1:2379: no answer in time"},
		{canned{status: etcd.Status{Member: 0x1f, Learner: true, Leader: 2}}, "member 1f is a learner: it does not vote yet"},
		{canned{status: etcd.Status{Member: 0x1f}}, "member 1f knows of no leader: the ring lost its quorum, or this member lost the ring"},
	} {
		if _, err := Health(t.Context(), c.etcd, "https://10.0.0.1:2379"); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	said, err := Health(t.Context(), canned{status: etcd.Status{Member: 0x1f, Leader: 2}}, "https://10.0.0.1:2379")
	if err != nil || !strings.HasPrefix(said, "member 1f follows leader 2 and gave a linearizable read in ") {
		t.Errorf("%q, %v", said, err)
	}
}

func TestStorage(t *testing.T) {
	dir := olderData(t)
	run := func(s Storage) (string, error) {
		out := &bytes.Buffer{}
		s.Out = out
		err := s.Run()
		return out.String(), err
	}
	said, err := run(Storage{DataDir: dir, Quota: 1})
	if err != nil || !strings.Contains(said, "fsync       p50 ") || !strings.Contains(said, "directory   "+dir+", mode 0700") || !strings.Contains(said, "quota       1 B, of which the database has 12 B") {
		t.Errorf("%v\n%s", err, said)
	}
	if said, err := run(Storage{DataDir: dir, Quota: 1 << 60, MaxFsync: 1}); err != nil || !strings.Contains(said, "warning     ") || !strings.Contains(said, "make room") || !strings.Contains(said, "more than --max-fsync") {
		t.Errorf("a member with data of its own is not started: %v\n%s", err, said)
	}
	if said, err := run(Storage{DataDir: filepath.Join(dir, "none", "yet"), Quota: 1}); err == nil {
		t.Errorf("no parent either, and no error:\n%s", said)
	}
	if said, err := run(Storage{DataDir: filepath.Join(dir, "none"), Quota: 1}); err != nil || !strings.Contains(said, "does not exist yet; looking at "+dir) {
		t.Errorf("%v\n%s", err, said)
	}
	for want, s := range map[string]Storage{
		"the database may grow by 1024.0 PiB: make room": {DataDir: filepath.Join(dir, "none"), Quota: 1 << 60},
		"more than --max-fsync 1ns":                      {DataDir: filepath.Join(dir, "none"), MaxFsync: 1},
		"is no directory.":                               {DataDir: filepath.Join(dir, "precious")},
		fmt.Sprintf("has mode 0755; only its owner may use it: chmod 0700 %s", filepath.Join(dir, "open")): {DataDir: filepath.Join(dir, "open")},
	} {
		put(t, filepath.Join(dir, "open", "x"), "")
		chmod(t, filepath.Join(dir, "open"), 0o755)
		_, err := run(s)
		var refused *Refusal
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
	}
	if entries, err := filepath.Glob(filepath.Join(dir, ".holdfast*")); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %q, %v", entries, err)
	}
}
