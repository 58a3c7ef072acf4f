package verify

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// killAt tells a child of a test at which step to die, and in which directory.
const killAt = "HOLDFAST_TEST_KILL_AT"

func TestMain(m *testing.M) {
	if at := os.Getenv(killAt); at != "" {
		step, dir, _ := strings.Cut(at, ":")
		check := newcomer(dir)
		check.step = func(done string) {
			if done == step {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		_ = check.Run(context.Background())
		os.Exit(3) // it outlived the step
	}
	os.Exit(m.Run())
}

// canned is an etcd that always answers the same.
type canned struct {
	ring   quorum.Ring
	status etcd.Status
	err    error
}

func (c canned) Read(context.Context) quorum.Ring                    { return c.ring }
func (c canned) Status(context.Context, string) (etcd.Status, error) { return c.status, c.err }
func (c canned) Contacts(context.Context) []etcd.Contact             { return nil }
func (c canned) Past(context.Context, string, []byte, int64) (*mvccpb.KeyValue, bool, error) {
	return nil, false, c.err
}
func (c canned) Linearizable(context.Context, string) error { return c.err }

// newcomer is the check of a host whose member 1 was just added to the ring of member 2.
func newcomer(dir string) *Membership {
	peers := func(a, b string) hostenv.Peers {
		return hostenv.Peers{a: {"https://10.0.0.1:2380"}, b: {"https://10.0.0.2:2380"}}
	}
	return &Membership{
		Etcd: canned{
			ring: quorum.Ring{Known: true, Leader: 2, Members: []quorum.Member{
				{ID: 1, Learner: true, PeerURLs: []string{"https://10.0.0.1:2380"}},
				{ID: 2, Name: "b", PeerURLs: []string{"https://10.0.0.2:2380"}, ClientURLs: []string{"https://10.0.0.2:2379"}},
			}},
			status: etcd.Status{Member: 2, Cluster: 77, Leader: 2, DBSize: 20 << 10, Term: 3, Commit: 40, Revision: 20},
		},
		Environment: hostenv.Environment{State: hostenv.StateExisting, InitialCluster: peers("a", "b"), Members: peers("1", "2")},
		PeerURL:     "https://10.0.0.1:2380", DataDir: dir, Timeout: 5 * time.Second, QuorumWait: time.Second, Out: &bytes.Buffer{},
	}
}

// olderData is a data directory with an older member's log and database, and something else.
func olderData(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	writeLog(t, dir, 9)
	put(t, filepath.Join(dir, "member", "snap", "db"), "the database")
	put(t, filepath.Join(dir, "precious"), "years of work")
	return dir
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// writeLog makes a log of member id of cluster 77, by etcd's own hand, that ends at index 9 in term 2.
func writeLog(t *testing.T, dir string, id uint64) {
	t.Helper()
	log := emptyLog(t, dir, id, 77)
	state := &raftpb.HardState{Term: new(uint64(2)), Commit: new(uint64(8))}
	err := log.Save(state, []*raftpb.Entry{{Index: new(uint64(9)), Term: new(uint64(2))}})
	if err := errors.Join(err, log.Close()); err != nil {
		t.Fatal(err)
	}
}

// emptyLog makes a log that says whose it is, and no more.
func emptyLog(t *testing.T, dir string, id, cluster uint64) *wal.WAL {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: &id, ClusterID: &cluster})
	if err != nil {
		t.Fatal(err)
	}
	log, err := wal.Create(nil, filepath.Join(dir, "member", "wal"), metadata)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// archived wants the older data whole in one place, and an empty data directory.
func archived(t *testing.T, dir string) {
	t.Helper()
	aside, err := filepath.Glob(dir + "-removed-*")
	if err != nil || len(aside) != 1 {
		t.Fatalf("archives: %q, %v", aside, err)
	}
	for name, want := range map[string]string{"precious": "years of work", "member/snap/db": "the database"} {
		if got, err := os.ReadFile(filepath.Join(aside[0], name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 0 {
		t.Errorf("the new data directory: %v, %v", entries, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the new data directory: %v, %v", info.Mode(), err)
	}
}

// TestArchive: whichever step it is killed after, and if it is not, the next run ends the same way.
func TestArchive(t *testing.T) {
	for _, step := range []string{"", "locked", "renamed", "synced", "made"} {
		t.Run("killed after "+step, func(t *testing.T) {
			dir := olderData(t)
			if step != "" {
				child := exec.CommandContext(t.Context(), os.Args[0])
				child.Env = append(os.Environ(), killAt+"="+step+":"+dir)
				out, err := child.CombinedOutput()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the child was not killed there: %v\n%s", err, out)
				}
			}
			if err := newcomer(dir).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			archived(t, dir)
			// And once more: an empty directory is not archived.
			if err := newcomer(dir).Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			archived(t, dir)
		})
	}
}

// TestArchiveNames: a name that is taken is not written over.
func TestArchiveNames(t *testing.T) {
	dir := olderData(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if aside, err := archive(dir, now, func(string) {}); err != nil || aside != dir+"-removed-20260102T030405Z" {
		t.Fatal(aside, err)
	}
	archived(t, dir)
	next := filepath.Join(dir, "member", "snap", "db")
	put(t, next, "the next database")
	if _, err := archive(dir, now, func(string) {}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	if got, err := os.ReadFile(next); err != nil || string(got) != "the next database" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestArchiveRefuses: each refusal leaves everything where it is.
func TestArchiveRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, m *Membership)
		want  string
	}{
		{"a database in use", func(t *testing.T, m *Membership) { flock(t, filepath.Join(m.DataDir, "member", "snap", "db")) }, "is in use: another process holds a lock on"},
		{"a symbolic link", func(t *testing.T, m *Membership) {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(m.DataDir, link); err != nil {
				t.Fatal(err)
			}
			m.DataDir = link
		}, "is a symbolic link"},
		{"no room", func(_ *testing.T, m *Membership) {
			e := m.Etcd.(canned)
			e.status.DBSize = 1 << 60
			m.Etcd = e
		}, "free, and the ring's data take 1024.0 PiB."},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := olderData(t)
			m := newcomer(dir)
			c.spoil(t, m)
			err := m.Run(t.Context())
			var refused *Refusal
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.want) || refused.Advice == "" {
				t.Fatalf("got %v, want a refusal with %q", err, c.want)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "precious")); err != nil || string(got) != "years of work" {
				t.Errorf("the data are not where they were: %q, %v", got, err)
			}
		})
	}
}

func TestReadDisk(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(dir string)
		want  Holding
	}{
		{"no directory", func(string) {}, HoldingNothing},
		{"an empty one", func(dir string) { put(t, filepath.Join(dir, "lost+found", "x"), "") }, HoldingNothing},
		{"a log", func(dir string) { writeLog(t, dir, 9) }, HoldingData},
		{"no log yet", func(dir string) { put(t, filepath.Join(dir, "member", "snap", "db"), "x") }, HoldingNoLog},
		{"an empty log", func(dir string) { put(t, logFile(dir, 0), "") }, HoldingGarbled},
		{"noise", func(dir string) { put(t, logFile(dir, 0), strings.Repeat("\xff", 4096)) }, HoldingGarbled},
		{"zeros", func(dir string) { put(t, logFile(dir, 0), strings.Repeat("\x00", 4096)) }, HoldingGarbled},
		{"a torn newest file", func(dir string) {
			writeLog(t, dir, 9)
			put(t, logFile(dir, 1), "\x04\x00")
		}, HoldingData},
		{"a file that is none of a log's", func(dir string) {
			writeLog(t, dir, 9)
			copyFile(t, strayLog(t), filepath.Join(dir, "member", "wal", "zz-backup.wal"))
			copyFile(t, strayLog(t), logFile(dir, 1)+".bak.wal")
		}, HoldingData},
		{"nothing but such a file", func(dir string) {
			copyFile(t, strayLog(t), filepath.Join(dir, "member", "wal", "zz-backup.wal"))
		}, HoldingNoLog},
	} {
		dir := filepath.Join(t.TempDir(), "[data]*")
		c.write(dir)
		got, err := readDisk(dataIn(dir, ""))
		if err != nil || got.Holding != c.want || (got.Holding == HoldingData) != (got.Member == 9) || (got.Holding == HoldingGarbled) != (got.Why != "") {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

func logFile(dir string, sequence int) string {
	return filepath.Join(dir, "member", "wal", fmt.Sprintf("%016x-%016x.wal", sequence, sequence*10))
}

// strayLog is a file of another member's log.
func strayLog(t *testing.T) string {
	dir := t.TempDir()
	writeLog(t, dir, 13)
	return logFile(dir, 0)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	put(t, to, string(text))
}

// FuzzLog: no bytes make reading a log fail other than by an error.
func FuzzLog(f *testing.F) {
	f.Add([]byte{4, 0, 0, 0, 0, 0, 0, 0x84, 8, 4, 16, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		put(t, logFile(dir, 0), string(text))
		disk, err := readDisk(dataIn(dir, ""))
		if err != nil || disk.Holding != HoldingData && disk.Holding != HoldingGarbled {
			t.Errorf("%+v, %v", disk, err)
		}
		_, _ = readLog(dataIn(dir, ""))
	})
}

// FuzzDatabase: no bytes make reading a database fail other than by an error.
func FuzzDatabase(f *testing.F) {
	f.Add([]byte("the database"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		ownData(t, dir)
		file := filepath.Join(dir, "member", "snap", "db")
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		put(t, file, string(append(whole[:min(len(whole), 2*os.Getpagesize())], text...)))
		_, _, _ = readDatabase(dir, []int64{3})
	})
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// ownData is a data directory of member 1, which has started, with revision 5 at index 8.
func ownData(t *testing.T, dir string) {
	t.Helper()
	writeLog(t, dir, 1)
	snap := filepath.Join(dir, "member", "snap")
	if err := os.MkdirAll(snap, 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(snap, "db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		meta, err1 := tx.CreateBucket([]byte("meta"))
		keys, err2 := tx.CreateBucket([]byte("key"))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		return errors.Join(
			meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, 8)),
			keys.Put(append(binary.BigEndian.AppendUint64(nil, 5), "_\x00\x00\x00\x00\x00\x00\x00\x00"...), nil),
		)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}
