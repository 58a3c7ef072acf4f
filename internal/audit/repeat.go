package audit

import (
	"maps"
	"strconv"
	"sync"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/utils/lru"

	"github.com/holdfast-dev/holdfast/internal/admission"
)

// Repairs that repeat the first are counted instead of written. The count is written after FirstCount, and then each time
// after twice as long, at most after RepeatWindow, until the fight rests for that long.
const (
	FirstCount   = 10 * time.Second
	RepeatWindow = 5 * time.Minute
)

// maxFights bounds what is counted at once; the one that rested longest is summed up early.
const maxFights = 512

// fight is who gets what repaired, over and over.
type fight struct {
	rules, object, user string
}

// count is how a fight went since its last record was written.
type count struct {
	timer  *time.Timer
	window time.Duration   // until the next record
	n      int             // repetitions
	since  time.Time       // of the first of them
	last   *auditapi.Event // of them
}

// repeats counts fights. Leaving the cache, for whatever reason, makes a fight's summary due.
type repeats struct {
	write func(*auditapi.Event)

	mu    sync.Mutex
	cache *lru.Cache
	due   []*auditapi.Event
}

func newRepeats(write func(*auditapi.Event)) *repeats {
	r := &repeats{write: write}
	r.cache = lru.NewWithEvictionFunc(maxFights, func(_ lru.Key, value any) {
		c := value.(*count)
		c.timer.Stop()
		if c.n > 0 {
			r.due = append(r.due, c.summary())
		}
	})
	return r
}

// counted says whether the event repeats one that was written within the window, and then keeps it.
func (r *repeats) counted(d *admission.Decision, e *auditapi.Event) bool {
	if e.Annotations[AbandonedAnnotation] != "" {
		return false
	}
	for _, f := range d.Findings {
		if f.Verdict != admission.VerdictRepaired {
			return false
		}
	}
	key := fight{e.Annotations[RuleAnnotation], string(e.ObjectRef.UID), e.User.Username}
	if key.object == "" { // a CREATE
		key.object = e.ObjectRef.Namespace + "/" + e.ObjectRef.Name
	}
	defer r.flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	if value, ok := r.cache.Get(key); ok {
		c := value.(*count)
		if c.n++; c.n == 1 {
			c.since = e.RequestReceivedTimestamp.Time
		}
		c.last = e
		return true
	}
	c := &count{window: FirstCount}
	c.timer = time.AfterFunc(c.window, func() { r.close(key, c) })
	r.cache.Add(key, c)
	return false
}

// close ends a window, unless the fight was pushed out meanwhile. Where it went on within, a longer window begins.
func (r *repeats) close(key fight, c *count) {
	defer r.flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	if value, ok := r.cache.Get(key); !ok || value != c {
		return
	}
	if c.n == 0 && c.window == RepeatWindow {
		r.cache.Remove(key)
		return
	}
	if c.n > 0 {
		r.due = append(r.due, c.summary())
		c.n = 0
	}
	c.window = min(2*c.window, RepeatWindow)
	c.timer.Reset(c.window)
}

// closeAll ends all windows.
func (r *repeats) closeAll() {
	defer r.flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cache.Clear()
}

// flush writes the summaries that are due, without the lock: a slow disk is not to hold up those
// whose requests are only counted.
func (r *repeats) flush() {
	r.mu.Lock()
	due := r.due
	r.due = nil
	r.mu.Unlock()
	for _, e := range due {
		r.write(e)
	}
}

// summary is the last event, as one that stands for all.
func (c *count) summary() *auditapi.Event {
	e := *c.last
	e.Annotations = maps.Clone(e.Annotations)
	e.Annotations[RepeatedAnnotation] = strconv.Itoa(c.n)
	e.Annotations[RepeatedSinceAnnotation] = c.since.UTC().Format(time.RFC3339Nano)
	return &e
}
