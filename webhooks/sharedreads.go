package webhooks

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// readTimeout is how long a read waits for the one before it, which may hang.
const readTimeout = 100 * time.Millisecond

// mayShareRead reports whether the request may be judged by a read of the cluster that other requests share. What these are
// allowed to do is not in it yet, so of two deletions that etcd cannot both bear, both may pass. So only dry runs share a
// read, and deletions of Machines that are held anyway.
func (r *review) mayShareRead() bool {
	return dryRun(&r.AdmissionRequest) || r.request.Operation == admission.OperationDelete && r.request.Old.Protected()
}

// sharedReads makes requests that come while the cluster is being read share the next read. Each is judged by a read that
// began after it came, as it would be by its own. One read sends eighteen requests to the API server
// and etcd, and many at once would all come too late. The zero value is ready.
type sharedReads struct {
	mu   sync.Mutex
	next *sharedRead   // has not begun; nil if nobody waits for one
	last chan struct{} // closed when the read before has ended
}

// sharedRead is a read for all that waited for it.
type sharedRead struct {
	done     chan struct{} // closed when the rest is there
	snapshot *quorum.Snapshot
	err      error
}

// errRead is the error for requests that shared a read which did not return.
var errRead = errors.New("the read of the cluster failed")

// share returns the result of a read that begins after this call.
func (s *sharedReads) share(ctx context.Context, read func(context.Context) (*quorum.Snapshot, error)) (*quorum.Snapshot, error) {
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
	mine := &sharedRead{done: make(chan struct{}), err: errRead}
	before := s.last
	s.next, s.last = mine, mine.done
	s.mu.Unlock()
	defer close(mine.done)

	if before != nil {
		hangs := time.NewTimer(readTimeout)
		select {
		case <-before:
		case <-hangs.C:
		}
		hangs.Stop()
	}
	s.mu.Lock()
	s.next = nil // who comes now shares the one after
	s.mu.Unlock()
	mine.snapshot, mine.err = read(context.WithoutCancel(ctx)) // the others still want it if this one hangs up
	return mine.snapshot, mine.err
}
