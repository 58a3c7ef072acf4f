package verify

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

// Refusal is a no with its reason and what to do about it. Trying again as things stand changes nothing.
type Refusal struct {
	Reason string
	Advice string
}

func (r *Refusal) Error() string { return r.Reason + "\n" + r.Advice }

// outdatedError is a Refusal of the environment: with another one etcd may start.
type outdatedError struct{ Refusal }

func (e *outdatedError) Unwrap() error { return &e.Refusal }

// archive puts a data directory that is locked aside as a sibling and leaves an empty one in its place.
// It may end between any two steps and be run again. step is told of each one that is done, for tests.
func archive(dir string, now time.Time, step func(done string)) (aside string, err error) {
	if err := renamable(dir); err != nil {
		return "", err
	}
	step("locked")
	if aside, err = sibling(dir, now); err != nil {
		return "", err
	}
	switch err := os.Rename(dir, aside); {
	case errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV): // a bind mount is of its parent's file system
		return "", mountPoint(dir)
	case err != nil:
		return "", fmt.Errorf("archive the data directory: %w", err)
	}
	step("renamed")
	return aside, makeDir(dir, step)
}

func mountPoint(dir string) *Refusal {
	return &Refusal{
		Reason: fmt.Sprintf("Data directory %s is a mount point, so it cannot be renamed to a sibling.", dir),
		Advice: "Use a directory inside what is mounted there as data directory, or move what is in it aside by hand.",
	}
}

// makeDir makes the data directory if there is none, so that it is there after a power cut.
func makeDir(dir string, step func(done string)) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	// What a rename did before is made to last first.
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	step("synced")
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	step("made")
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("make the change of %s last: %w", dir, err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("make the change of %s last: %w", dir, err)
	}
	return nil
}

// sibling is a free name beside the data directory.
func sibling(dir string, now time.Time) (string, error) {
	name := dir + "-removed-" + now.UTC().Format("20060102T150405Z")
	for i := range 100 {
		try := name
		if i > 0 {
			try = fmt.Sprintf("%s-%d", name, i)
		}
		if _, err := os.Lstat(try); errors.Is(err, fs.ErrNotExist) {
			return try, nil
		} else if err != nil {
			return "", fmt.Errorf("a name for the archive: %w", err)
		}
	}
	return "", fmt.Errorf("a name for the archive: %s and 99 more are taken", name)
}

// renamable refuses what cannot be renamed in one step.
func renamable(dir string) error {
	var self, parent syscall.Stat_t
	if err := syscall.Lstat(dir, &self); err != nil {
		return fmt.Errorf("data directory %s: %w", dir, err)
	}
	if self.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return &Refusal{
			Reason: fmt.Sprintf("Data directory %s is a symbolic link, so renaming it would put nothing aside.", dir),
			Advice: "Give the directory itself as --data-dir.",
		}
	}
	if err := syscall.Stat(filepath.Dir(dir), &parent); err != nil {
		return fmt.Errorf("the parent of data directory %s: %w", dir, err)
	}
	if self.Dev != parent.Dev {
		return mountPoint(dir)
	}
	return nil
}

// lockData takes etcd's own locks and one on the directory, so that neither an etcd nor another run
// of this command is at work there. The locks go with the process. busy is why another run comes first.
func lockData(dir string) (unlock func(), busy string, err error) {
	var held []*os.File
	release := func() {
		for _, f := range held {
			_ = f.Close()
		}
	}
	defer func() {
		if unlock == nil {
			release()
		}
	}()
	flock := func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		held = append(held, f)
		return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	const another = "Another run of this command is at work on the data directory."
	switch err := flock(dir); {
	case errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist):
		return nil, another, nil
	case err != nil:
		return nil, "", fmt.Errorf("lock %s: %w", dir, err)
	}
	// bbolt's lock on its file.
	db := filepath.Join(dir, "member", "snap", "db")
	if err := flock(db); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", inUse(db, err)
	}
	// The newest file of the log: etcd locks it, in another way, before it opens its database.
	files, err := logFiles(dir)
	if err != nil {
		return nil, "", err
	}
	if len(files) > 0 {
		newest := files[len(files)-1]
		f, err := fileutil.TryLockFile(newest, os.O_RDWR, 0o600)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, "", inUse(newest, err)
		}
		if err == nil {
			held = append(held, f.File)
		}
	}
	// What is locked may have been put aside by another run before that.
	locked, err := held[0].Stat()
	if err != nil {
		return nil, "", fmt.Errorf("lock %s: %w", dir, err)
	}
	if now, err := os.Stat(dir); err != nil || !os.SameFile(locked, now) {
		return nil, another, nil
	}
	return release, "", nil
}

func inUse(path string, err error) error {
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fileutil.ErrLocked) {
		return &Refusal{
			Reason: fmt.Sprintf("The data directory is in use: another process holds a lock on %s.", path),
			Advice: "Stop the etcd that runs on it, then try again.",
		}
	}
	return fmt.Errorf("lock %s: %w", path, err)
}

// room refuses a new member that would fill the disk with the ring's data.
func room(dir string, needed int64) error {
	free, err := freeBytes(dir)
	if err != nil {
		return err
	}
	if free < needed {
		return &Refusal{
			Reason: fmt.Sprintf("The file system of %s has %s free, and the ring's data take %s.", dir, size(free), size(needed)),
			Advice: "Make room there (data directories that were archived before are beside it, named -removed-), then try again.",
		}
	}
	return nil
}

// freeBytes is what a process without privileges may still write there, in bytes.
func freeBytes(dir string) (int64, error) {
	var s syscall.Statfs_t
	for {
		err := syscall.Statfs(dir, &s)
		if err == nil {
			return int64(s.Bavail) * s.Bsize, nil
		}
		if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
			dir = parent // the directory is about to be made
			continue
		}
		return 0, fmt.Errorf("the room on the file system of %s: %w", dir, err)
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, i := float64(n)/unit, 0
	for ; value >= unit && i < 4; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[i])
}
