package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Metrics are the reconciler's. Make them with NewMetrics.
type Metrics struct {
	members *prometheus.GaugeVec
	desired prometheus.Gauge
	lag     prometheus.Gauge
	read    prometheus.Gauge
	actions *prometheus.CounterVec
}

// NewMetrics registers the reconciler's metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		members: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "holdfast_etcd_members", Help: "Listed etcd members, by role (voter, learner) and health (healthy, unhealthy).",
		}, []string{"role", "health"}),
		desired: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_desired_voters", Help: "Voters that are wanted, 0 if that is not known.",
		}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_learner_lag_entries", Help: "Raft entries that the learner furthest behind is behind the leader, 0 without a learner.",
		}),
		read: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "holdfast_etcd_last_read_timestamp_seconds", Help: "Time of the last linearizable read of etcd's members.",
		}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_plan_actions_total", Help: "Actions of the plan, by kind and result (done, not-yet, failed).",
		}, []string{"kind", "result"}),
	}
	for _, c := range []prometheus.Collector{m.members, m.desired, m.lag, m.read, m.actions} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// observe sets the gauges from a Snapshot. An unknown ring leaves the last known members standing;
// the time of the last read says how old they are.
func (m *Metrics) observe(s *quorum.Snapshot) {
	m.desired.Set(float64(s.Desired))
	if !s.Ring.Known {
		return
	}
	m.read.Set(float64(s.Ring.ReadAt.UnixNano()) / 1e9)
	counts := map[[2]string]int{{"voter", "healthy"}: 0, {"voter", "unhealthy"}: 0, {"learner", "healthy"}: 0, {"learner", "unhealthy"}: 0}
	var lag uint64
	for k := range s.Ring.Members {
		member, role, health := &s.Ring.Members[k], "voter", "unhealthy"
		if member.Learner {
			role = "learner"
			lag = max(lag, s.Lag(member))
		}
		if member.Healthy {
			health = "healthy"
		}
		counts[[2]string{role, health}]++
	}
	for labels, n := range counts {
		m.members.WithLabelValues(labels[0], labels[1]).Set(float64(n))
	}
	m.lag.Set(float64(lag))
}
