package verify

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestParallelRuns: runs at the same moment put the older data aside once, and all of them say that etcd may start.
func TestParallelRuns(t *testing.T) {
	for range 20 {
		dir := olderData(t)
		errs := make([]error, 8)
		var runs sync.WaitGroup
		for i := range errs {
			runs.Go(func() { errs[i] = newcomer(dir).Run(t.Context()) })
		}
		runs.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		archived(t, dir)
	}
}

// meanwhile is an etcd that lets something happen while it is asked how large its data are, which is
// after the data directory was read and before it is locked.
type meanwhile struct {
	canned
	mu      sync.Mutex
	happens func(m *meanwhile)
}

func (m *meanwhile) Read(context.Context) quorum.Ring {
	m.mu.Lock()
	defer m.mu.Unlock()
	ring := m.ring
	ring.Members = slices.Clone(ring.Members)
	return ring
}

func (m *meanwhile) Status(ctx context.Context, at string) (etcd.Status, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.happens != nil {
		m.happens(m)
		m.happens = nil
	}
	return m.canned.Status(ctx, at)
}

// TestStartedMeanwhile: another run put the older data aside and etcd started, between this run's look and its lock.
func TestStartedMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name    string
		happens func(t *testing.T, dir string, m *meanwhile)
		want    string // in the error; none if empty
	}{
		{"and was killed", func(t *testing.T, dir string, m *meanwhile) {
			ownData(t, dir)
			m.ring.Members[0].Name, m.ring.Members[0].ClientURLs = "a", []string{"https://10.0.0.1:2379"}
		}, ""},
		{"and was killed before it published itself", func(t *testing.T, dir string, _ *meanwhile) { ownData(t, dir) }, ""},
		{"and runs", func(t *testing.T, dir string, _ *meanwhile) {
			ownData(t, dir)
			flock(t, filepath.Join(dir, "member", "snap", "db"))
		}, "another process holds a lock"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := olderData(t)
			m := newcomer(dir)
			m.Timeout = 2 * time.Second
			m.Etcd = &meanwhile{canned: m.Etcd.(canned), happens: func(e *meanwhile) {
				if err := os.Rename(dir, dir+"-removed-by-another"); err != nil {
					t.Error(err)
				}
				c.happens(t, dir, e)
			}}
			err := m.Run(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if aside, err := filepath.Glob(dir + "-removed-*"); err != nil || len(aside) != 1 {
				t.Errorf("archives: %q, %v", aside, err)
			}
			if disk, err := readDisk(dataIn(dir, "")); err != nil || disk.Member != 1 {
				t.Errorf("the member's own data are not where they were: %+v, %v", disk, err)
			}
		})
	}
}

func flock(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
}

// hanging is older data on a disk that never answers: a FIFO that nobody writes stands for it.
func hanging(t *testing.T) (dir string) {
	dir = olderData(t)
	file := filepath.Join(dir, "member", "wal", "0000000000000001-0000000000000009.wal")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // lets the reader go
		if f, err := os.OpenFile(file, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			_ = f.Close()
		}
	})
	return dir
}

// TestHangingDisk: a disk that does not answer is bound by the timeout, and ends with the context.
func TestHangingDisk(t *testing.T) {
	for name, run := range map[string]func(m *Membership) (context.Context, string){
		"timeout": func(m *Membership) (context.Context, string) {
			m.Timeout = 200 * time.Millisecond
			return t.Context(), "not within 200ms: reading "
		},
		"SIGTERM": func(*Membership) (context.Context, string) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			return ctx, "stopped while "
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newcomer(hanging(t))
			ctx, want := run(m)
			done := make(chan error, 1)
			go func() { done <- m.Run(ctx) }()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("it hangs")
			}
		})
	}
}

// TestTrailingSlash: a directory is the same one with a slash behind it.
func TestTrailingSlash(t *testing.T) {
	for name, dir := range map[string]string{"none yet": filepath.Join(t.TempDir(), "data"), "an older member's": olderData(t)} {
		t.Run(name, func(t *testing.T) {
			if err := newcomer(dir + "/").Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
				t.Errorf("%v, %v", entries, err)
			}
		})
	}
}

// inMounts tells a child of TestBindMount, in a mount namespace of its own, which directory to mount on itself.
const inMounts = "HOLDFAST_TEST_BIND_MOUNT"

// TestBindMount: a mount point that is of its parent's file system cannot be renamed either.
func TestBindMount(t *testing.T) {
	if dir := os.Getenv(inMounts); dir != "" {
		if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
			t.Skip(err) // a container that may make namespaces and may not mount in them
		} else if err != nil {
			t.Fatal(err)
		}
		err := newcomer(dir).Run(t.Context())
		var refused *Refusal
		if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "a mount point") {
			t.Errorf("got %v, want a refusal", err)
		}
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBindMount$", "-test.v")
	child.Env = append(os.Environ(), inMounts+"="+olderData(t))
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out := &bytes.Buffer{}
	child.Stdout, child.Stderr = out, out
	switch err := child.Run(); {
	case errors.Is(err, syscall.EPERM) || bytes.Contains(out.Bytes(), []byte("--- SKIP")):
		tier.Lacks(t, "no mounts here: %v\n%s", err, out)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	}
}
