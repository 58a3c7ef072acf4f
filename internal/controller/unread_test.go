package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// TestUnreadable: where Holdfast may not list Nodes, conditions and metrics say so.
func TestUnreadable(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, ok := list.(*corev1.NodeList); ok {
				return errors.New("nodes is forbidden")
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	cluster, operator := newTold(t)
	meters, registry := newMetrics(t)
	ring := &fixedRing{[]quorum.Member{{ID: 2, Name: "m", PeerURLs: []string{"https://10.0.0.2:2380"}, Healthy: true}}}
	r := &Reconciler{
		Client: api, Etcd: ring, Log: logr.Discard(), Reports: Reports{Events: events.NewFakeRecorder(10), Metrics: meters, ClusterOperator: operator},
		Observer: &observe.Observer{API: api, Etcd: ring, Namespace: "openshift-machine-api", Mode: quorum.ModeFull, Desired: 1, Limits: quorum.DefaultLimits(), Clock: clock.RealClock{}},
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err == nil || !strings.Contains(err.Error(), "nodes is forbidden") {
		t.Errorf("the round says %v", err)
	}
	for kind, status := range map[membership.ConditionType]string{membership.ConditionProgressing: "Unknown", membership.ConditionDegraded: "True", membership.ConditionUpgradeable: "False"} {
		if got := cluster.condition(t, kind); string(got.Status) != status || got.Reason != "ClusterUnreadable" || !strings.Contains(got.Message, "nodes is forbidden") {
			t.Errorf("%s is told as %+v", kind, got)
		}
	}
	if scrape(t, registry)["condition{ClusterUnreadable}"] != 1 {
		t.Error("no metric tells of it")
	}
}

// TestUntold: conditions that cannot be written are a failure, which the metrics tell of.
func TestUntold(t *testing.T) {
	c, o := newTold(t)
	s := threeVoters(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	p := membership.Decide(s)
	c.fail = errors.New("clusteroperators is forbidden")
	if err := o.report(t.Context(), membership.Conditions(&p), s.Now); err == nil {
		t.Error("no error")
	}
	s.Now = s.Now.Add(time.Minute)
	s.Failures = o.failures()
	p = membership.Decide(s)
	if len(p.Notes) != 1 || p.Notes[0].Reason != membership.ReasonConditionsNotTold || !strings.Contains(p.Notes[0].Message, "clusteroperators is forbidden") {
		t.Errorf("it is told as %+v", p.Notes)
	}
	c.fail = nil
	must(t, o.report(t.Context(), membership.Conditions(&p), s.Now))
	if len(o.failures()) > 0 {
		t.Errorf("they are told, and still: %v", o.failures())
	}
}
