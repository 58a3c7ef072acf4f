package registrations

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are of the registrations and the certificate. Make them with NewMetrics.
type Metrics struct {
	present  *prometheus.GaugeVec
	restored *prometheus.CounterVec
	enforced *prometheus.GaugeVec
	reached  *prometheus.GaugeVec
	expiry   prometheus.Gauge
	answered prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	register := promauto.With(registry)
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return register.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		present: gauge("holdfast_registration_present", "1 if the API server has this webhook, policy or policy binding of Holdfast, else 0. Also 0 for one that somebody changed and Holdfast cannot put back, or that Holdfast may not read. One that another holder of the Lease may have changed counts as there.", "kind", "name"),
		restored: register.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_registration_restored_total", Help: "How often a registration of Holdfast was put back that had been right, by the object's kind and name.",
		}, []string{"kind", "name"}),
		enforced: gauge("holdfast_registration_enforced", "1 if what this webhook guards is refused while no Holdfast answers (failurePolicy Fail), else 0.", "name"),
		reached:  gauge("holdfast_registration_reached", "1 if the elected replica's last call through the API server came back from this webhook, else 0; none while there is no Machine to try it with.", "name"),
		expiry:   gauge("holdfast_webhook_certificate_expiry_timestamp_seconds", "When the certificate that this replica serves the webhooks with expires; 0 while there is none.").WithLabelValues(),
		answered: gauge("holdfast_etcd_answered", "1 if etcd has answered this replica a linearizable read since its start, else 0.").WithLabelValues(),
	}
	for _, o := range (&Registrar{}).objects() {
		m.restored.WithLabelValues(o.kind, o.name) // an alert on a counter that is not there yet misses its first step
	}
	return m
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
