package verify

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Storage is the check of the data directory's disk.
type Storage struct {
	DataDir  string
	Quota    int64         // bytes that etcd's database may grow to; 0 not to look
	MaxFsync time.Duration // the slowest p99 that passes; 0 passes any
	Out      io.Writer
}

// The write test: as etcd's documentation has it measured, small appends, each made to last.
const (
	writes    = 200
	writeSize = 2300            // bytes
	writeTime = 5 * time.Second // at most, for all
	slowFsync = 10 * time.Millisecond
)

// Run looks at the disk and prints what it found. It fails with a Refusal that names all that is wrong. A member that has data here is
// only warned: else a full disk would keep every host down after a power cut.
func (s *Storage) Run() error {
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	where := s.DataDir
	info, err := os.Stat(s.DataDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		where = filepath.Dir(filepath.Clean(s.DataDir))
		s.say("directory   %s does not exist yet; looking at %s", s.DataDir, where)
	case err != nil:
		return fmt.Errorf("data directory %s: %w", s.DataDir, err)
	case !info.IsDir():
		return &Refusal{fmt.Sprintf("%s is no directory.", s.DataDir), "Give etcd's data directory as --data-dir."}
	default:
		s.say("directory   %s, mode %04o", s.DataDir, info.Mode().Perm())
		if info.Mode().Perm() != 0o700 {
			bad("Data directory %s has mode %04o; only its owner may use it: chmod 0700 %[1]s", s.DataDir, info.Mode().Perm())
		}
	}
	if err := s.space(bad); err != nil {
		return err
	}
	latencies, err := fsyncs(where)
	if err != nil {
		bad("Data cannot be written there: %v", err)
	} else {
		s.latency(latencies, bad)
	}
	if len(wrong) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(s.DataDir, "member", "snap", "db")); err == nil {
		for _, what := range wrong {
			s.say("warning     %s", what)
		}
		return nil
	}
	return &Refusal{strings.Join(wrong, "\n"), "Put this right before etcd starts here."}
}

func (s *Storage) say(format string, args ...any) { fmt.Fprintf(s.Out, format+"\n", args...) }

// space compares what is free, and what the database has already, with what it may take.
func (s *Storage) space(bad func(string, ...any)) error {
	free, name, err := fileSystem(s.DataDir)
	if err != nil {
		return err
	}
	s.say("file system %s, %s free", name, size(free))
	if name == "nfs" || name == "tmpfs" {
		s.say("warning     %s is no place for etcd: it loses data or is slow to make them last", name)
	}
	var has int64
	if info, err := os.Stat(filepath.Join(s.DataDir, "member", "snap", "db")); err == nil {
		has = info.Size()
	}
	// A backup takes as much as the database, and so does what the leader sends to a member that fell far behind: etcd keeps the
	// database that it has until all of the other one is there.
	if has > 0 && free < has {
		s.say("warning     no room for a snapshot, which takes %s like the database: neither for a backup nor for one that the leader sends", size(has))
	} else if has > 0 {
		s.say("snapshot    there is room for one: it takes %s like the database", size(has))
	}
	if s.Quota == 0 {
		return nil
	}
	s.say("quota       %s, of which the database has %s", size(s.Quota), size(has))
	if free < s.Quota-has {
		bad("%s is free, and the database may grow by %s: make room, or lower etcd's --quota-backend-bytes", size(free), size(s.Quota-has))
	}
	return nil
}

func (s *Storage) latency(latencies []time.Duration, bad func(string, ...any)) {
	slices.Sort(latencies)
	p99 := latencies[(len(latencies)*99+99)/100-1]
	s.say("fsync       p50 %.1f ms, p99 %.1f ms, slowest %.1f ms, of %d writes of %d B", ms(latencies[(len(latencies)-1)/2]), ms(p99),
		ms(latencies[len(latencies)-1]), len(latencies), writeSize)
	if p99 > slowFsync {
		s.say("warning     p99 is above %.0f ms: etcd will lose its leader under load", ms(slowFsync))
	}
	if s.MaxFsync > 0 && p99 > s.MaxFsync {
		bad("Making data last takes %.1f ms (p99), more than --max-fsync %v", ms(p99), s.MaxFsync)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// fsyncs appends to a file of its own, and says how long each append took to be on disk.
func fsyncs(dir string) (latencies []time.Duration, err error) {
	f, err := os.CreateTemp(dir, ".holdfast-verify-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// Gone with the process, however that ends.
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	block := make([]byte, writeSize)
	for began := time.Now(); len(latencies) < writes && (len(latencies) == 0 || time.Since(began) < writeTime); {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return nil, &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
		latencies = append(latencies, time.Since(start))
	}
	return latencies, nil
}
