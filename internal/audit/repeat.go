package audit

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"

	"github.com/holdfast-dev/holdfast/internal/admission"
)

// Repairs that repeat the first are counted instead of written. The count is written after FirstCount, and then each time
// after twice as long, at most after RepeatWindow, until the fight rests for that long.
const (
	FirstCount   = 10 * time.Second
	RepeatWindow = 5 * time.Minute
)

// maxFights bounds what is counted at once: the repairs of more fights are all written.
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

// repeats counts fights.
type repeats struct {
	write func(*auditapi.Event)

	mu     sync.Mutex
	fights map[fight]*count
}

// counted reports whether the event repeats one that was written within the window, and then keeps it.
func (r *repeats) counted(d *admission.Decision, e *auditapi.Event) bool {
	if e.Annotations[AbandonedAnnotation] != "" || slices.ContainsFunc(d.Findings, func(f admission.Finding) bool { return f.Verdict != admission.VerdictRepaired }) {
		return false
	}
	key := fight{e.Annotations[RuleAnnotation], string(e.ObjectRef.UID), e.User.Username}
	if key.object == "" { // a CREATE
		key.object = e.ObjectRef.Namespace + "/" + e.ObjectRef.Name
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.fights[key]; c != nil {
		if c.n++; c.n == 1 {
			c.since = e.RequestReceivedTimestamp.Time
		}
		c.last = e
		return true
	}
	if len(r.fights) < maxFights {
		r.fights[key] = &count{window: FirstCount, timer: time.AfterFunc(FirstCount, func() { r.sumUp(key) })}
	}
	return false
}

// sumUp writes how a fight went in the window that ends, and begins a longer one, or forgets a fight that rested.
func (r *repeats) sumUp(key fight) {
	r.mu.Lock()
	c := r.fights[key]
	if c == nil { // closed meanwhile
		r.mu.Unlock()
		return
	}
	e := c.summary()
	if e == nil && c.window == RepeatWindow {
		delete(r.fights, key)
	} else {
		c.window = min(2*c.window, RepeatWindow)
		c.timer.Reset(c.window)
	}
	r.mu.Unlock()
	if e != nil { // without the lock: a slow disk is not to hold up those whose requests are only counted
		r.write(e)
	}
}

// close ends all windows.
func (r *repeats) close() {
	r.mu.Lock()
	fights := maps.Clone(r.fights)
	clear(r.fights)
	r.mu.Unlock()
	for _, c := range fights {
		c.timer.Stop()
		if e := c.summary(); e != nil {
			r.write(e)
		}
	}
}

// summary is the last event, as one that stands for all that were counted; nil if none was. The count begins anew.
func (c *count) summary() *auditapi.Event {
	if c.n == 0 {
		return nil
	}
	e := *c.last
	e.Annotations = maps.Clone(e.Annotations)
	e.Annotations[RepeatedAnnotation] = strconv.Itoa(c.n)
	e.Annotations[RepeatedSinceAnnotation] = c.since.UTC().Format(time.RFC3339Nano)
	c.n = 0
	return &e
}
