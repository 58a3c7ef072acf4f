package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

const (
	clientsOfAKind = 4
	perClient      = 10               // requests per second
	patience       = 20 * time.Second // of one attempt: more than etcd's own 7 s
	long           = time.Second      // a wait that is counted
)

// kind is one kind of request that clients keep sending while members are removed.
type kind struct {
	name string
	send func(ctx context.Context, key string) error

	mu      sync.Mutex
	sent    int
	slow    int // requests that took more than long
	failed  int // attempts that returned an error; each was repeated
	longest time.Duration
}

// clients measures, side by side, how long the clients of etcd and those of the API server wait while Machines are
// replaced: leadership moves, and members are removed.
func (b *bench) clients(ctx context.Context) (err error) {
	c, err := b.start(ctx, "clients", sandbox.Options{Mode: "full"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	etcd, err := c.EtcdClient()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	kinds := c.kinds(etcd)
	names := masters()
	for i := range b.replacements {
		if err := etcd.Sync(ctx); err != nil { // it knows who votes now
			return err
		}
		next := fmt.Sprintf("master-%d", len(names)+i)
		if err := c.replaceUnder(ctx, kinds, names[i%len(names)], next); err != nil {
			return fmt.Errorf("replacement %d, of %s: %w", i+1, names[i%len(names)], err)
		}
		names[i%len(names)] = next
	}
	for _, k := range kinds {
		b.report.figure("clients", k.name+": requests", float64(k.sent), "requests", 0)
		b.report.figure("clients", k.name+": longer than "+long.String(), float64(k.slow), "requests", 0)
		b.report.figure("clients", k.name+": attempts that failed", float64(k.failed), "attempts", 0)
		b.report.figure("clients", k.name+": the longest", ms(k.longest), "ms", 0)
	}
	return nil
}

// kinds are those that etcd answers itself, and those that the API server answers from etcd.
func (c *cluster) kinds(etcd *clientv3.Client) []*kind {
	object := func(key string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: key}}
	}
	return []*kind{
		{name: "etcd-write", send: func(ctx context.Context, key string) error {
			_, err := etcd.Put(ctx, "/bench-clients/"+key, time.Now().String())
			return err
		}},
		{name: "etcd-read", send: func(ctx context.Context, key string) error {
			_, err := etcd.Get(ctx, "/bench-clients/"+key)
			return err
		}},
		{name: "api-write", send: func(ctx context.Context, key string) error {
			patch := fmt.Appendf(nil, `{"data":{"at":%q}}`, time.Now())
			err := c.admin.Patch(ctx, object(key), client.RawPatch(types.MergePatchType, patch))
			if client.IgnoreNotFound(err) == nil && err != nil {
				return client.IgnoreAlreadyExists(c.admin.Create(ctx, object(key)))
			}
			return err
		}},
		{name: "api-read", send: func(ctx context.Context, key string) error {
			return client.IgnoreNotFound(c.admin.Get(ctx, client.ObjectKeyFromObject(object(key)), &corev1.ConfigMap{}))
		}},
	}
}

// replaceUnder replaces a Machine while clients of every kind send.
func (c *cluster) replaceUnder(ctx context.Context, kinds []*kind, old, next string) error {
	sending, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	began := time.Now()
	for _, k := range kinds {
		for n := range clientsOfAKind {
			work.Go(func() { k.run(ctx, sending, fmt.Sprintf("%s-%d", k.name, n), began) })
		}
	}
	_, err := c.replace(ctx, old, next, 3*time.Minute)
	stop()
	work.Wait()
	return err
}

// run sends one request after the other, each until it is answered, and begins none once sending ends.
func (k *kind) run(ctx, sending context.Context, key string, began time.Time) {
	pace := rate.NewLimiter(perClient, 1)
	for pace.Wait(sending) == nil {
		from, failed := time.Now(), 0
		var last error
		for ctx.Err() == nil {
			attempt, cancel := context.WithTimeout(ctx, patience)
			err := k.send(attempt, key)
			cancel()
			if err == nil {
				break
			}
			failed, last = failed+1, err
			if pace.Wait(ctx) != nil {
				break
			}
		}
		wait := time.Since(from)
		k.took(wait, failed)
		if wait > long || failed > 0 {
			progress("clients: %s waited %d ms, %.1f s after the deletion; %d attempts failed: %v", key, wait.Milliseconds(), from.Sub(began).Seconds(), failed, last)
		}
	}
}

func (k *kind) took(wait time.Duration, failed int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sent, k.failed, k.longest = k.sent+1, k.failed+failed, max(k.longest, wait)
	if wait > long {
		k.slow++
	}
}
