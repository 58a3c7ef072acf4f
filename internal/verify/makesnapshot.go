package verify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Snapshot makes a snapshot file of etcd from the data of a stopped member, with everything that is in its log.
type Snapshot struct {
	DataDir string
	WALDir  string // etcd's --wal-dir; "" for member/wal in DataDir
	File    string // that is made
	Etcd    string // etcd's program
	DryRun  bool
	Out     io.Writer
}

// Run makes the file, or fails with a Refusal. The data directory stays as it is: all is done on a copy.
func (s *Snapshot) Run(ctx context.Context) error {
	d := dataIn(filepath.Clean(s.DataDir), s.WALDir)
	beside, err := filepath.Abs(filepath.Dir(s.File)) // where the copy is made
	if err != nil {
		return err
	}
	if _, err := os.Lstat(s.File); !errors.Is(err, fs.ErrNotExist) { // a dry run has no File, which does not exist either
		return &Refusal{fmt.Sprintf("%s is there already, or cannot be looked at (%v).", s.File, err), "Nothing is overwritten: give another --out, or restore from that file if this command made it."}
	}
	disk, err := readDisk(d)
	if err != nil {
		return err
	}
	if disk.Holding != HoldingData {
		return &Refusal{
			fmt.Sprintf("%s holds no data of a member whose log can be read. %s", d.dir, disk.Why),
			"Give the directory that etcd has as --data-dir; if its log is elsewhere, that as --wal-dir.",
		}
	}
	// The database is read before it is locked: this process, too, could not open it then.
	at, _, err := readDatabase(d.dir, nil)
	if errors.Is(err, errLocked) {
		return inUse(filepath.Join(d.dir, "member", "snap", "db"), syscall.EWOULDBLOCK)
	} else if err != nil {
		return err
	}
	voter, err := votes(d.dir, disk.Member)
	if err != nil {
		return err
	}
	unlock, err := lockData(d)
	if err != nil {
		return err
	}
	defer unlock()
	log, err := openLog(d.wal, wal.OpenForRead)
	if err != nil {
		return err
	}
	_ = log.Close() // of one that is open for reading it is always an error
	if err := log.judge(disk.Member, at.Index, voter); err != nil {
		return err
	}
	s.say("Member %x of cluster %x: its log goes up to term %d, index %d.", disk.Member, disk.Cluster, log.term, log.index)
	s.say("It knows that the entries up to %d are committed, and its database has those up to %d, revision %d. All of that will be in the snapshot.",
		log.state.GetCommit(), at.Index, at.Revision)
	s.say("What other members acknowledged without this one is not here. Of members that make a quorum, the one with the highest term, and among\n" +
		"those the highest index, has every acknowledged write. Where no quorum's data are left, nothing shows whether writes are missing.")
	etcd, err := exec.LookPath(s.Etcd)
	if err != nil {
		return &Refusal{fmt.Sprintf("etcd's program is needed, and it cannot be executed: %v.", err), "Give its path as --etcd; it is in etcd's image, of the version that ran here."}
	}
	needed, err := filesIn(d.wal, filepath.Join(d.dir, "member", "snap"))
	if err != nil {
		return err
	}
	if s.File != "" {
		if err := room(beside, 2*needed); err != nil {
			return err
		}
	}
	if s.DryRun {
		s.say("Dry run: nothing was written.")
		return nil
	}
	return s.make(ctx, etcd, d, beside, log.index)
}

func (s *Snapshot) say(format string, args ...any) { fmt.Fprintf(s.Out, format+"\n", args...) }

// make has etcd apply a copy's log up to an index, and makes the file of what its database is then.
func (s *Snapshot) make(ctx context.Context, etcd string, d data, beside string, index uint64) (err error) {
	work, err := os.MkdirTemp(beside, ".holdfast-snapshot-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	copied := dataIn(work, "")
	for to, from := range map[string]string{copied.wal: d.wal, filepath.Join(work, "member", "snap"): filepath.Join(d.dir, "member", "snap")} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			return fmt.Errorf("copy the data: %w", err)
		}
	}
	log, err := openLog(copied.wal, wal.Open)
	if errors.Is(err, io.ErrUnexpectedEOF) && wal.Repair(zap.NewNop(), copied.wal) { // the last record was not written to its end; etcd does the same
		log, err = openLog(copied.wal, wal.Open)
	}
	if err != nil {
		return err
	}
	// etcd drops what it does not know to be committed. It learns that with the next write, so of the last one never.
	log.state.Commit = &index
	if err := errors.Join(log.Save(log.state, nil), log.Close()); err != nil {
		return fmt.Errorf("the copy of the log: %w", err)
	}
	if err := apply(ctx, etcd, work); err != nil {
		return err
	}
	at, _, err := readDatabase(work, nil)
	if err != nil {
		return err
	}
	if at.Index < index {
		return fmt.Errorf("etcd applied the log up to index %d only, of %d", at.Index, index)
	}
	database := filepath.Join(work, "member", "snap", "db")
	if err := addSum(database); err != nil {
		return err
	}
	if err := os.Link(database, s.File); err != nil { // which never overwrites
		return err
	}
	if err := syncDir(beside); err != nil {
		return err
	}
	s.say("Made %s: everything up to index %d, revision %d. %s is as it was.\nRestore from it with a new --initial-cluster-token, and never start etcd on the old data again.", s.File, index, at.Revision, d.dir)
	return nil
}

// logFrom is a write-ahead log from the last snapshot in it on.
type logFrom struct {
	*wal.WAL
	state       *raftpb.HardState
	entries     []*raftpb.Entry
	term, index uint64 // of the last entry that is taken
}

func openLog(dir string, open func(*zap.Logger, string, *walpb.Snapshot) (*wal.WAL, error)) (*logFrom, error) {
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), dir)
	if err != nil || len(snapshots) == 0 {
		return nil, fmt.Errorf("the write-ahead log in %s: %w", dir, cmp.Or(err, wal.ErrSnapshotNotFound))
	}
	from := snapshots[len(snapshots)-1]
	log := &logFrom{term: from.GetTerm(), index: from.GetIndex()}
	if log.WAL, err = open(zap.NewNop(), dir, from); err == nil {
		if _, log.state, log.entries, err = log.ReadAll(); err != nil {
			_ = log.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the write-ahead log in %s: %w", dir, err)
	}
	return log, nil
}

// judge goes through the log, and refuses that of a member that is no voter at its end. An entry that removes the member, and
// that is not known to be committed, is not taken, nor is what comes after it. applied is what the database has, and voter
// what the member is there.
func (l *logFrom) judge(member quorum.MemberID, applied uint64, voter bool) error {
	for _, e := range l.entries {
		if e.GetType() == raftpb.EntryConfChange && e.GetIndex() > applied {
			var change raftpb.ConfChange
			if err := proto.Unmarshal(e.GetData(), &change); err != nil {
				return fmt.Errorf("the write-ahead log, index %d: %w", e.GetIndex(), err)
			}
			own, kind := change.GetNodeId() == uint64(member), change.GetType()
			if own && kind == raftpb.ConfChangeRemoveNode && e.GetIndex() > l.state.GetCommit() {
				break
			}
			if own {
				voter = kind == raftpb.ConfChangeAddNode || voter && kind == raftpb.ConfChangeUpdateNode
			}
		}
		l.term, l.index = e.GetTerm(), e.GetIndex()
	}
	if !voter {
		return &Refusal{
			fmt.Sprintf("Member %x is a learner, or was removed: its data may be far behind.", member),
			"Take the data of a voter. If there are none, restore from a backup.",
		}
	}
	return nil
}

// votes reports whether a member is a voter by its own database: by what raft knew last, or as listed there. etcd before 3.5.20 kept listing a
// learner that it had promoted as one (etcd issue 19557).
func votes(dir string, member quorum.MemberID) (votes bool, err error) {
	var raft struct{ Voters []uint64 }
	var listed *struct{ IsLearner bool }
	read := func(tx *bbolt.Tx, bucket, key string, into any) error {
		if b := tx.Bucket([]byte(bucket)); b != nil {
			if text := b.Get([]byte(key)); text != nil {
				return json.Unmarshal(text, into)
			}
		}
		return nil
	}
	err = viewDatabase(dir, func(tx *bbolt.Tx) error {
		return errors.Join(read(tx, "meta", "confState", &raft), read(tx, "members", strconv.FormatUint(uint64(member), 16), &listed))
	})
	return slices.Contains(raft.Voters, uint64(member)) || listed != nil && !listed.IsLearner, err
}

// apply runs etcd on a data directory, as a ring of that member alone, until it has applied its log. It listens in that
// directory only.
func apply(ctx context.Context, etcd, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, peer := filepath.Join(dir, "c"), filepath.Join(dir, "p")
	cmd := exec.CommandContext(ctx, etcd, "--name=holdfast-snapshot", "--data-dir="+dir, "--force-new-cluster", "--unsafe-no-fsync", "--log-level=warn",
		"--quota-backend-bytes=-1", // or it would put an alarm into the snapshot
		"--listen-client-urls=unix://"+client, "--listen-peer-urls=unix://"+peer,
		// No client calls the URLs that it advertises. Before 3.6 that has to have a port.
		"--advertise-client-urls=http://127.0.0.1:2379", "--initial-advertise-peer-urls=http://127.0.0.1:2380")
	// etcd's variables that are for this host; before 3.6 it does not know this one, and says so.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "ETCD_") }), "ETCD_MAX_LEARNERS=100")
	over := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", client)
	}}}
	defer over.CloseIdleConnections()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://etcd/health?exclude=NOSPACE&exclude=CORRUPT", nil)
	if err != nil {
		return err
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// In order, so that it writes down all that it has applied.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	// It does not outlive this process. The signal comes when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	var failed error
	ended := make(chan struct{})
	go func() {
		failed = cmd.Wait()
		close(ended)
	}()
	for healthy := false; !healthy; {
		// It answers by a linearizable read, for which it has applied all that is committed.
		if answer, err := over.Do(ask); err == nil {
			healthy = answer.StatusCode == http.StatusOK
			_ = answer.Body.Close()
		}
		select {
		case <-ended:
			text := output.String()
			return fmt.Errorf("etcd on the copy ended (%w): %s", failed, text[max(0, len(text)-2000):])
		case <-ctx.Done():
			<-ended
			return ctx.Err()
		case <-time.After(look):
		}
	}
	cancel()
	<-ended
	return nil
}

// addSum makes a database a snapshot file of etcd's: the SHA-256 of the rest is at its end.
func addSum(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err = io.Copy(sum, f); err == nil {
		_, err = f.Write(sum.Sum(nil))
	}
	return errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close())
}

// filesIn is what the files of directories take.
func filesIn(dirs ...string) (total int64, err error) {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				total += info.Size()
			}
		}
	}
	return total, nil
}
