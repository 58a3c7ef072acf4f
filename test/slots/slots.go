// Package slots limits how many control planes the tests run at a time on this computer, over all test
// processes. Each takes a share of the processors; with too many at once every wait becomes long.
package slots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// variable is the environment variable that sets the number of slots.
const variable = "HOLDFAST_TEST_SLOTS"

// Take waits for a free slot and holds it until the test ends. Who waits longest is next. The kernel frees
// the slots of a process that dies.
func Take(t testing.TB) {
	t.Helper()
	total, err := count()
	if err != nil {
		t.Fatal(err)
	}
	release, err := take(t.Context(), filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-test-slots-%d", os.Getuid())), total)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
}

// take locks one of so many files in a directory, and until then a ticket in its queue.
func take(ctx context.Context, dir string, total int) (release func(), err error) {
	queue := filepath.Join(dir, "queue")
	if err := os.MkdirAll(queue, 0o700); err != nil {
		return nil, fmt.Errorf("the test slots: %w", err)
	}
	// It is in the queue once it is locked: who looks at one that is not takes it for a ticket of a process that died.
	name := fmt.Sprintf("%020d-%d", time.Now().UnixNano(), os.Getpid())
	ticket, err := tryLock(filepath.Join(dir, name))
	if err == nil && ticket == nil {
		err = fmt.Errorf("the test slots: %s is there", name)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = ticket.Close() }()
	if err := os.Rename(filepath.Join(dir, name), filepath.Join(queue, name)); err != nil {
		return nil, fmt.Errorf("the test slots: %w", err)
	}
	defer func() { _ = os.Remove(filepath.Join(queue, name)) }() // another may have removed it
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		next, err := isNext(queue, name)
		if err != nil {
			return nil, err
		}
		for i := 0; next && i < total; i++ {
			slot, err := tryLock(filepath.Join(dir, strconv.Itoa(i)))
			if err != nil {
				return nil, err
			}
			if slot != nil {
				return func() { _ = slot.Close() }, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no slot of %d became free: %w", total, ctx.Err())
		case <-tick.C:
		}
	}
}

// isNext is whether no ticket in the queue is older than this one. Tickets of processes that died are removed.
func isNext(queue, ticket string) (bool, error) {
	tickets, err := os.ReadDir(queue) // by name, and so by age
	if err != nil {
		return false, fmt.Errorf("the test slots: %w", err)
	}
	for _, older := range tickets {
		if older.Name() >= ticket {
			break
		}
		path := filepath.Join(queue, older.Name())
		lock, err := tryLock(path)
		if err != nil {
			return false, err
		}
		if lock == nil {
			return false, nil
		}
		_ = errors.Join(os.Remove(path), lock.Close()) // another may have removed it
	}
	return true, nil
}

// count is the number of slots, unless the variable says otherwise. One for each processor and one more
// keep all of them busy; with more each only waits longer.
func count() (int, error) {
	text := os.Getenv(variable)
	if text == "" {
		return runtime.NumCPU() + 1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 { // one test runs two sandboxes
		return 0, fmt.Errorf("%s is %q; it must be a number from 2", variable, text)
	}
	return n, nil
}

// tryLock locks a file until it is closed; nil if another process or test holds it. Child processes do
// not inherit the lock.
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the test slots: %w", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, nil
	}
	if closed := file.Close(); closed != nil {
		return nil, closed
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("the test slots: lock %s: %w", path, err)
}
