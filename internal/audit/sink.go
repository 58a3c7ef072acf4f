package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/natefinch/lumberjack.v2"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
)

// Sink writes records. Make it with New; all methods may be called at the same time.
type Sink struct {
	repeats *repeats
	local   *local  // nil without one
	remote  *remote // nil without one
	meters  meters
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
		size := cmp.Or(o.LogMaxSize, never)
		if info, err := os.Stat(o.LogPath); err == nil && !info.Mode().IsRegular() {
			size = never // a device is not to be renamed
		}
		out = &lumberjack.Logger{Filename: o.LogPath, MaxSize: size, MaxAge: o.LogMaxAge, MaxBackups: o.LogMaxBackup, Compress: o.LogCompress}
	}
	return open(o, out)
}

func open(o Options, out io.Writer) (*Sink, error) {
	s := &Sink{}
	var err error
	if s.meters, err = newMeters(o.Registerer); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.repeats = newRepeats(s.send)
	if out != nil {
		s.local = newLocal(o, out, s.meters.of("log"))
		if err := o.Registerer.Register(s.writable()); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	if o.WebhookConfigFile != "" {
		if s.remote, err = newRemote(o, s.meters.of("webhook")); err != nil {
			return nil, fmt.Errorf("--audit-webhook-config-file %s: %w", o.WebhookConfigFile, err)
		}
	}
	return s, nil
}

// writable is the metric for Ready.
func (s *Sink) writable() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_audit_log_writable", Help: "1 if the local audit log takes records, 0 if the last one could not be written.",
	}, func() float64 {
		if s.Ready() != nil {
			return 0
		}
		return 1
	})
}

// Write records a decision. When it returns, the record is in the local log, or counted as one that
// is not; see the package's comment. A decision without findings and a dry run leave no record.
func (s *Sink) Write(r Record) {
	if s.local == nil || r.DryRun || len(r.Decision.Findings) == 0 {
		return
	}
	e, err := r.event(time.Now())
	if err != nil {
		s.local.failed(err)
		return
	}
	if s.repeats.counted(&r.Decision, e) {
		s.meters.repeated.Inc()
		return
	}
	s.send(e)
}

func (s *Sink) send(e *auditapi.Event) {
	s.local.ProcessEvents(e)
	if s.remote != nil {
		s.remote.ProcessEvents(e)
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

// Close writes what is still counted, sends what waits for the remote sink, until ctx is done, and
// closes the log. Records that come later still go to the log.
func (s *Sink) Close(ctx context.Context) error {
	if s.local == nil {
		return nil
	}
	s.repeats.closeAll()
	var errs []error
	if s.remote != nil {
		errs = append(errs, s.remote.close(ctx))
	}
	return errors.Join(append(errs, s.local.close())...)
}

// meters are the counters of all sinks.
type meters struct {
	events, errors, dropped *prometheus.CounterVec
	repeated                prometheus.Counter
}

func newMeters(registry prometheus.Registerer) (meters, error) {
	vec := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"sink"})
	}
	m := meters{
		events:  vec("holdfast_audit_events_total", "Audit records that a sink (log, webhook) has taken."),
		errors:  vec("holdfast_audit_errors_total", "Failures of an audit sink: for log, records that could not be written; for webhook, calls, which are repeated."),
		dropped: vec("holdfast_audit_dropped_total", "Audit records that never got to a sink: for webhook, those that found its buffer full, that it refused for good, or that were left at shutdown. What the local log lost is in holdfast_audit_errors_total."),
		repeated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "holdfast_audit_repeated_total", Help: "Repairs that repeated one on record and are in a summary instead of a record of their own.",
		}),
	}
	for _, c := range []prometheus.Collector{m.events, m.errors, m.dropped, m.repeated} {
		if err := registry.Register(c); err != nil {
			return m, err
		}
	}
	return m, nil
}

// counters are those of one sink. They are there, at 0, from the start: an alert on a counter that
// is not there yet misses its first step.
type counters struct {
	events, errors, dropped prometheus.Counter
}

func (m meters) of(sink string) counters {
	return counters{m.events.WithLabelValues(sink), m.errors.WithLabelValues(sink), m.dropped.WithLabelValues(sink)}
}

// complainEvery is how often a failure that lasts is told in the process's log.
const complainEvery = time.Minute
