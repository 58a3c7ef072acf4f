package webhooks

import (
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// sameLook is how long ago the mutating handler may have begun the look that the validating one judges the
// same request by. A look takes up to 100 ms, and the API server calls one handler right after the other.
const sameLook = 250 * time.Millisecond

// looked is which request a look was taken for. The API server gives its two calls for one request different
// UIDs: that it read the same stored Machine, for the same user, tells that they are one.
type looked struct{ user, stored string }

func (r *review) looked() looked { return looked{r.UserInfo.Username, string(r.OldObject.Raw)} }

// looks keeps the newest look, so that a release need not wait for the same reads twice. The zero value is empty.
type looks struct {
	mu       sync.Mutex
	of       looked
	begun    time.Time
	snapshot *quorum.Snapshot
}

// keep keeps what was seen, unless etcd told nothing: a second attempt may know more.
func (l *looks) keep(of looked, begun time.Time, s *quorum.Snapshot) {
	if s == nil || !s.Ring.Known {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of, l.begun, l.snapshot = of, begun, s
}

// take is what was seen for the same request a moment ago, nil if that was not kept. It is given once.
func (l *looks) take(of looked, now time.Time) *quorum.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of != of || now.Sub(l.begun) > sameLook {
		return nil
	}
	s := l.snapshot
	l.of, l.snapshot = looked{}, nil
	return s
}
