package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Alarms reports etcd's in the metrics and the log, on every replica: while one stands etcd refuses every write, an elected replica
// cannot renew its Lease, and soon there is none to report it. Make it with NewAlarms.
type Alarms struct {
	etcd  observe.Ring
	log   logr.Logger
	gauge *prometheus.GaugeVec
	last  string
}

// alarmEvery is how soon etcd is asked again: an alarm goes only by a person's hand.
const alarmEvery = 15 * time.Second

// NewAlarms registers the metric.
func NewAlarms(etcd observe.Ring, registry prometheus.Registerer, log logr.Logger) *Alarms {
	return &Alarms{etcd: etcd, log: log, gauge: promauto.With(registry).NewGaugeVec(prometheus.GaugeOpts{
		Name: "holdfast_etcd_alarms", Help: "1 for each alarm that stands in etcd, by alarm (NOSPACE, CORRUPT) and member ID (0 where etcd cannot tell); 0 for NOSPACE without an ID, once etcd was asked. Every replica serves it.",
	}, []string{"alarm", "id"})}
}

// Start asks etcd until the context ends.
func (a *Alarms) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, a.look, alarmEvery)
	return nil
}

func (a *Alarms) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, observe.EtcdTimeout)
	defer cancel()
	ring := a.etcd.Read(ctx)
	if !ring.Known && len(ring.Alarms) == 0 {
		return // what was seen last stands
	}
	a.gauge.Reset()
	a.gauge.WithLabelValues(quorum.AlarmNoSpace, "").Set(0) // of no member: an alert sees that it was looked
	for _, one := range ring.Alarms {
		a.gauge.WithLabelValues(one.Kind, fmt.Sprintf("%x", one.Member)).Set(1)
	}
	if now := fmt.Sprint(ring.Alarms); now != a.last {
		a.last = now
		for _, n := range membership.AlarmNotes(&ring) {
			a.log.Info(n.Message, "reason", n.Reason)
		}
	}
}
