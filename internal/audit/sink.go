package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
)

// Sink writes records. Make it with New; all methods may be called at the same time.
type Sink struct {
	repeats  *repeats
	repeated prometheus.Counter
	locals   []*local
	remote   *remote // nil without one
}

// New opens the sinks of the options, which must be valid. A local log that cannot be written is no error: Ready reports
// it, and it is tried again with each record.
func New(o Options) (*Sink, error) {
	s := &Sink{repeated: promauto.With(o.Registerer).NewCounter(prometheus.CounterOpts{
		Name: "holdfast_audit_repeated_total", Help: "Repairs that repeated one on record and are in a summary instead of a record of their own.",
	})}
	s.repeats = &repeats{write: s.send, fights: map[fight]*count{}}
	if len(o.LogPaths) > 0 {
		c := newCounters(o.Registerer, "log")
		for _, path := range o.LogPaths {
			s.locals = append(s.locals, newLocal(path, o, c))
		}
		promauto.With(o.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_audit_log_writable", Help: "1 if all local audit logs take records, 0 if one could not write the last one.",
		}, func() float64 {
			if s.Ready() != nil {
				return 0
			}
			return 1
		})
	}
	if o.WebhookConfigFile != "" {
		var err error
		if s.remote, err = newRemote(o.WebhookConfigFile, o.Log, newCounters(o.Registerer, "webhook")); err != nil {
			return nil, fmt.Errorf("--audit-webhook-config-file %s: %w", o.WebhookConfigFile, err)
		}
		go s.remote.run()
	}
	return s, nil
}

// Write records a decision. When it returns, the record is in each local log, or counted as one that
// is not; see the package's comment. A decision without findings and a dry run leave no record.
func (s *Sink) Write(r Record) {
	if len(s.locals) == 0 || r.DryRun || len(r.Decision.Findings) == 0 {
		return
	}
	e := r.event(time.Now())
	if s.repeats.counted(&r.Decision, e) {
		s.repeated.Inc()
		return
	}
	s.send(e)
}

func (s *Sink) send(e *auditapi.Event) {
	line, _ := runtime.Encode(audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), e) // into memory: it has no error
	var writing sync.WaitGroup
	for _, l := range s.locals {
		writing.Go(func() { l.write(line) }) // at the same time: if two hang, the wait is that for one
	}
	writing.Wait()
	if s.remote != nil {
		s.remote.add(e)
	}
}

// Ready says why a local log is not being written, nil if all are. It tries a log again if its last
// record failed, so that a log that works again is seen to. It is for people and monitoring: a guard
// that leaves its Service because a disk is full would change decisions.
func (s *Sink) Ready() error {
	var failed []error
	for _, l := range s.locals {
		failed = append(failed, l.ready())
	}
	return errors.Join(failed...)
}

// Close writes what is still counted, and sends what waits for the remote sink, until ctx is done.
// Records that come later still go to the local logs.
func (s *Sink) Close(ctx context.Context) error {
	s.repeats.close()
	if s.remote == nil {
		return nil
	}
	return s.remote.close(ctx)
}

// counters are those of one sink. They are there, at 0, from the start: an alert on a counter that
// is not there yet misses its first step.
type counters struct {
	events, errors, dropped prometheus.Counter
}

func newCounters(registry prometheus.Registerer, sink string) counters {
	with := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"sink": sink}, registry))
	counter := func(name, help string) prometheus.Counter {
		return with.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return counters{
		events:  counter("holdfast_audit_events_total", "Audit records that a sink (log, webhook) has taken."),
		errors:  counter("holdfast_audit_errors_total", "Failures of an audit sink: for log, records that could not be written; for webhook, calls, which are repeated."),
		dropped: counter("holdfast_audit_dropped_total", "Audit records that never got to a sink: for webhook, those that found its buffer full, that it refused for good, or that were left at shutdown. What the local log lost is in holdfast_audit_errors_total."),
	}
}

// complainEvery is how often a failure that lasts is logged.
const complainEvery = time.Minute
