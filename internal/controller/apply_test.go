package controller

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// fixedRing is a ring whose members are given, and which nobody changes.
type fixedRing struct{ members []quorum.Member }

func (r *fixedRing) Read(context.Context) quorum.Ring {
	return quorum.Ring{Known: true, Leader: 2, Index: 10000, Version: "3.7.3", Members: r.members}
}

func (r *fixedRing) LockHolder(context.Context) (quorum.Lock, error) { return quorum.Lock{}, nil }

func (r *fixedRing) Lock(context.Context) (*etcd.MembershipLock, error) {
	return nil, errors.New("nobody changes it")
}

// hanging is a connection on which a PATCH hangs until its context ends, or its answer gets lost. No time passes.
type hanging struct {
	http.RoundTripper
	hangs, loses bool
	bounds       []time.Duration // for how long each PATCH would have been waited for
}

func (h *hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch {
		end, _ := r.Context().Deadline()
		h.bounds = append(h.bounds, time.Until(end))
		if h.hangs {
			return nil, context.DeadlineExceeded
		}
	}
	answer, err := h.RoundTripper.RoundTrip(r)
	if err == nil && h.loses && r.Method == http.MethodPatch {
		return nil, errors.Join(context.DeadlineExceeded, answer.Body.Close())
	}
	return answer, err
}

// begun is a look that began so long ago.
func begun(ago time.Duration) *quorum.Snapshot { return &quorum.Snapshot{Began: time.Now().Add(-ago)} }

// TestRelease releases the hook of a Machine on a real API server, by a decision made on an earlier look.
func TestRelease(t *testing.T) {
	t.Parallel()
	config := rest.CopyConfig(apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...)).Config)
	connection := &hanging{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		connection.RoundTripper = next
		return connection
	})
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api, err := client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: where}}))
	voter := quorum.Member{ID: 1, Name: "old", PeerURLs: []string{"https://10.0.0.1:2380"}, Healthy: true}
	stays := quorum.Member{ID: 2, Name: "new", PeerURLs: []string{"https://10.0.0.2:2380"}, Healthy: true}
	for _, m := range []quorum.Member{voter, stays} {
		o := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: where, Name: m.Name, Labels: map[string]string{quorum.RoleLabel: "master"}, Finalizers: []string{machinev1beta1.MachineFinalizer},
		}}
		machineapi.Put(o, true, true, nil)
		must(t, api.Create(t.Context(), o))
		o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: map[string]string{"old": "10.0.0.1", "new": "10.0.0.2"}[m.Name]}}
		o.Status.Phase = new(machinev1beta1.PhaseRunning)
		must(t, api.Status().Update(t.Context(), o))
	}
	ring := &fixedRing{[]quorum.Member{voter, stays}}
	meters := NewMetrics(prometheus.NewRegistry())
	said := events.NewFakeRecorder(2)
	r := &Reconciler{Client: api, Etcd: ring, Log: logr.Discard(), Reports: Reports{Events: said, Metrics: meters}, Observer: &observe.Observer{
		API: api, Etcd: ring, Namespace: where, Mode: quorum.ModeFull, Desired: 1, Limits: quorum.DefaultLimits(), Clock: clock.RealClock{},
	}}
	seen, err := r.readCluster(t.Context())
	must(t, err)
	for _, a := range membership.Decide(seen).Actions { // evidence
		must(t, r.apply(t.Context(), a, seen))
	}
	var old machinev1beta1.Machine
	key := client.ObjectKey{Namespace: where, Name: "old"}
	must(t, api.Get(t.Context(), key, &old))
	must(t, api.Delete(t.Context(), &old))

	release := membership.Action{Machine: old.Name, UID: string(old.UID), Change: membership.ReleaseHook{Hook: true, Latch: true}}
	held := func(when string, want bool) {
		t.Helper()
		var m machinev1beta1.Machine
		must(t, api.Get(t.Context(), key, &m))
		if got := machineapi.Machine(&m).Hook == quorum.EntryOurs; got != want {
			t.Errorf("%s: the hook is there: %t", when, got)
		}
	}

	// The member is listed, whatever the look showed a while ago that the release was decided on.
	if err := r.apply(t.Context(), release, begun(time.Second)); !errors.Is(err, errChanged) {
		t.Errorf("on a look that is no longer true: %v", err)
	}
	held("on a look that is no longer true", true)

	// Each attempt that hangs is waited for longer, up to a bound.
	ring.members = []quorum.Member{stays}
	connection.hangs, connection.bounds = true, nil
	for range 5 {
		if err := r.apply(t.Context(), release, begun(0)); !errors.As(err, new(notYet)) {
			t.Errorf("while the API server hangs: %v", err)
		}
	}
	held("while the API server hangs", true)
	connection.hangs = false

	// What went through although the answer got lost is told when it is seen.
	seen, err = r.readCluster(t.Context())
	must(t, err)
	connection.loses = true
	_, err = r.act(t.Context(), seen, &membership.Plan{Actions: []membership.Action{release}}, nil)
	must(t, err)
	connection.loses = false
	held("in the end", false)
	if len(said.Events) > 0 {
		t.Errorf("told before it was seen: %s", <-said.Events)
	}
	for range 2 {
		seen, err = r.readCluster(t.Context())
		must(t, err)
		r.reportAmbiguous(seen)
	}
	if len(said.Events) != 1 || !strings.Contains(<-said.Events, "HookReleased") {
		t.Errorf("the release was not told, or twice: %d more Events", len(said.Events))
	}

	if err := r.apply(t.Context(), release, begun(time.Second)); !errors.Is(err, errChanged) {
		t.Errorf("once more: %v", err)
	}
	must(t, r.apply(t.Context(), membership.Action{Machine: old.Name, UID: string(old.UID), Change: membership.MarkIdle{}}, seen))
	if r.writeTimeout.next() != time.Second {
		t.Errorf("after a write that went through, the next is waited for for %s", r.writeTimeout.next())
	}
	for i, most := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second} {
		if i >= len(connection.bounds) {
			t.Fatalf("%d writes", len(connection.bounds))
		}
		if got := connection.bounds[i]; got > most || got < most-time.Second {
			t.Errorf("attempt %d is waited for for %s, not %s", i+1, got, most)
		}
	}
}
