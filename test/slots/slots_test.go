package slots

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTake: no more slots are held at a time than there are, and who asks first is served first.
func TestTake(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := t.TempDir()
	queue := filepath.Join(dir, "queue")
	now := func() (release func()) {
		t.Helper()
		release, err := take(ctx, dir, 2)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	// later asks, and returns when its ticket is the n-th in the queue.
	later := func(n int) <-chan func() {
		t.Helper()
		granted := make(chan func(), 1)
		go func() {
			release, err := take(ctx, dir, 2)
			if err == nil {
				granted <- release
			}
			close(granted)
		}()
		for ctx.Err() == nil {
			if tickets, err := os.ReadDir(queue); err == nil && len(tickets) == n {
				return granted
			}
		}
		t.Fatal("no ticket")
		return nil
	}
	first, second := now(), now()
	third := later(1)
	fourth := later(2)
	// The ticket of a process that died holds nobody up.
	if err := os.WriteFile(filepath.Join(queue, "0-dead"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first()
	release := <-third
	if release == nil {
		t.Fatal("the third has no slot")
	}
	select {
	case <-fourth:
		t.Fatal("three hold a slot of two")
	default:
	}
	second()
	if last := <-fourth; last == nil {
		t.Fatal("the fourth has no slot")
	} else {
		last()
	}
	release()

	over, end := context.WithCancel(ctx)
	first, second = now(), now()
	end()
	if _, err := take(over, dir, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("who waits no longer: %v", err)
	}
	first()
	second()
	if tickets, err := os.ReadDir(queue); err != nil || len(tickets) > 0 {
		t.Errorf("tickets are left: %v, %v", tickets, err)
	}
}

// TestTakeIsLookedAt: who looks at the queue while another joins it keeps no slot from that one.
func TestTakeIsLookedAt(t *testing.T) {
	dir := t.TempDir()
	joined := make(chan struct{})
	looked := make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-joined:
				looked <- nil
				return
			default:
				if _, err = isNext(filepath.Join(dir, "queue"), "~"); errors.Is(err, os.ErrNotExist) {
					err = nil // nobody has joined
				}
			}
		}
		looked <- err
	}()
	for range 500 {
		release, err := take(t.Context(), dir, 1)
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	close(joined)
	if err := <-looked; err != nil {
		t.Fatal(err)
	}
}
