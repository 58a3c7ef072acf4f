package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
)

const (
	writePrefix  = "/holdfast-demo/"
	writesPerSec = 50
	writeTimeout = 5 * time.Second
)

// writer does linearizable writes to etcd, one after the other, for as long as the demo runs, and
// remembers which were acknowledged. A write that fails is tried again until it is acknowledged.
type writer struct {
	etcd *clientv3.Client
	run  string // of this demo, so that an earlier one's keys are not taken for its own

	mu      sync.Mutex
	acked   int
	failed  int           // attempts that returned an error
	last    error         // of those
	longest time.Duration // from the first attempt of a write to its acknowledgement
}

// work writes until the context ends.
func (w *writer) work(ctx context.Context) {
	pace := rate.NewLimiter(writesPerSec, 1)
	for n := 0; pace.Wait(ctx) == nil; n++ {
		for from := time.Now(); ctx.Err() == nil; {
			attempt, cancel := context.WithTimeout(ctx, writeTimeout)
			_, err := w.etcd.Put(attempt, w.key(n), fmt.Sprint(n))
			cancel()
			if ctx.Err() != nil {
				return // interrupted: whether it was applied does not matter
			}
			w.mu.Lock()
			w.longest = max(w.longest, time.Since(from))
			if err == nil {
				w.acked++
			} else {
				w.failed, w.last = w.failed+1, err
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

func (w *writer) key(n int) string { return fmt.Sprintf("%s%s/%09d", writePrefix, w.run, n) }

// lost reads back every acknowledged write, linearizably, and counts those that are not there.
func (w *writer) lost(ctx context.Context) (int, error) {
	w.mu.Lock()
	acked := w.acked
	w.mu.Unlock()
	got, err := w.etcd.Get(ctx, writePrefix+w.run+"/", clientv3.WithPrefix())
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
