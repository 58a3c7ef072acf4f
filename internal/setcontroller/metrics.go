package setcontroller

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// Metrics are the set's. Make them with NewMetrics. A replica that is not elected, and a cluster without a set, have no series of the
// set's state.
type Metrics struct {
	actions                         *prometheus.CounterVec
	machines, wanted, uneven, notes *prometheus.GaugeVec
}

// NewMetrics registers the set's metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	register := promauto.With(registry)
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return register.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	return &Metrics{
		actions: register.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_machineset_actions_total", Help: "What the control plane's set did, by action and result (done, failed).",
		}, []string{"action", "result"}),
		machines: gauge("holdfast_machineset_machines", "Machines of the control plane's set, by state (owned, deleting, ready, updated, unavailable).", "state"),
		wanted:   gauge("holdfast_machineset_replicas", "Machines that the control plane's set wants."),
		uneven:   gauge("holdfast_machineset_uneven", "By how many Machines the most crowded failure domain of the control plane's set exceeds the emptiest."),
		notes:    gauge("holdfast_machineset_note", "1 for each reason why the control plane's set waits or needs a person.", "reason"),
	}
}

func (m *Metrics) observe(set *machineset.Set, p *machineset.Plan) {
	c := &p.Counts
	for state, n := range map[string]int{"owned": c.Replicas, "deleting": c.Deleting, "ready": c.Ready, "updated": c.Updated, "unavailable": c.Unavailable} {
		m.machines.WithLabelValues(state).Set(float64(n))
	}
	m.wanted.WithLabelValues().Set(float64(set.Replicas))
	m.uneven.WithLabelValues().Set(float64(c.Uneven))
	m.notes.Reset()
	for _, n := range p.Notes {
		m.notes.WithLabelValues(string(n.Reason)).Set(1)
	}
}

// forget removes what describes a set: there is none, or another replica reports it.
func (m *Metrics) forget() {
	for _, gauge := range [...]*prometheus.GaugeVec{m.machines, m.wanted, m.uneven, m.notes} {
		gauge.Reset()
	}
}
