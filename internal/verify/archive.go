package verify

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"golang.org/x/sys/unix"
)

// Refusal is a no with its reason and what to do about it. Trying again as things stand changes nothing.
type Refusal struct {
	Reason string
	Advice string
}

func (r *Refusal) Error() string { return r.Reason + "\n" + r.Advice }

// archive puts a data directory that is locked aside as a sibling and leaves an empty one in its place.
// It may end between any two steps and be run again. step is called after each, for tests.
func archive(dir string, now time.Time, step func(done string)) (aside string, err error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("data directory %s: %w", dir, err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return "", &Refusal{
			Reason: fmt.Sprintf("Data directory %s is a symbolic link, so renaming it would put nothing aside.", dir),
			Advice: "Give the directory itself as --data-dir.",
		}
	}
	step("locked")
	aside = dir + "-removed-" + now.UTC().Format("20060102T150405Z") // if it is there already, renaming fails
	switch err := os.Rename(dir, aside); {
	case errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV):
		return "", &Refusal{
			Reason: fmt.Sprintf("Data directory %s is a mount point, so it cannot be renamed to a sibling.", dir),
			Advice: "Use a directory inside what is mounted there as data directory, or move what is in it aside by hand.",
		}
	case err != nil:
		return "", fmt.Errorf("archive the data directory: %w", err)
	}
	step("renamed")
	return aside, makeDir(dir, step)
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
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("make the change of %s last: %w", dir, err)
	}
	return nil
}

// errBusy is why another run comes first.
var errBusy = errors.New("Another run of this command is at work on the data directory")

// lockData takes etcd's own locks and one on the directory, so that neither an etcd nor another run
// of this command is at work there. The locks go with the process.
func lockData(d data) (unlock func(), err error) {
	var held []*os.File
	release := func() {
		for _, f := range held {
			_ = f.Close()
		}
	}
	defer func() {
		if err != nil {
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
	switch err := flock(d.dir); {
	case errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist):
		return nil, errBusy
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", d.dir, err)
	}
	// bbolt's lock on its file.
	db := filepath.Join(d.dir, "member", "snap", "db")
	if err := flock(db); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, inUse(db, err)
	}
	// The newest file of the log: etcd locks it, in another way, before it opens its database.
	files, err := logFiles(d)
	if err != nil {
		return nil, err
	}
	if len(files) > 0 {
		newest := files[len(files)-1]
		f, err := fileutil.TryLockFile(newest, os.O_RDWR, 0o600)
		if err == nil {
			held = append(held, f.File)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, inUse(newest, err)
		}
	}
	// What is locked may have been put aside by another run before that.
	locked, err := held[0].Stat()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", d.dir, err)
	}
	if now, err := os.Stat(d.dir); err != nil || !os.SameFile(locked, now) {
		return nil, errBusy
	}
	return release, nil
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
	free, _, err := fileSystem(dir)
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

// fileSystem is what a process without privileges may still write there, in bytes, and what the file system is called.
func fileSystem(dir string) (free int64, name string, err error) {
	var s syscall.Statfs_t
	err = syscall.Statfs(dir, &s)
	if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
		return fileSystem(parent) // the directory is about to be made
	}
	if err != nil {
		return 0, "", fmt.Errorf("the file system of %s: %w", dir, err)
	}
	names := map[uint32]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.NFS_SUPER_MAGIC: "nfs",
	}
	kind := uint32(s.Type)
	return int64(s.Bavail) * s.Bsize, cmp.Or(names[kind], fmt.Sprintf("type %#x", kind)), nil
}

// size is a number of bytes for people.
func size(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, 0
	for ; value >= 1024 && unit < 4; unit++ {
		value /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[unit])
}
