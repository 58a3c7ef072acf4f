package webhooks

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// lookTimeout is how long a look waits for the one before it, which may hang.
const lookTimeout = 100 * time.Millisecond

// mayShareLook says whether the request may be judged by a look that other requests share. The look does not show what those
// are allowed to do, so of two deletions that etcd cannot both bear, both may pass. So only dry runs share a look, and
// deletions of Machines that are held anyway.
func (r *review) mayShareLook() bool {
	return dryRun(&r.AdmissionRequest) || r.request.Operation == admission.OperationDelete && r.request.Old.Protected()
}

// sharedLooks has requests that come while a look is under way share the next one. Each is judged by a look that
// began after it came, as it would be by its own; a look sends eighteen requests to the API server
// and etcd, and many at once would all come too late. The zero value is ready.
type sharedLooks struct {
	mu   sync.Mutex
	next *sharedLook   // has not begun; nil if nobody waits for one
	last chan struct{} // closed when the look before has ended
}

// sharedLook is a look for all that waited for it.
type sharedLook struct {
	done     chan struct{} // closed when the rest is there
	snapshot *quorum.Snapshot
	err      error
}

// errLook is the error for requests that shared a look which did not return.
var errLook = errors.New("the look at the cluster failed")

// look returns the result of a look that begins after this call.
func (s *sharedLooks) look(ctx context.Context, look func(context.Context) (*quorum.Snapshot, error)) (*quorum.Snapshot, error) {
	s.mu.Lock()
	if theirs := s.next; theirs != nil {
		s.mu.Unlock()
		select {
		case <-theirs.done:
			return theirs.snapshot, theirs.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	mine := &sharedLook{done: make(chan struct{}), err: errLook}
	before := s.last
	s.next, s.last = mine, mine.done
	s.mu.Unlock()
	defer close(mine.done)

	if before != nil {
		hangs := time.NewTimer(lookTimeout)
		select {
		case <-before:
		case <-hangs.C:
		}
		hangs.Stop()
	}
	s.mu.Lock()
	s.next = nil // who comes now shares the one after
	s.mu.Unlock()
	mine.snapshot, mine.err = look(context.WithoutCancel(ctx)) // the others still want it if this one hangs up
	return mine.snapshot, mine.err
}
