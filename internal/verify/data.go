package verify

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Holding is what a data directory holds.
type Holding uint8

const (
	HoldingNothing Holding = 1 + iota // no member's data
	HoldingData                       // a member's data, whose ID is known
	HoldingNoLog                      // files of etcd, but no log
	HoldingGarbled                    // a log that does not say whose it is
)

// Disk is what the data directory holds.
type Disk struct {
	Holding Holding
	Member  quorum.MemberID // with HoldingData: whose they are
	Cluster uint64          // and of which cluster
	Why     string          // of HoldingGarbled, for people
}

// Position is where a member's data stand in its ring's history.
type Position struct {
	Term   uint64 // of the last entry in its log
	Commit uint64 // the highest raft index that it knows to be committed
	// Index is the raft index up to which its database has everything, and Revision the revision of the keys
	// there. Index is 0 while the database has nothing.
	Index    uint64
	Revision int64
}

// data is where a member's data are.
type data struct {
	dir string // etcd's data directory
	wal string // its write-ahead log
}

// dataIn is a data directory with its log, which etcd's --wal-dir may have elsewhere; wal is "" if not.
func dataIn(dir, wal string) data {
	return data{dir, cmp.Or(wal, filepath.Join(dir, "member", "wal"))}
}

// readDisk sees whose data there are. An error means that it could not be looked at.
func readDisk(d data) (Disk, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "member"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Disk{}, fmt.Errorf("the data directory: %w", err)
	}
	files, err := logFiles(d)
	switch {
	case err != nil:
		return Disk{}, err
	case len(entries) == 0 && len(files) == 0:
		return Disk{Holding: HoldingNothing}, nil
	case len(files) == 0:
		return Disk{Holding: HoldingNoLog}, nil
	}
	var wrong error
	for _, file := range slices.Backward(files) {
		disk, err := logOwner(file)
		if err == nil {
			return disk, nil
		}
		wrong = errors.Join(wrong, err)
	}
	return Disk{Holding: HoldingGarbled, Why: strings.ReplaceAll(wrong.Error(), "\n", "; ")}, nil
}

// logFiles are the files of etcd's write-ahead log, the oldest first. Like etcd it takes no other names
// for those of a log.
func logFiles(d data) ([]string, error) {
	entries, err := os.ReadDir(d.wal)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the write-ahead log in %s: %w", d.wal, err)
	}
	named := regexp.MustCompile(`^[0-9a-f]{16}-[0-9a-f]{16}\.wal$`)
	var files []string
	for _, e := range entries { // os.ReadDir sorts them
		if named.MatchString(e.Name()) {
			files = append(files, filepath.Join(d.wal, e.Name()))
		}
	}
	return files, nil
}

// readRecords gives the records of one file of the log to each, until that returns false. etcd begins a
// file with a checksum and the metadata.
func readRecords(file string, each func(kind int64, data []byte) (more bool, err error)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	decoder := wal.NewDecoder(fileutil.NewFileReader(f))
	var record walpb.Record
	for {
		switch err := decoder.Decode(&record); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", file, err)
		}
		if record.GetType() == wal.CrcType {
			decoder.UpdateCRC(record.GetCrc())
			continue
		}
		if more, err := each(record.GetType(), record.GetData()); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		} else if !more {
			return nil
		}
	}
}

// logOwner reads whose a file of the write-ahead log is.
func logOwner(file string) (Disk, error) {
	var owner etcdserverpb.Metadata
	err := readRecords(file, func(kind int64, data []byte) (bool, error) {
		if kind != wal.MetadataType {
			return false, nil
		}
		return false, proto.Unmarshal(data, &owner)
	})
	switch {
	case err != nil:
		return Disk{}, err
	case owner.GetNodeID() == 0 || owner.GetClusterID() == 0:
		return Disk{}, fmt.Errorf("%s does not begin with the metadata of a write-ahead log", file)
	}
	return Disk{Holding: HoldingData, Member: quorum.MemberID(owner.GetNodeID()), Cluster: owner.GetClusterID()}, nil
}

// readLog reads from the log where a member's data stand. What cannot be read at its end was never
// made to last, or keeps etcd from starting.
func readLog(d data) (Position, error) {
	files, err := logFiles(d)
	if err != nil {
		return Position{}, err
	}
	var p Position
	var wrong error
	// A new file begins with the state, but its entries may all be in the one before.
	for _, file := range slices.Backward(files) {
		var index, term, commit uint64
		err := readRecords(file, func(kind int64, data []byte) (bool, error) {
			switch kind {
			case wal.EntryType:
				var e raftpb.Entry
				if err := proto.Unmarshal(data, &e); err != nil {
					return false, err
				}
				index, term = e.GetIndex(), e.GetTerm() // a later entry takes the place of an earlier one
			case wal.StateType:
				var s raftpb.HardState
				if err := proto.Unmarshal(data, &s); err != nil {
					return false, err
				}
				commit = s.GetCommit()
			case wal.SnapshotType:
				var s walpb.Snapshot
				if err := proto.Unmarshal(data, &s); err != nil {
					return false, err
				}
				if s.GetIndex() > index {
					index, term = s.GetIndex(), s.GetTerm()
				}
			}
			return true, nil
		})
		wrong = errors.Join(wrong, err)
		p.Commit = max(p.Commit, commit)
		if index > 0 {
			p.Term = term
			return p, nil
		}
	}
	return p, wrong
}

// errLocked is that an etcd, or another run of this command, uses the database.
var errLocked = errors.New("another process holds a lock on")

// compared is how many keys are compared with a member that runs.
const compared = 8

// viewDatabase has the database of a data directory read. It fails while another process has it open to write.
func viewDatabase(dir string, view func(*bbolt.Tx) error) (err error) {
	file := filepath.Join(dir, "member", "snap", "db")
	// bbolt maps the file into memory and trusts it.
	defer func() {
		if crash := recover(); crash != nil {
			err = fmt.Errorf("database %s: %v", file, crash)
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	db, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w %s", errLocked, file)
	}
	if err != nil {
		return fmt.Errorf("database %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(view)
}

// readDatabase reads from the database where a member's data stand and, for each of the revisions, the
// latest keys that were written up to it.
func readDatabase(dir string, upTo []int64) (p Position, written [][]*mvccpb.KeyValue, err error) {
	err = viewDatabase(dir, func(tx *bbolt.Tx) error {
		meta, keys := tx.Bucket([]byte("meta")), tx.Bucket([]byte("key"))
		if meta == nil || keys == nil { // etcd was killed before it wrote anything
			written = make([][]*mvccpb.KeyValue, len(upTo))
			return nil
		}
		number := func(text []byte) uint64 {
			if len(text) < 8 {
				return 0
			}
			return binary.BigEndian.Uint64(text)
		}
		p.Revision = 1 // without any key
		p.Index = number(meta.Get([]byte("consistent_index")))
		// A key of this bucket is a revision: main, "_", sub, and "t" if a key was deleted by it. Compaction may
		// drop the last one, and then knows of it.
		cursor := keys.Cursor()
		last, _ := cursor.Last()
		for _, at := range [][]byte{last, meta.Get([]byte("scheduledCompactRev")), meta.Get([]byte("finishedCompactRev"))} {
			p.Revision = max(p.Revision, int64(number(at)))
		}
		for _, revision := range upTo {
			step := cursor.Prev // from the first one after it
			if at, _ := cursor.Seek(binary.BigEndian.AppendUint64(nil, uint64(revision)+1)); at == nil {
				step = cursor.Last
			}
			at, value := step()
			var kvs []*mvccpb.KeyValue
			for ; at != nil && len(kvs) < compared; at, value = cursor.Prev() {
				kv := &mvccpb.KeyValue{}
				if len(at) != 17 || proto.Unmarshal(value, kv) != nil || len(kv.GetKey()) == 0 {
					continue
				}
				kvs = append(kvs, kv)
			}
			written = append(written, kvs)
		}
		return nil
	})
	return p, written, err
}

// readPosition reads where a member's data stand, and the latest keys written up to each of the revisions.
func readPosition(d data, upTo []int64) (Position, [][]*mvccpb.KeyValue, error) {
	p, err := readLog(d)
	if err != nil {
		return p, nil, err
	}
	at, written, err := readDatabase(d.dir, upTo)
	if err != nil {
		return p, nil, err
	}
	// What is applied was committed; etcd does not always write down that it was.
	return Position{Term: p.Term, Commit: max(p.Commit, at.Index), Index: at.Index, Revision: at.Revision}, written, nil
}
