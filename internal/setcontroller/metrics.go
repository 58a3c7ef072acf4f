package setcontroller

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// Metrics are the set's. Make them with NewMetrics. A replica that is not elected, and a cluster without a set, have no series of the
// set's state.
type Metrics struct {
	actions  *prometheus.CounterVec
	machines *prometheus.GaugeVec
	wanted   *prometheus.GaugeVec
	uneven   *prometheus.GaugeVec
	notes    *prometheus.GaugeVec
}

// NewMetrics registers the set's metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_machineset_actions_total", Help: "What the control plane's set did, by action and result (done, failed).",
		}, []string{"action", "result"}),
		machines: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_machineset_machines", Help: "Machines of the control plane's set, by state (owned, deleting, ready, updated, unavailable).",
		}, []string{"state"}),
		wanted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_machineset_replicas", Help: "Machines that the control plane's set wants.",
		}, nil),
		uneven: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_machineset_uneven", Help: "By how many Machines the most crowded failure domain of the control plane's set exceeds the emptiest.",
		}, nil),
		notes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_machineset_note", Help: "1 for each reason why the control plane's set waits or needs a person.",
		}, []string{"reason"}),
	}
	for _, c := range [...]prometheus.Collector{m.actions, m.machines, m.wanted, m.uneven, m.notes} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("set metrics: %w", err)
		}
	}
	return m, nil
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
	m.machines.Reset()
	m.wanted.Reset()
	m.uneven.Reset()
	m.notes.Reset()
}
