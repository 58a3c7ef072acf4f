// Package writer writes to an etcd ring for as long as something is done to it, and says afterwards
// whether any acknowledged write is lost (invariant I9), and how long one had to wait.
package writer

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
)

const (
	prefix    = "/holdfast-writer/"
	perSecond = 20
	timeout   = 2 * time.Second // of one attempt: a leader that hands over drops a write, and says so to nobody
)

// Writer does linearizable writes to etcd, one after the other, and remembers which were acknowledged.
// A write that fails is tried again until it is. Make one with New, and Run it.
type Writer struct {
	etcd *clientv3.Client
	run  string // so that it does not count an earlier writer's keys as its own

	mu    sync.Mutex
	stats Stats
}

// Stats are what a Writer saw.
type Stats struct {
	Acked   int
	Failed  int           // attempts that returned an error; each was repeated
	Last    error         // of those
	Longest time.Duration // from the first attempt of a write to its acknowledgement
}

// New makes a Writer. The client stays the caller's.
func New(etcd *clientv3.Client) *Writer {
	return &Writer{etcd: etcd, run: fmt.Sprint(time.Now().UnixNano())}
}

// Run writes until the context ends.
func (w *Writer) Run(ctx context.Context) {
	pace := rate.NewLimiter(perSecond, 1)
	for n := 0; pace.Wait(ctx) == nil; n++ {
		for from := time.Now(); ctx.Err() == nil; {
			attempt, cancel := context.WithTimeout(ctx, timeout)
			_, err := w.etcd.Put(attempt, w.key(n), fmt.Sprint(n))
			cancel()
			w.mu.Lock()
			w.stats.Longest = max(w.stats.Longest, time.Since(from))
			if ctx.Err() != nil { // interrupted: it waited that long at least, and whether it was applied does not matter
				w.mu.Unlock()
				return
			}
			if err == nil {
				w.stats.Acked++
			} else {
				w.stats.Failed, w.stats.Last = w.stats.Failed+1, err
			}
			w.mu.Unlock()
			if err == nil {
				break
			}
			if pace.Wait(ctx) != nil {
				return
			}
		}
	}
}

func (w *Writer) key(n int) string { return fmt.Sprintf("%s%s/%09d", prefix, w.run, n) }

// Stats are what it saw so far.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Lost reads back every acknowledged write, linearizably, and counts those that are not there.
func (w *Writer) Lost(ctx context.Context) (int, error) { return w.LostIn(ctx, w.etcd) }

// LostIn is Lost in another etcd, such as one that was restored.
func (w *Writer) LostIn(ctx context.Context, etcd *clientv3.Client) (int, error) {
	acked := w.Stats().Acked
	got, err := etcd.Get(ctx, prefix+w.run+"/", clientv3.WithPrefix())
	if err != nil {
		return 0, fmt.Errorf("read the writes back: %w", err)
	}
	there := make(map[string]string, len(got.Kvs))
	for _, kv := range got.Kvs {
		there[string(kv.Key)] = string(kv.Value)
	}
	lost := 0
	for n := range acked {
		if there[w.key(n)] != fmt.Sprint(n) {
			lost++
		}
	}
	return lost, nil
}
