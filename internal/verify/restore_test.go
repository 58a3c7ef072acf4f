package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// put writes n keys, each with a value of this call's own.
func (r *realRing) put(t *testing.T, prefix string, n int) {
	t.Helper()
	for i := range n {
		var err error
		for range 50 { // an election is under way after a start
			if _, err = r.admin.Put(t.Context(), fmt.Sprintf("%s-%d", prefix, i), time.Now().String()); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (r *realRing) snapshot(t *testing.T, file string) {
	t.Helper()
	from, err := r.admin.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	to, err := os.Create(file)
	if err == nil {
		_, err = io.Copy(to, from)
		err = errors.Join(err, to.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// restore kills all members and restores some as a ring of those given.
func (r *realRing) restore(t *testing.T, file string, members, all []*ring.Member, flags ...string) {
	t.Helper()
	for _, m := range r.Members {
		if err := m.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	r.fromSnapshot(t, file, members, all, flags...)
}

// fromSnapshot puts the data of members aside and gives them the snapshot's, as members of a ring of all
// those given. It starts nothing.
func (r *realRing) fromSnapshot(t *testing.T, file string, members, all []*ring.Member, flags ...string) {
	t.Helper()
	var cluster []string
	for _, m := range all {
		cluster = append(cluster, m.Spec().Name+"="+m.PeerURL())
	}
	for _, m := range members {
		r.restoreAt(t, file, m.Spec(), strings.Join(cluster, ","), flags...)
	}
}

// restoreAt does that for a member of a cluster of that text, and returns its ID.
func (r *realRing) restoreAt(t *testing.T, file string, spec ring.MemberSpec, cluster string, flags ...string) uint64 {
	t.Helper()
	etcdutl, err := assets.Path("etcdutl")
	if err != nil {
		t.Fatal(err)
	}
	dir := spec.DataDir()
	if err := os.Rename(dir, dir+"-before-"+fmt.Sprint(time.Now().UnixNano())); err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"snapshot", "restore", file, "--name", spec.Name, "--data-dir", dir,
		"--initial-cluster", cluster, "--initial-advertise-peer-urls", spec.Ports.PeerURL(spec.Address),
	}, flags...)
	if out, err := exec.CommandContext(t.Context(), etcdutl, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	disk, err := readDisk(dataIn(dir, ""))
	if err != nil {
		t.Fatal(err)
	}
	return uint64(disk.Member)
}

func (r *realRing) start(t *testing.T, indexes ...int) {
	t.Helper()
	for _, i := range indexes {
		spec := r.Members[i].Spec()
		spec.Existing = true
		m, err := ring.StartMember(r.CA, spec)
		if err != nil {
			t.Fatal(err)
		}
		r.Members[i] = m
	}
	for _, i := range indexes {
		if err := ring.WaitHealthy(t.Context(), r.Config, r.Members[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// alike wants one hash of all keys from all members.
func (r *realRing) alike(g Gomega, t *testing.T) {
	t.Helper()
	hashes := map[uint32][]string{}
	g.Eventually(func() map[uint32][]string {
		clear(hashes)
		for _, m := range r.Members {
			if h, err := r.admin.HashKV(t.Context(), m.ClientURL(), 0); err == nil {
				hashes[h.Hash] = append(hashes[h.Hash], m.Spec().Name)
			}
		}
		return hashes
	}).Should(And(HaveLen(1), ContainElement(HaveLen(len(r.Members)))))
}

// said runs a check for at most this long, and returns what it ended with.
func said(t *testing.T, m *Membership, timeout time.Duration) error {
	t.Helper()
	m.Timeout = timeout
	return m.Run(t.Context())
}

// patience is for checks that pass: they end as soon as they do.
const patience = 3 * time.Minute

// says wants a check that goes on until its time-out to end with a text. On a slow computer etcd may not have answered by then.
func says(g *WithT, t *testing.T, m *Membership, text string) {
	t.Helper()
	g.Eventually(func() error { return said(t, m, 5*time.Second) }, patience, "50ms").Should(MatchError(ContainSubstring(text)))
}

// TestRestore: data from before a restore never join the restored ring, and those of it do.
func TestRestore(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(3 * time.Minute)
	g.SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	r := startRing(t, 3)
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	m := r.Members
	third := m[2].Spec()
	verify := func() *Membership { return r.check(t, third) }

	// A member that was away for long is of this ring, also when etcd has forgotten what it knew last.
	r.put(t, "before", 18)
	r.snapshot(t, snapshot)
	r.put(t, "after", 20)
	g.Expect(m[2].Kill()).To(Succeed())
	r.put(t, "away", 20)
	g.Expect(said(t, verify(), patience)).To(Succeed())
	now, err := r.admin.Get(t.Context(), "k")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = r.admin.Compact(t.Context(), now.Header.Revision)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(said(t, verify(), patience)).To(Succeed())
	// Nor is it when the snapshot comes to one host while the others go on.
	r.fromSnapshot(t, snapshot, m[2:], m)
	says(g, t, verify(), "they come from a snapshot")
	aside, err := filepath.Glob(third.DataDir() + "-before-*")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(errors.Join(os.RemoveAll(third.DataDir()), os.Rename(aside[0], third.DataDir()))).To(Succeed())
	r.start(t, 2)
	r.alike(g, t)

	// The same token: member and cluster are called what they were called before.
	r.restore(t, snapshot, m[:2], m)
	r.start(t, 0, 1)
	r.put(t, "restored", 60)
	says(g, t, verify(), "from before etcd was restored from a snapshot")
	// Without a quorum a member that still answers is enough to tell.
	lonely := verify()
	g.Expect(m[1].Kill()).To(Succeed())
	says(g, t, lonely, "from before etcd was restored from a snapshot")
	r.start(t, 1)
	// Put aside by hand, as the refusal says, the member begins anew.
	old := third.DataDir() + "-before"
	g.Expect(os.Rename(third.DataDir(), old)).To(Succeed())
	// But not as one of a new ring: it would make up the log's first entries, and never get what the snapshot held.
	anew := verify()
	anew.Environment.State, anew.Environment.Members = hostenv.StateNew, nil
	says(g, t, anew, "was restored from a snapshot")
	nameless, err := assets.Before("etcd", "3.6") // it restores no names, so this one may have lost its own and have voted
	g.Expect(err).NotTo(HaveOccurred())
	if nameless {
		says(g, t, verify(), "it may have voted already, and no data are here")
	} else {
		g.Expect(said(t, verify(), patience)).To(Succeed())
	}
	r.start(t, 2)
	r.alike(g, t)

	// One member alone, whose ID is what it was; the cluster's is another one.
	r.restore(t, snapshot, m[:1], m[:1])
	r.start(t, 0)
	r.put(t, "alone", 60)
	first := r.check(t, m[0].Spec())
	older, err := filepath.Glob(first.DataDir + "-before-*")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(older).To(HaveLen(2))
	for _, dir := range older {
		first.DataDir = dir
		says(g, t, first, "of cluster ")
	}

	// A new token, as the documentation has it: the old data are another member's, and are put aside.
	r.restore(t, snapshot, m[:2], m, "--initial-cluster-token", "restored-2026", "--bump-revision", "1000000000", "--mark-compacted")
	r.start(t, 0, 1)
	r.put(t, "bumped", 10)
	g.Expect(os.RemoveAll(third.DataDir())).To(Succeed())
	g.Expect(os.Rename(old, third.DataDir())).To(Succeed())
	if nameless {
		says(g, t, verify(), "it may have voted already, and the data here are those of member")
	} else {
		g.Expect(said(t, verify(), patience)).To(Succeed())
		g.Expect(filepath.Glob(third.DataDir() + "-removed-*")).To(HaveLen(1))
		r.start(t, 2)
		r.alike(g, t)
	}

	// All three from the snapshot: the last of them meets a ring that is ahead of it, and is of it.
	r.restore(t, snapshot, m, m, "--initial-cluster-token", "restored-again")
	r.start(t, 0, 1)
	r.put(t, "again", 10)
	g.Expect(said(t, verify(), patience)).To(Succeed())
	r.start(t, 2)
	r.alike(g, t)
}

// TestRestoreOfLittle: of a ring that held next to nothing, positions alone do not tell; what is written there does.
func TestRestoreOfLittle(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	r.snapshot(t, snapshot)
	r.put(t, "key", 40)
	_, err := r.admin.Defragment(t.Context(), r.Members[2].ClientURL()) // etcd writes to its database every 100 ms, and for this
	g.Expect(err).NotTo(HaveOccurred())
	r.restore(t, snapshot, r.Members[:2], r.Members)
	r.start(t, 0, 1)
	for range 40 { // these take an index and no revision
		_, err := r.admin.Grant(t.Context(), 600)
		g.Expect(err).NotTo(HaveOccurred())
	}
	r.put(t, "key", 60)
	says(g, t, r.check(t, r.Members[2].Spec()), "from before etcd was restored from a snapshot")
}

// TestWrongCA: etcd that answers to others is not silent.
func TestWrongCA(t *testing.T) {
	t.Parallel()
	r := startRing(t, 1)
	other, err := pki.NewAuthority("other")
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, err := ring.ClientConfig(other, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string]ring.ClientFiles{
		"CA":          {CA: foreign.CA, Cert: r.Files.Cert, Key: r.Files.Key},
		"certificate": {CA: r.Files.CA, Cert: foreign.Cert, Key: foreign.Key},
	} {
		t.Run(name, func(t *testing.T) {
			check := newcomer(filepath.Join(t.TempDir(), "data"))
			ownData(t, check.DataDir)
			check.QuorumWait, check.Out = 100*time.Millisecond, &bytes.Buffer{}
			client, err := etcd.New(etcd.Config{CACert: files.CA, Cert: files.Cert, Key: files.Key, Endpoints: []string{r.Members[0].ClientURL()}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			check.Etcd = client
			if err := said(t, check, 3*time.Second); err == nil || !strings.Contains(err.Error(), "--cacert, --cert and --key") {
				t.Errorf("got %v", err)
			}
		})
	}
}
