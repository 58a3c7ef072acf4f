package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
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
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// remote is the remote sink: the API server's buffer, in front of a client that sends what the API server
// would. The API server's own backend gives up after five tries, tells nobody, and cannot be stopped; its
// client links the egress selector and tracing with it, a megabyte that is resident.
type remote struct {
	buffer   audit.Backend
	stop     chan struct{} // closed when no more records come
	limit    int64
	waiting  atomic.Int64 // records taken and neither delivered nor dropped
	client   rest.Interface
	backoff  wait.Backoff
	counters counters
	log      logr.Logger
	complain rate.Sometimes

	ctx    context.Context // done when there is no more time
	cancel context.CancelFunc

	mu     sync.RWMutex // held to read while a record is handed to the buffer
	closed bool
}

func newRemote(o Options, c counters) (*remote, error) {
	config, err := webhookConfig(o.WebhookConfigFile)
	if err != nil {
		return nil, err
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err
	}
	r := &remote{
		stop: make(chan struct{}), limit: int64(o.WebhookBatchBufferSize), client: client,
		backoff:  wait.Backoff{Duration: o.WebhookInitialBackoff, Factor: 1.5, Jitter: 0.2, Steps: math.MaxInt, Cap: max(time.Minute, o.WebhookInitialBackoff)},
		counters: c, log: o.Log, complain: rate.Sometimes{Interval: complainEvery},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.buffer = buffered.NewBackend((*delivery)(r), buffered.BatchConfig{
		BufferSize: o.WebhookBatchBufferSize, MaxBatchSize: o.WebhookBatchMaxSize, MaxBatchWait: o.WebhookBatchMaxWait,
	})
	return r, r.buffer.Run(r.stop)
}

// webhookConfig says how the remote sink is reached: by a kubeconfig, with a limit on each request, and as often
// as there are records to send.
func webhookConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Timeout, config.QPS = 30*time.Second, -1
	config.ContentType = runtime.ContentTypeJSON
	codec := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	config.NegotiatedSerializer = serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{Serializer: codec})
	return config, nil
}

// ProcessEvents queues an event. It counts what waits itself, for the buffer does not tell when it is
// full: as many as its limit, those under way included, so the buffer never is.
func (r *remote) ProcessEvents(e *auditapi.Event) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch {
	case r.closed:
		r.drop(1, errors.New("Holdfast is shutting down"))
	case r.waiting.Add(1) > r.limit:
		r.waiting.Add(-1)
		r.drop(1, fmt.Errorf("%d records wait already", r.limit))
	default:
		r.buffer.ProcessEvents(e)
	}
}

func (r *remote) drop(n int, err error) {
	r.counters.dropped.Add(float64(n))
	r.complain.Do(func() {
		r.log.Error(err, "audit records for the webhook are dropped; they are in the local log, if that could be written", "records", n)
	})
}

// close delivers what waits, until ctx is done.
func (r *remote) close(ctx context.Context) error {
	r.mu.Lock()
	was := r.closed
	r.closed = true
	r.mu.Unlock()
	if was {
		return nil
	}
	defer r.cancel()
	defer context.AfterFunc(ctx, r.cancel)()
	close(r.stop)
	r.buffer.Shutdown()
	if ctx.Err() != nil {
		return fmt.Errorf("send the last audit records to the webhook: %w", ctx.Err())
	}
	return nil
}

// delivery is the buffer's other end.
type delivery remote

// ProcessEvents sends a batch until the server takes it, says that it never will, or time is up. The
// queue behind it fills meanwhile, and its limit bounds the memory that takes.
func (d *delivery) ProcessEvents(events ...*auditapi.Event) bool {
	r := (*remote)(d)
	defer r.waiting.Add(-int64(len(events)))
	var list auditapi.EventList
	for _, e := range events {
		list.Items = append(list.Items, *e)
	}
	var last error
	err := r.backoff.DelayFunc().Until(r.ctx, true, true, func(ctx context.Context) (bool, error) {
		if last = r.client.Post().Body(&list).Do(ctx).Error(); last == nil {
			return true, nil
		}
		r.counters.errors.Inc()
		r.complain.Do(func() { r.log.Error(last, "the audit webhook did not take records", "records", len(events)) })
		if apierrors.IsBadRequest(last) || apierrors.IsRequestEntityTooLargeError(last) {
			return false, last // nor would it the next time
		}
		return false, nil
	})
	if err != nil {
		if last == nil {
			last = err
		}
		r.drop(len(events), last)
		return false
	}
	r.counters.events.Add(float64(len(events)))
	return true
}

// Run, Shutdown and String make it an audit.Backend.
func (*delivery) Run(<-chan struct{}) error { return nil }
func (*delivery) Shutdown()                 {}
func (*delivery) String() string            { return "webhook" }
