package controller

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
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
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
)

// faulty is a connection to an API server that fails those requests that match, and notes when they came.
type faulty struct {
	http.RoundTripper
	matches func(*http.Request) bool

	mu    sync.Mutex
	mends bool
	at    []time.Time
	reads int // of the Machines' list, one in each round
}

func (f *faulty) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	if strings.HasSuffix(r.URL.Path, "/machines") && r.Method == http.MethodGet && !r.URL.Query().Has("watch") && strings.Contains(r.URL.RawQuery, "machine-role") {
		f.reads++
	}
	fails := f.matches(r) && !f.mends
	if fails {
		f.at = append(f.at, time.Now())
	}
	f.mu.Unlock()
	if fails {
		return nil, errors.New("the test refuses this")
	}
	return f.RoundTripper.RoundTrip(r)
}

func (f *faulty) mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mends = true
}

func (f *faulty) counts() (failed, reads int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.at), f.reads
}

// longest is the longest time between two failures so far.
func (f *faulty) longest() (most time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := 1; i < len(f.at); i++ {
		most = max(most, f.at[i].Sub(f.at[i-1]))
	}
	return most
}

// TestBackoff: what fails is tried again later and later, is counted, and a change wakes the reconciler all the same.
func TestBackoff(t *testing.T) {
	t.Parallel()
	env := apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...))
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	admin, err := client.New(env.Config, client.Options{Scheme: scheme})
	must(t, err)
	for _, name := range []string{where, hostenv.Namespace} {
		must(t, admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	change := func() {
		t.Helper()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: map[string]string{"node-role.kubernetes.io/master": ""}}}
		must(t, admin.Create(t.Context(), node))
	}
	change()
	for what, matches := range map[string]func(*http.Request) bool{
		"a read": func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/nodes") && !r.URL.Query().Has("watch")
		},
		"a publication": func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/namespaces/"+hostenv.Namespace+"/configmaps")
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			connection := &faulty{matches: matches}
			wrapped := rest.CopyConfig(env.Config)
			wrapped.Wrap(func(next http.RoundTripper) http.RoundTripper {
				connection.RoundTripper = next
				return connection
			})
			api, err := client.NewWithWatch(wrapped, client.Options{Scheme: scheme})
			must(t, err)
			meters := NewMetrics(prometheus.NewRegistry())
			ring := &fixedRing{[]quorum.Member{{ID: 2, Name: "new", PeerURLs: []string{"https://10.0.0.2:2380"}, ClientURLs: []string{"https://10.0.0.2:2379"}, Healthy: true}}}
			r := &Reconciler{
				Client: api, Etcd: ring, Log: logr.Discard(),
				Observer: &observe.Observer{API: api, Etcd: ring, Namespace: where, Mode: quorum.ModeFull, Desired: 1, Limits: quorum.DefaultLimits(), Clock: clock.RealClock{}},
				Reports: Reports{
					Events: events.NewFakeRecorder(1000), Metrics: meters,
					Publisher: &Publisher{Client: api, Namespace: hostenv.Namespace, Log: logr.Discard()},
				},
			}
			before := reconcileErrors(t)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx, api) }()
			defer func() { stop(); <-ended }()

			g.Eventually(connection.longest, "2m", "10ms").Should(BeNumerically(">", 2*time.Second), "between two failures")
			g.Expect(reconcileErrors(t)-before).To(BeNumerically(">", 0), "failures are not counted")

			// The next attempt is further away than the last gap was long.
			failed, seen := connection.counts()
			change()
			g.Eventually(func() int { failed, reads := connection.counts(); return failed + reads }, "3s", "5ms").Should(BeNumerically(">", failed+seen), "a change wakes nobody")

			connection.mend()
			var cm corev1.ConfigMap
			g.Eventually(func() error {
				return admin.Get(ctx, client.ObjectKey{Namespace: hostenv.Namespace, Name: hostenv.Name}, &cm)
			}, "2m", "50ms").Should(Succeed())
			must(t, admin.Delete(ctx, &cm))
		})
	}
}

// reconcileErrors is how many rounds failed in this process, by controller-runtime's own metric.
func reconcileErrors(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	must(t, err)
	n := 0.0
	for _, family := range families {
		if family.GetName() == "controller_runtime_reconcile_errors_total" {
			for _, metric := range family.GetMetric() {
				n += metric.GetCounter().GetValue()
			}
		}
	}
	return n
}

// locked is a ring that counts who wants its lock.
type locked struct {
	fixedRing
	wanted int
}

func (l *locked) Lock(context.Context) (*etcd.MembershipLock, error) {
	l.wanted++
	return nil, errors.New("not now")
}

// TestLockOnlyToAct: the lock is not taken while a learner has yet to keep up for long, only right before its promotion.
func TestLockOnlyToAct(t *testing.T) {
	t.Parallel()
	env := apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...))
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api, err := client.New(env.Config, client.Options{Scheme: scheme})
	must(t, err)
	must(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: where}}))
	voter := quorum.Member{ID: 2, Name: "old", Healthy: true, Applied: 10000}
	learner := quorum.Member{ID: 3, Name: "new", Learner: true, Healthy: true, Applied: 10000}
	for _, test := range []struct {
		steady time.Duration
		wanted bool
		again  time.Duration
	}{
		{30 * time.Second, false, requeueSoon},
		{requeueAgain, true, requeueAgain},
	} {
		ring := &locked{fixedRing: fixedRing{[]quorum.Member{voter, learner}}}
		meters := NewMetrics(prometheus.NewRegistry())
		limits := quorum.DefaultLimits()
		limits.SteadyFor = test.steady
		r := &Reconciler{
			Client: api, Etcd: ring, Log: logr.Discard(), Reports: Reports{Events: events.NewFakeRecorder(1000), Metrics: meters},
			Observer: &observe.Observer{API: api, Etcd: ring, Namespace: where, Mode: quorum.ModeFull, Desired: 1, Limits: limits, Clock: clock.RealClock{}},
		}
		var result reconcile.Result
		for range 3 {
			if result, err = r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
				t.Fatal(err)
			}
			if test.wanted {
				break
			}
		}
		if (ring.wanted > 0) != test.wanted || result.RequeueAfter != test.again {
			t.Errorf("with %s to keep up: the lock was wanted %d times, the next look is after %s", test.steady, ring.wanted, result.RequeueAfter)
		}
	}
}
