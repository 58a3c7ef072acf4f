package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// remote is the remote sink: a bounded queue, and a client that sends what the API server's own backend would. That one gives up
// after some tries, does not say what it lost, and cannot be stopped.
type remote struct {
	queue    chan *auditapi.Event
	client   rest.Interface
	backoff  wait.Backoff
	counters counters
	log      logr.Logger
	complain rate.Sometimes

	ctx    context.Context // done when there is no more time
	cancel context.CancelFunc
	ended  chan struct{} // closed when the last record is sent or dropped

	mu     sync.Mutex // held while a record is queued
	closed bool       // no more records are queued
}

// The limits of the remote sink.
const (
	queueLimit = 1000 // records that wait
	batchLimit = 100  // records in one call
	firstPause = 10 * time.Second
	mostPause  = time.Minute
)

func newRemote(kubeconfig string, log logr.Logger, c counters) (*remote, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Timeout, config.QPS = 30*time.Second, -1
	config.ContentType = runtime.ContentTypeJSON
	codec := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	config.NegotiatedSerializer = serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{Serializer: codec})
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err
	}
	r := &remote{
		queue: make(chan *auditapi.Event, queueLimit), client: client, ended: make(chan struct{}),
		backoff:  wait.Backoff{Duration: firstPause, Factor: 1.5, Jitter: 0.2, Steps: math.MaxInt, Cap: mostPause},
		counters: c, log: log, complain: rate.Sometimes{Interval: complainEvery},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// add queues a record, if there is room.
func (r *remote) add(e *auditapi.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.drop(1, errors.New("Holdfast is shutting down"))
		return
	}
	select {
	case r.queue <- e:
	default:
		r.drop(1, fmt.Errorf("%d records wait already", cap(r.queue)))
	}
}

// run sends what is queued, many records in one call if many wait.
func (r *remote) run() {
	defer close(r.ended)
	for e := range r.queue {
		batch := auditapi.EventList{Items: []auditapi.Event{*e}}
		for len(r.queue) > 0 && len(batch.Items) < batchLimit {
			batch.Items = append(batch.Items, *<-r.queue)
		}
		r.send(&batch)
	}
}

// send sends a batch until the server takes it, says that it never will, or time is up.
func (r *remote) send(batch *auditapi.EventList) {
	n := len(batch.Items)
	var failed error
	_ = r.backoff.DelayFunc().Until(r.ctx, true, true, func(ctx context.Context) (bool, error) {
		if failed = r.client.Post().Body(batch).Do(ctx).Error(); failed == nil {
			return true, nil
		}
		r.counters.errors.Inc()
		r.complain.Do(func() { r.log.Error(failed, "the audit webhook did not take records", "records", n) })
		// Would it take them the next time?
		return apierrors.IsBadRequest(failed) || apierrors.IsRequestEntityTooLargeError(failed), nil
	})
	if failed != nil {
		r.drop(n, failed)
		return
	}
	r.counters.events.Add(float64(n))
}

func (r *remote) drop(n int, err error) {
	r.counters.dropped.Add(float64(n))
	r.complain.Do(func() {
		r.log.Error(err, "audit records for the webhook are dropped; they are in the local log, if that could be written", "records", n)
	})
}

// close delivers what waits, until ctx is done.
func (r *remote) close(ctx context.Context) error {
	defer context.AfterFunc(ctx, r.cancel)()
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
	r.mu.Unlock()
	<-r.ended
	if r.ctx.Err() != nil {
		return fmt.Errorf("send the last audit records to the webhook: %w", r.ctx.Err())
	}
	return nil
}
