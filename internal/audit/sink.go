package audit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"gopkg.in/natefinch/lumberjack.v2"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
)

// Sink writes records. Make it with New; all methods may be called at the same time.
type Sink struct {
	repeats  *repeats
	repeated prometheus.Counter
	local    *local  // nil without one
	remote   *remote // nil without one
}

// New opens the sinks of the options, which are to be valid. A local log that cannot be written is no error: Ready tells of
// it, and it is tried again with each record.
func New(o Options) (*Sink, error) {
	var out io.Writer
	switch o.LogPath {
	case "":
	case stdoutPath:
		out = o.Stdout
	default:
		const never = math.MaxInt64 >> 20 // megabytes; lumberjack takes 0 for 100
		size := cmp.Or(o.LogMaxSize, never)
		if info, err := os.Stat(o.LogPath); err == nil && !info.Mode().IsRegular() {
			size = never // a device is not to be renamed
		}
		out = &lumberjack.Logger{Filename: o.LogPath, MaxSize: size, MaxAge: o.LogMaxAge, MaxBackups: o.LogMaxBackup, Compress: o.LogCompress}
	}
	return open(o, out)
}

func open(o Options, out io.Writer) (*Sink, error) {
	s := &Sink{repeated: promauto.With(o.Registerer).NewCounter(prometheus.CounterOpts{
		Name: "holdfast_audit_repeated_total", Help: "Repairs that repeated one on record and are in a summary instead of a record of their own.",
	})}
	s.repeats = &repeats{write: s.send, fights: map[fight]*count{}}
	if out != nil {
		s.local = newLocal(o, out, newCounters(o.Registerer, "log"))
		promauto.With(o.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_audit_log_writable", Help: "1 if the local audit log takes records, 0 if the last one could not be written.",
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

// Write records a decision. When it returns, the record is in the local log, or counted as one that
// is not; see the package's comment. A decision without findings and a dry run leave no record.
func (s *Sink) Write(r Record) {
	if s.local == nil || r.DryRun || len(r.Decision.Findings) == 0 {
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
	s.local.write(e)
	if s.remote != nil {
		s.remote.add(e)
	}
}

// Ready says why the local log is not being written, nil if it is. It tries the log again if the last
// record failed, so that a log that works again is seen to. It is for people and monitoring: a guard
// that leaves its Service because a disk is full would change decisions.
func (s *Sink) Ready() error {
	if s.local == nil {
		return nil
	}
	return s.local.ready()
}

// Close writes what is still counted, and sends what waits for the remote sink, until ctx is done.
// Records that come later still go to the local log.
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

// complainEvery is how often a failure that lasts is told in the process's log.
const complainEvery = time.Minute
