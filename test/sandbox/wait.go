package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// stepLimit is many times what a step takes on a slow machine.
const stepLimit = 4 * time.Minute

// step runs one step of the start and tells people how it goes: what it does if
// it takes longer than a moment, and how long it took.
func (s *Sandbox) step(ctx context.Context, what string, f func(context.Context) error) error {
	started := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, stepLimit, fmt.Errorf("not done after %v", stepLimit))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	alive := time.NewTicker(2 * time.Second)
	defer alive.Stop()
	for {
		select {
		case err := <-done:
			took := time.Since(started)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			s.progress("%s (%.1f s)", what, took.Seconds())
			return nil
		case <-alive.C:
			s.progress("%s ... %d s", what, int(time.Since(started).Seconds()))
		}
	}
}

func (s *Sandbox) progress(format string, args ...any) {
	if s.options.Progress != nil {
		s.options.Progress(fmt.Sprintf(format, args...))
	}
}

// permanent is an error that trying again cannot mend.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// poll tries until it works. It gives up when the context ends, which the error
// of the last try explains, and at once on a permanent error or when a process
// of the sandbox has died.
func (s *Sandbox) poll(ctx context.Context, try func(context.Context) error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // rather than the context's own end
		}
		if errors.As(err, &permanent{}) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), last)
		case err := <-s.failed:
			s.fail(err) // for the next who asks
			return err
		case <-tick.C:
		}
	}
}

// fail keeps the first failure for Failed.
func (s *Sandbox) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// Failed yields an error when a process of the sandbox has ended without being asked to.
func (s *Sandbox) Failed() <-chan error { return s.failed }
