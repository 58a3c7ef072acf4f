package webhooks

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/holdfast-dev/holdfast/internal/admission"
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
type sharedReads[T any] struct {
	next singleflight.Group // the read that has not begun
	last chan struct{}      // closed when the read before has ended; only the next read uses it
}

// share returns the result of a read that begins after this call.
func (s *sharedReads[T]) share(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	out, err, _ := s.next.Do("", func() (any, error) {
		before, done := s.last, make(chan struct{})
		s.last = done
		defer close(done)
		if before != nil {
			select {
			case <-before:
			case <-time.After(readTimeout):
			}
		}
		s.next.Forget("")                       // who comes now shares the one after
		return read(context.WithoutCancel(ctx)) // the others still want it if this one hangs up
	})
	t, _ := out.(T)
	return t, err
}
