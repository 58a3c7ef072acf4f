package scenario_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/test/metrics"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestAlarm has etcd run out of space in the middle of a replacement. Every write is refused then, Holdfast's own among them: it waits, says
// so by what needs no write, and goes on once the alarm is disarmed.
func TestAlarm(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, HoldfastArgs: []string{"--leader-elect=true"}})
	c.atRest(t)
	must(t, c.replacement(t.Context(), "master-0", "next"))
	must(t, c.remove(t.Context(), "master-0"))
	list, err := c.etcd.MemberList(t.Context())
	must(t, err)
	alarm := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE, MemberID: list.Members[0].GetID()}
	_, err = pb.NewMaintenanceClient(c.etcd.ActiveConnection()).Alarm(t.Context(), alarm)
	must(t, err)

	began := time.Now()
	requests, err := c.metric(t.Context(), "rest_client_requests_total")
	must(t, err)
	failed, err := c.metric(t.Context(), "holdfast_plan_actions_total", `result="failed"`)
	must(t, err)
	eventually(t, slowly, "the alarm in the metrics", func(ctx context.Context) error {
		n, err := c.metric(ctx, "holdfast_etcd_alarms", `alarm="NOSPACE"`)
		if err == nil && n != 1 {
			err = fmt.Errorf("there are %v alarms", n)
		}
		return err
	})
	_, out, _ := c.plugin(t, true, "status")
	if !strings.Contains(out, string(membership.ReasonEtcdNoSpace)) || !strings.Contains(out, "etcdctl alarm disarm") || strings.Contains(out, "Next, step") {
		t.Errorf("status does not say what etcd's alarm is about: %s", out)
	}
	c.logs(t, "this replica is no longer elected")
	after, err := c.metric(t.Context(), "rest_client_requests_total")
	must(t, err)
	t.Logf("Holdfast sends %.1f requests a second", (after-requests)/time.Since(began).Seconds())
	failing, err := c.metric(t.Context(), "holdfast_plan_actions_total", `result="failed"`)
	must(t, err)
	if n := failing - failed; n > 10 { // those before it saw the alarm
		t.Errorf("%v actions failed while nothing could be done", n)
	}
	if n, err := c.metric(t.Context(), "holdfast_etcd_alarms", `alarm="NOSPACE"`); err != nil || n != 1 {
		t.Errorf("nobody is elected, and there are %v alarms: %v", n, err)
	}

	alarm.Action = pb.AlarmRequest_DEACTIVATE
	_, err = pb.NewMaintenanceClient(c.etcd.ActiveConnection()).Alarm(t.Context(), alarm)
	must(t, err)
	c.gone(t, slowly, "master-0")
	c.atRest(t)
	eventually(t, slowly, "no alarm in the metrics", func(ctx context.Context) error {
		n, err := c.metric(ctx, "holdfast_etcd_alarms")
		if err == nil && n != 0 {
			err = fmt.Errorf("there are %v alarms", n)
		}
		return err
	})
}

// metric adds the samples of one of Holdfast's metrics whose labels hold all of the texts.
func (c *cluster) metric(ctx context.Context, name string, labels ...string) (float64, error) {
	page, err := metrics.Read(ctx, http.DefaultClient, c.MetricsURL())
	return page.Sum(name, labels...), err
}
