package webhooks

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// The handlers, as the label webhook names them.
const (
	mutating        = "mutating"
	validating      = "validating"
	home            = "home"
	keepers         = "keepers"
	controlPlaneSet = "control-plane-set"
)

// Metrics count the decisions and time the answers. Make them with NewMetrics.
type Metrics struct {
	Enforcement *prometheus.GaugeVec // by enforcement: 1 for the one in force

	decisions *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	register := promauto.With(registry)
	m := &Metrics{
		Enforcement: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_enforcement", Help: "1, labelled with --enforcement: enforce, warn or audit. But for the first, requests that the rules deny or repair pass as they are.",
		}, []string{"enforcement"}),
		decisions: register.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_admission_decisions_total",
			Help: "Findings of the admission rules, dry runs left out. A request without a finding touched nothing guarded and is not counted.",
		}, []string{"rule", "operation", "verdict"}),
		seconds: register.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "holdfast_admission_duration_seconds",
			Help:    "Time from a decoded AdmissionReview to its answer, reading etcd included.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .01, .05, .1, .25, .5, 1, 2, 3},
		}, []string{"webhook", "operation"}),
	}
	for _, verdict := range [...]admission.Verdict{admission.VerdictAllowed, admission.VerdictOverridden} {
		// An alert on a counter that is not there yet misses its first step.
		m.decisions.WithLabelValues(string(quorum.RuleEscapeHatch), admission.OperationUpdate.String(), verdict.String())
	}
	return m
}

func (m *Metrics) decided(r *Record) {
	if r.DryRun() {
		return
	}
	for _, f := range r.Decision.Findings {
		m.decisions.WithLabelValues(string(f.Rule), r.Request.Operation.String(), f.Verdict.String()).Inc()
	}
}

// timed observes an answer. The operation comes from outside, so only those that exist become labels.
func (m *Metrics) timed(webhook string, operation admissionv1.Operation, start time.Time) {
	switch operation {
	case admissionv1.Create, admissionv1.Update, admissionv1.Delete:
	default:
		operation = "other"
	}
	m.seconds.WithLabelValues(webhook, string(operation)).Observe(time.Since(start).Seconds())
}
