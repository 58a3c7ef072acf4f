package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/ring"
	"github.com/holdfast-dev/holdfast/test/writer"
)

// snapshotOf is the command for a member's data, and what it says.
func snapshotOf(t *testing.T, m *ring.Member) (*Snapshot, *bytes.Buffer) {
	t.Helper()
	program, err := assets.Path("etcd")
	if err != nil {
		t.Fatal(err)
	}
	out := &bytes.Buffer{}
	return &Snapshot{DataDir: m.Spec().DataDir(), File: filepath.Join(t.TempDir(), "snapshot.db"), Etcd: program, Out: out}, out
}

// sum is of every file in a directory, by name.
func sum(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			out[path] = ""
			return err
		}
		text, err := os.ReadFile(path)
		out[path] = fmt.Sprintf("%x", sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// end is how far the log of a member that is stopped goes.
func end(t *testing.T, m *ring.Member) *logFrom {
	t.Helper()
	d := dataIn(m.Spec().DataDir(), "")
	disk, err := readDisk(d)
	if err != nil {
		t.Fatal(err)
	}
	log, err := openLog(d.wal, wal.OpenForRead)
	if err == nil {
		_ = log.Close()
		err = log.judge(disk.Member, 0, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// add puts entries at the end of a stopped member's log, which it does not know to be committed.
func add(t *testing.T, m *ring.Member, entries ...*raftpb.Entry) {
	t.Helper()
	at := end(t, m)
	log, err := openLog(dataIn(m.Spec().DataDir(), "").wal, wal.Open)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		e.Term, e.Index = &at.term, new(at.index+uint64(i)+1)
	}
	if err := errors.Join(log.Save(log.state, entries), log.Close()); err != nil {
		t.Fatal(err)
	}
}

func putEntry(t *testing.T, key string) *raftpb.Entry {
	t.Helper()
	text, err := proto.Marshal(&etcdserverpb.InternalRaftRequest{
		Header: &etcdserverpb.RequestHeader{ID: uint64(time.Now().UnixNano())}, Put: &etcdserverpb.PutRequest{Key: []byte(key), Value: []byte("v")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &raftpb.Entry{Type: raftpb.EntryNormal.Enum(), Data: text}
}

func removal(t *testing.T, member uint64) *raftpb.Entry {
	t.Helper()
	text, err := proto.Marshal(&raftpb.ConfChange{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: &member})
	if err != nil {
		t.Fatal(err)
	}
	return &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Data: text}
}

// alone restores a snapshot on a member's host as a ring of that member, and starts it.
func (r *realRing) alone(t *testing.T, file string, m *ring.Member) *clientv3.Client {
	t.Helper()
	r.fromSnapshot(t, file, []*ring.Member{m}, []*ring.Member{m}, "--initial-cluster-token", file, "--bump-revision", "1000000000", "--mark-compacted")
	for i := range r.Members {
		if r.Members[i] == m {
			r.start(t, i)
		}
	}
	client, err := r.Client(m.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestSnapshot: all members are killed under writes. The one whose log goes farthest has every acknowledged write, and the ring that
// is restored from it is another one. The data stay as they are.
func TestSnapshot(t *testing.T) {
	g := NewWithT(t)
	r := startRing(t, 3)
	old, err := r.admin.MemberList(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	s, _ := snapshotOf(t, r.Members[0])
	g.Expect(s.Run(t.Context())).To(MatchError(ContainSubstring("The data directory is in use")))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	writes := writer.New(r.admin)
	var writing sync.WaitGroup
	writing.Go(func() { writes.Run(ctx) })
	g.Eventually(func() int { return writes.Stats().Acked }, patience).Should(BeNumerically(">", 30))
	for _, m := range r.Members {
		g.Expect(m.Kill()).To(Succeed())
	}
	stop()
	writing.Wait()

	best := r.Members[0]
	for _, m := range r.Members[1:] {
		if a, b := end(t, m), end(t, best); a.term > b.term || a.term == b.term && a.index > b.index {
			best = m
		}
	}
	before := sum(t, best.Spec().DataDir())
	s, out := snapshotOf(t, best)
	s.DryRun = true
	g.Expect(s.Run(t.Context())).To(Succeed())
	at := end(t, best)
	g.Expect(out.String()).To(And(ContainSubstring("its log goes up to term %d, index %d.", at.term, at.index), ContainSubstring("Dry run: nothing was written.")))
	g.Expect(s.File).NotTo(BeAnExistingFile())
	program := s.Etcd
	s.DryRun, s.Etcd = false, "no-such-etcd"
	g.Expect(s.Run(t.Context())).To(MatchError(ContainSubstring("no-such-etcd")))
	s.Etcd = program
	t.Setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1") // as on a host of etcd
	g.Expect(errors.Join(s.Run(t.Context()), os.Unsetenv("ETCD_LISTEN_CLIENT_URLS"))).To(Succeed())
	g.Expect(sum(t, best.Spec().DataDir())).To(Equal(before))
	g.Expect(os.ReadDir(filepath.Dir(s.File))).To(HaveLen(1), "nothing is left beside the file")
	made := sum(t, s.File)
	g.Expect(s.Run(t.Context())).To(MatchError(ContainSubstring("is there already")))
	g.Expect(sum(t, s.File)).To(Equal(made))

	client := r.alone(t, s.File, best)
	lost, err := writes.LostIn(t.Context(), client)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(lost).To(BeZero(), "of %d acknowledged writes", writes.Stats().Acked)
	now, err := client.MemberList(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now.Members).To(HaveLen(1))
	g.Expect(now.Header.GetClusterId()).NotTo(Equal(old.Header.GetClusterId()))
}

// TestSnapshotOfPromoted: etcd before 3.5.20 kept listing a member as a learner in its database that it had promoted. Raft knew better.
func TestSnapshotOfPromoted(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	r.put(t, "k", 5)
	m := r.Members[0]
	g.Expect(m.Stop()).To(Succeed())
	disk, err := readDisk(dataIn(m.Spec().DataDir(), ""))
	g.Expect(err).NotTo(HaveOccurred())
	relist := func(change func(tx *bbolt.Tx, listed map[string]any)) {
		db, err := bbolt.Open(filepath.Join(m.Spec().DataDir(), "member", "snap", "db"), 0o600, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(db.Update(func(tx *bbolt.Tx) error {
			members, key, listed := tx.Bucket([]byte("members")), []byte(strconv.FormatUint(uint64(disk.Member), 16)), map[string]any{}
			g.Expect(json.Unmarshal(members.Get(key), &listed)).To(Succeed())
			change(tx, listed)
			text, err := json.Marshal(listed)
			return errors.Join(err, members.Put(key, text))
		})).To(Succeed())
		g.Expect(db.Close()).To(Succeed())
	}
	relist(func(_ *bbolt.Tx, listed map[string]any) { listed["isLearner"] = true })
	old, err := assets.Before("etcd", "3.6")
	g.Expect(err).NotTo(HaveOccurred())
	s, _ := snapshotOf(t, m)
	s.DryRun = !old // what reads members from there would not start on them
	g.Expect(s.Run(t.Context())).To(Succeed())
	relist(func(tx *bbolt.Tx, _ map[string]any) {
		g.Expect(tx.Bucket([]byte("meta")).Put([]byte("confState"), []byte(`{"learners":[1]}`))).To(Succeed())
	})
	s, _ = snapshotOf(t, m)
	g.Expect(s.Run(t.Context())).To(MatchError(ContainSubstring("is a learner, or was removed")))
}

// TestSnapshotOfTail: what the member does not know to be committed is taken, with a change of members in it, and up to its own removal.
func TestSnapshotOfTail(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 3)
	list, err := r.admin.MemberList(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	ids := map[string]uint64{}
	for _, m := range list.Members {
		ids[m.GetName()] = m.GetID()
	}
	r.put(t, "k", 5)
	g.SetDefaultEventuallyTimeout(patience)
	r.alike(g, t) // two of three acknowledge a write
	for _, m := range r.Members {
		g.Expect(m.Kill()).To(Succeed())
	}
	m := r.Members[0]
	add(t, m, putEntry(t, "tail-1"), removal(t, ids["m1"]), putEntry(t, "tail-2"), removal(t, ids["m0"]), putEntry(t, "after-removal"))
	newest, err := logFiles(dataIn(m.Spec().DataDir(), ""))
	g.Expect(err).NotTo(HaveOccurred())
	torn, err := os.OpenFile(newest[len(newest)-1], os.O_RDWR, 0)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(errors.Join(tear(torn), torn.Close())).To(Succeed())
	_, err = openLog(dataIn(m.Spec().DataDir(), "").wal, wal.Open)
	g.Expect(err).To(MatchError(io.ErrUnexpectedEOF))

	s, _ := snapshotOf(t, m)
	g.Expect(s.Run(t.Context())).To(Succeed())
	client := r.alone(t, s.File, m)
	got, err := client.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	g.Expect(err).NotTo(HaveOccurred())
	var keys []string
	for _, kv := range got.Kvs {
		keys = append(keys, string(kv.Key))
	}
	g.Expect(keys).To(And(ContainElements("k-4", "tail-1", "tail-2"), Not(ContainElement("after-removal"))))
}

// tear leaves half a record at the end of a log: a length, and nothing behind it.
func tear(f *os.File) error {
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	end := len(bytes.TrimRight(text, "\x00"))
	_, err = f.WriteAt([]byte{0x40}, int64(end+7)&^7)
	return errors.Join(err, f.Truncate(int64(end+7)&^7+8+16))
}

// TestSnapshotRefused: of a learner, of a member that was removed, of what is no member's data.
func TestSnapshotRefused(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := startRing(t, 1)
	spec := r.Next("next")
	added, err := r.admin.MemberAddAsLearner(t.Context(), []string{spec.Ports.PeerURL(spec.Address)})
	g.Expect(err).NotTo(HaveOccurred())
	spec.InitialCluster = map[string]string{"m0": r.Members[0].PeerURL(), "next": spec.Ports.PeerURL(spec.Address)}
	learner, err := ring.StartMember(r.CA, spec)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = learner.Kill() })
	d := dataIn(spec.DataDir(), "")
	g.Eventually(func() (string, error) {
		status, err := r.client(t, learner).Status(t.Context(), learner.ClientURL())
		return fmt.Sprint(status.Learner, status.Member == quorum.MemberID(added.Member.GetID())), err
	}, patience).Should(Equal("true true"))
	g.Expect(learner.Kill()).To(Succeed())
	refused := func(s *Snapshot, text string) {
		t.Helper()
		before := sum(t, s.DataDir)
		var refusal *Refusal
		if err := s.Run(t.Context()); !errors.As(err, &refusal) || !strings.Contains(refusal.Reason, text) {
			t.Errorf("got %v, want a refusal that says %q", err, text)
		}
		g.Expect(sum(t, s.DataDir)).To(Equal(before))
		if s.File != "" {
			g.Expect(s.File).NotTo(BeAnExistingFile())
		}
	}
	s, _ := snapshotOf(t, learner)
	refused(s, "is a learner, or was removed")
	s.DryRun, s.File = true, ""
	refused(s, "is a learner, or was removed")

	// No data, and a directory that is not the one.
	g.Expect(os.Rename(d.dir, d.dir+"-learner")).To(Succeed())
	g.Expect(os.Mkdir(d.dir, 0o700)).To(Succeed())
	refused(s, "holds no data of a member")
	s.DataDir = filepath.Dir(d.dir)
	refused(s, "holds no data of a member")

	// A voter that was removed, and knows that this is committed.
	g.Expect(r.Members[0].Kill()).To(Succeed())
	at := end(t, r.Members[0])
	only, err := readDisk(dataIn(r.Members[0].Spec().DataDir(), ""))
	g.Expect(err).NotTo(HaveOccurred())
	at.state.Commit = new(at.index + 1)
	log, err := openLog(dataIn(r.Members[0].Spec().DataDir(), "").wal, wal.Open)
	g.Expect(err).NotTo(HaveOccurred())
	last := removal(t, uint64(only.Member))
	last.Term, last.Index = &at.term, at.state.Commit
	g.Expect(errors.Join(log.Save(at.state, []*raftpb.Entry{last}), log.Close())).To(Succeed())
	s, _ = snapshotOf(t, r.Members[0])
	refused(s, "is a learner, or was removed")
}
