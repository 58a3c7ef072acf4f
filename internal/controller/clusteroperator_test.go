package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	configv1 "github.com/openshift/api/config/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// told is a cluster whose ClusterOperators are counted.
type told struct {
	client.Client
	reads, writes int
	fail          error // of the next read
	log           []string
}

func newTold(t *testing.T) (*told, *ClusterOperator) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := configv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	c := &told{}
	c.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&configv1.ClusterOperator{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
				if c.reads++; c.fail != nil {
					return c.fail
				}
				return cl.Get(ctx, key, into, options...)
			},
			SubResourceUpdate: func(ctx context.Context, cl client.Client, sub string, object client.Object, options ...client.SubResourceUpdateOption) error {
				c.writes++
				return cl.SubResource(sub).Update(ctx, object, options...)
			},
		}).Build()
	return c, c.operator()
}

// operator is one that has just started.
func (c *told) operator() *ClusterOperator {
	return &ClusterOperator{
		Name: "holdfast", Version: "v1.2.3", Related: []configv1.ObjectReference{{Resource: "namespaces", Name: "holdfast-system"}},
		Client: c, Log: funcr.New(func(_, text string) { c.log = append(c.log, text) }, funcr.Options{}),
	}
}

func (c *told) status(t *testing.T) configv1.ClusterOperatorStatus {
	t.Helper()
	var object configv1.ClusterOperator
	if err := c.Get(t.Context(), client.ObjectKey{Name: "holdfast"}, &object); err != nil {
		t.Fatal(err)
	}
	return object.Status
}

func (c *told) condition(t *testing.T, kind membership.ConditionType) configv1.ClusterOperatorStatusCondition {
	t.Helper()
	for _, condition := range c.status(t).Conditions {
		if string(condition.Type) == string(kind) {
			return condition
		}
	}
	return configv1.ClusterOperatorStatusCondition{}
}

// ring is three voters at rest.
func threeVoters(at time.Time) *quorum.Snapshot {
	s := &quorum.Snapshot{Mode: quorum.ModeFull, Now: at, Desired: 3, Limits: quorum.DefaultLimits()}
	s.Ring = quorum.Ring{Known: true, Leader: 1, ReadAt: at}
	for id, name := range []string{"master-0", "master-1", "master-2"} {
		s.Ring.Members = append(s.Ring.Members, quorum.Member{ID: quorum.MemberID(id + 1), Name: name, Healthy: true, Leader: 1})
		s.Machines = append(s.Machines, quorum.Machine{Name: name, UID: "uid-" + name, Role: "master", Phase: "Running", Hook: quorum.EntryOurs, Latch: quorum.EntryOurs,
			Evidence: quorum.Evidence{MachineUID: "uid-" + name, MemberIDs: []quorum.MemberID{quorum.MemberID(id + 1)}}, EvidenceRaw: "{}"})
	}
	return s
}

// TestClusterOperator: what is told is written when it changes and at no other time, survives a restart,
// and is put right where somebody else changed it.
func TestClusterOperator(t *testing.T) {
	c, operator := newTold(t)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tells := func(o *ClusterOperator) *Reconciler { return &Reconciler{Reports: Reports{ClusterOperator: o}} }
	tell := func(r *Reconciler, after time.Duration, change func(*quorum.Snapshot)) {
		s := threeVoters(noon.Add(after))
		if change != nil {
			change(s)
		}
		p := membership.Decide(s)
		must(t, r.report(t.Context(), &p))
	}
	wrote := func(want int, when string) {
		t.Helper()
		if c.writes != want {
			t.Errorf("%s: %d writes, want %d", when, c.writes, want)
		}
		c.writes = 0
	}
	dead := func(why string) func(*quorum.Snapshot) {
		return func(s *quorum.Snapshot) { s.Ring.Members[2].Healthy, s.Ring.Members[2].Why = false, why }
	}

	o := tells(operator)
	unknown := func(s *quorum.Snapshot) { s.Ring = quorum.Ring{Why: "no answer yet"} }
	tell(o, -2*time.Second, unknown)
	wrote(0, "before etcd has answered")
	tell(o, 0, nil)
	wrote(1, "at first")
	other, operator := newTold(t)
	late := tells(operator)
	tell(late, 0, unknown)
	tell(late, 5*time.Second, unknown)
	if got := other.condition(t, membership.ConditionAvailable); got.Status != "Unknown" || got.Reason != "EtcdUnknown" {
		t.Errorf("where etcd does not answer it is told as %+v", got)
	}
	status := c.status(t)
	if len(status.Conditions) != 4 || len(status.Versions) != 1 || status.Versions[0].Version != "v1.2.3" || len(status.RelatedObjects) != 1 {
		t.Errorf("the status is %+v", status)
	}
	for at := 100 * time.Millisecond; at <= 30*time.Second; at += 100 * time.Millisecond {
		tell(o, at, nil)
	}
	wrote(0, "at rest")
	if c.reads > 10 {
		t.Errorf("%d reads in half a minute at rest", c.reads)
	}
	// It dies, and other words are found for that at each look.
	for i := range 600 {
		tell(o, 30*time.Second+time.Duration(i)*100*time.Millisecond, dead(strings.Repeat("x", i%7)))
	}
	if degraded := c.condition(t, membership.ConditionDegraded); degraded.Status != "True" || degraded.Reason != "EtcdMembersUnhealthy" || !strings.Contains(degraded.Message, "master-2 (3)") ||
		!degraded.LastTransitionTime.Time.Equal(noon.Add(60*time.Second)) {
		t.Errorf("it is told as %+v", degraded)
	}
	wrote(2, "when a voter dies") // how many are healthy at once, and its condition after the inertia
	if available := c.condition(t, membership.ConditionAvailable); available.Status != "True" || !available.LastTransitionTime.Time.Equal(noon) {
		t.Errorf("it is told as %+v", available)
	}

	// A restart forgets nothing that was told.
	again := tells(c.operator())
	tell(again, 95*time.Second, nil)
	if degraded := c.condition(t, membership.ConditionDegraded); degraded.Status != "True" || !degraded.LastTransitionTime.Time.Equal(noon.Add(60*time.Second)) {
		t.Errorf("after a restart it is told as %+v", degraded)
	}
	tell(again, 126*time.Second, nil)
	if degraded := c.condition(t, membership.ConditionDegraded); degraded.Status != "False" {
		t.Errorf("when it is over it is told as %+v", degraded)
	}

	// What somebody else wrote is put right at the next review, and other operators' conditions stay.
	var object configv1.ClusterOperator
	if err := c.Get(t.Context(), client.ObjectKey{Name: "holdfast"}, &object); err != nil {
		t.Fatal(err)
	}
	object.Status.Conditions = []configv1.ClusterOperatorStatusCondition{{Type: "Other", Status: "True", LastTransitionTime: metav1.NewTime(noon)}}
	if err := c.Status().Update(t.Context(), &object); err != nil {
		t.Fatal(err)
	}
	c.writes = 0
	tell(again, 140*time.Second, nil)
	wrote(1, "after somebody else")
	if got := c.status(t).Conditions; len(got) != 5 || c.condition(t, "Other").Status != "True" {
		t.Errorf("the conditions are %+v", got)
	}
}

// TestNoClusterOperators: where the API is missing that is said once and asked again once a minute; a
// read that fails is tried again later, and an operator without a name tells nobody.
func TestNoClusterOperators(t *testing.T) {
	c, o := newTold(t)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var failed error
	minute := func(o *ClusterOperator, from time.Duration) {
		for at := range 600 {
			s := threeVoters(noon.Add(from + time.Duration(at)*100*time.Millisecond))
			s.Ring.Members[2].Healthy = at > 300
			p := membership.Decide(s)
			failed = errors.Join(failed, o.report(t.Context(), membership.Conditions(&p), s.Now))
		}
	}
	c.fail = &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "config.openshift.io", Kind: "ClusterOperator"}}
	minute(o, 0)
	minute(o, time.Minute)
	if c.reads > 2 || c.writes != 0 || len(c.log) != 1 || failed != nil {
		t.Errorf("%d reads, %d writes, said %q, failed: %v", c.reads, c.writes, c.log, failed)
	}
	c.fail = nil
	minute(o, 2*time.Minute)
	if c.writes == 0 {
		t.Error("it is not told when the API has come")
	}
	c.fail, c.reads, failed = errors.New("no"), 0, nil
	minute(c.operator(), 4*time.Minute)
	if c.reads > 6 || failed == nil || !strings.Contains(failed.Error(), "not told") {
		t.Errorf("%d reads, failed: %v", c.reads, failed)
	}
	minute(nil, 5*time.Minute)
}
