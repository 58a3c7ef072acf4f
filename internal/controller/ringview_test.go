package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
	"github.com/holdfast-dev/holdfast/test/apiserver"
)

// TestRingView: when a real API server is told of the ring, and what it then holds.
func TestRingView(t *testing.T) {
	t.Parallel()
	env := apiserver.Start(t)
	api, err := client.NewWithWatch(env.Config, client.Options{})
	must(t, err)
	ctx := t.Context()
	v := &RingView{Client: api, Namespace: "holdfast-system", By: "holdfast-0/1"}
	failures := 0
	tell := func(s *quorum.Snapshot) {
		if v.report(ctx, s) != nil {
			failures++
		}
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	look := func(change func(*quorum.Snapshot)) *quorum.Snapshot {
		s := ringOf(now, 1, 2, 3, 4)
		s.Ring.ReadAt, s.Ring.Leader, s.Limits, s.Desired = now, 1, quorum.DefaultLimits(), 3
		s.Ring.Members[3].Learner = true
		if change != nil {
			change(s)
		}
		return s
	}
	held := func() corev1.ConfigMap {
		t.Helper()
		var cm corev1.ConfigMap
		must(t, api.Get(ctx, client.ObjectKey{Namespace: "holdfast-system", Name: "holdfast-ring"}, &cm))
		return cm
	}
	ring := func() *quorum.Snapshot {
		t.Helper()
		read, err := snapshotfile.ParseRing(held().Data)
		must(t, err)
		if read.By != "holdfast-0/1" {
			t.Errorf("told by %q", read.By)
		}
		return read.Snapshot
	}
	// step lets time pass, and wants that the look is told, or is not.
	step := func(after time.Duration, written bool, what string, change func(*quorum.Snapshot)) {
		t.Helper()
		before := held().ResourceVersion
		now = now.Add(after)
		tell(look(change))
		if got := held().ResourceVersion != before; got != written {
			t.Errorf("%s: written is %t", what, got)
		}
	}

	// Without its namespace it fails, and does not ask at each look.
	for range 4 {
		tell(look(nil))
		now = now.Add(ringRetry / 2)
	}
	if failures != 2 {
		t.Errorf("%d failures in 10 s", failures)
	}
	must(t, api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "holdfast-system"}}))
	now = now.Add(ringRetry)
	tell(look(nil))
	if got := ring(); !got.Ring.Known || len(got.Ring.Members) != 4 || got.Mode != quorum.ModeFull || got.Desired != 3 || !got.Now.Equal(now) || got.Limits != quorum.DefaultLimits() {
		t.Errorf("told %+v", got)
	}
	if got := held().Data["snapshot.yaml"]; failures != 2 || len(ring().Nodes) != 0 {
		t.Errorf("told %s after %d failures", got, failures)
	}

	step(time.Second, false, "as it was", nil)
	step(time.Second, false, "a voter applied more", func(s *quorum.Snapshot) { s.Ring.Members[0].Applied, s.Ring.Index = 7, 7 })
	step(retellEvery, true, "as it was, a while later", nil)
	step(time.Second, false, "a learner's progress, at once", func(s *quorum.Snapshot) { s.Ring.Members[3].Applied = 5 })
	step(time.Second, true, "a learner's progress, 2 s later", func(s *quorum.Snapshot) { s.Ring.Members[3].Applied = 9 })
	step(0, true, "another leader", func(s *quorum.Snapshot) { s.Ring.Leader = 2 })
	step(0, true, "a member is ill", func(s *quorum.Snapshot) { s.Ring.Members[1].Healthy = false })
	step(0, true, "and well again", nil)
	step(0, true, "promoted", func(s *quorum.Snapshot) { s.Ring.Members[3].Learner = false })
	step(0, true, "a member less", func(s *quorum.Snapshot) { s.Ring.Members = s.Ring.Members[:3] })
	step(0, true, "guard mode", func(s *quorum.Snapshot) { s.Mode = quorum.ModeGuard })
	step(0, true, "etcd is away", func(s *quorum.Snapshot) { s.Ring = quorum.Ring{Why: "no answer in time"} })
	if got := ring(); got.Ring.Known || got.Ring.Why != "no answer in time" {
		t.Errorf("told %+v", got.Ring)
	}
	restarted := &RingView{Client: api, Namespace: "holdfast-system", By: "holdfast-0/2"}
	must(t, restarted.report(ctx, look(func(s *quorum.Snapshot) { s.Ring = quorum.Ring{Why: "where is it?"} })))
	if got := snapshotfile.RingEndpoints(held().Data); !slices.Equal(got, []string{"https://10.0.0.1:2379", "https://10.0.0.2:2379", "https://10.0.0.3:2379"}) {
		t.Errorf("while etcd is away it is to be found at %q", got)
	}
	step(time.Second, false, "other words for it, at once", func(s *quorum.Snapshot) { s.Ring = quorum.Ring{Why: "no leader"} })

	// What somebody else wrote in between is read first.
	edited := held()
	edited.Data = map[string]string{"snapshot.yaml": "}{"}
	must(t, api.Update(ctx, &edited))
	step(0, true, "after an edit", nil)
	if got := ring(); !got.Ring.Known {
		t.Errorf("told %+v", got.Ring)
	}
	gone := held()
	must(t, api.Delete(ctx, &gone))
	tell(look(func(s *quorum.Snapshot) { s.Ring.Leader = 3 }))
	if got := ring(); !got.Ring.Known || got.Ring.Leader != 3 {
		t.Errorf("told after a deletion: %+v", got.Ring)
	}

	testOperatorCondition(t, env.Config, "holdfast-system")

	// An API server that does not answer holds up no round for long, and not every one.
	asked := 0
	v.Client = interceptor.NewClient(api, interceptor.Funcs{
		Update: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ ...client.UpdateOption) error {
			asked++
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("it waits for ever")
			}
			return errors.New("it hangs")
		},
	})
	failures = 0
	for range 10 {
		now = now.Add(time.Second)
		tell(look(func(s *quorum.Snapshot) { s.Ring.Leader = 2 }))
	}
	if asked != 2 || failures != 2 {
		t.Errorf("asked %d times in 10 s, failed %d times", asked, failures)
	}

	v.Client = api
	now = now.Add(ringRetry)
	tell(look(func(s *quorum.Snapshot) { s.Ring.Leader = 3 }))
	if got := ring(); !got.Now.Equal(now) {
		t.Errorf("after trouble it waits, although what stands there is not known: %s", got.Now)
	}

	// Nobody need be told.
	must(t, (*RingView)(nil).report(ctx, look(nil)))
}
