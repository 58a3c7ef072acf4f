package registrations

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/webhooks"
)

const (
	holdfast  = "system:serviceaccount:holdfast-system:holdfast"
	namespace = "openshift-machine-api"
	ourPlace  = "holdfast-system"
	nobodyURL = "https://127.0.0.1:1" // nothing listens there
)

// cluster is a real API server with the Machine's CRD.
type cluster struct {
	config *rest.Config // Holdfast's, with every right
	api    client.WithWatch
}

// quiet has controller-runtime log nothing: it prints a stack where nobody says what it is to do. Tests that run
// side by side must not say so at the same time.
var quiet = sync.OnceFunc(func() { log.SetLogger(logr.Discard()) })

func startCluster(t *testing.T) *cluster {
	t.Helper()
	quiet()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	env := apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...))
	user, err := env.AddUser(envtest.User{Name: holdfast, Groups: []string{"system:masters"}}, nil)
	must(t, err)
	c := &cluster{config: user.Config()}
	c.config.QPS, c.config.Burst = 1000, 1000
	c.api, err = client.NewWithWatch(c.config, client.Options{Scheme: scheme})
	must(t, err)
	for _, name := range []string{namespace, ourPlace} {
		must(t, c.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	return c
}

// machine makes a control-plane Machine until the test ends.
func (c *cluster) machine(t *testing.T) {
	t.Helper()
	m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, GenerateName: "cp-", Labels: map[string]string{quorum.RoleLabel: "master"},
	}}
	must(t, c.api.Create(t.Context(), m))
	t.Cleanup(func() {
		c.clear(t) // the API server hears of it a moment later
		eventually(t, func() error { return c.api.Delete(context.WithoutCancel(t.Context()), m) }).Should(gomega.Succeed())
	})
}

// clear takes all registrations away.
func (c *cluster) clear(t *testing.T) {
	t.Helper()
	for _, o := range (&Registrar{}).objects() {
		o.live.SetName(o.name)
		must(t, client.IgnoreNotFound(c.api.Delete(context.WithoutCancel(t.Context()), o.live)))
	}
}

// get reads a registration into o.live, and reports whether it is there.
func (c *cluster) get(t *testing.T, o object) bool {
	t.Helper()
	err := c.api.Get(t.Context(), client.ObjectKey{Name: o.name}, o.live)
	if apierrors.IsNotFound(err) {
		return false
	}
	must(t, err)
	return true
}

// keeper is one with what it tells to, and that nobody runs yet.
type keeper struct {
	*Registrar
	events *events.FakeRecorder
	meters *prometheus.Registry
}

func (c *cluster) keeper(t *testing.T, url string, trust *Trust) keeper {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	metrics := NewMetrics(registry)
	recorder := events.NewFakeRecorder(1000)
	k := &Registrar{
		API: c.api, Metrics: metrics, Log: logr.Discard(), Writing: &Writing{
			Options: Options{URL: url, MachineNamespace: namespace, Identities: admission.DefaultIdentities(holdfast)}, Trust: trust, Events: recorder,
			LedAgo: func() time.Duration { return 0 }, Lease: 15 * time.Second, Proof: SelfCall(c.api, namespace),
		},
	}
	k.begin()
	k.elected.Store(true)
	return keeper{k, recorder, registry}
}

// looker is one that keeps nothing, and tells live what it sees.
func (c *cluster) looker(t *testing.T, live *Live) keeper {
	t.Helper()
	k := c.keeper(t, nobodyURL, nil)
	k.Writing, k.Live = nil, live
	return k
}

// round is one look at each.
func (k keeper) round(ctx context.Context) {
	for _, o := range k.objects() {
		k.check(ctx, o.key())
	}
	k.prove(ctx)
	k.check(ctx, validatingKey)
}

// value is what a metric of one label value or none says.
func (k keeper) value(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	families, err := k.meters.Gather()
	must(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			fits := family.GetName() == name
			for i, l := range m.GetLabel() {
				fits = fits && (i >= len(labels) || l.GetValue() == labels[i])
			}
			if fits {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// byName are the values of a metric, by the registrations' names.
func (k keeper) byName(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := k.meters.Gather()
	must(t, err)
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if family.GetName() == name && l.GetName() == "name" {
					out[l.GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
	}
	return out
}

// run starts something until the test ends.
func run(t *testing.T, start func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// serve serves the webhooks at an address until the test ends. Each request needs a connection of its own.
func serve(t *testing.T, address string, source *Source) (at string) {
	t.Helper()
	metrics := webhooks.NewMetrics(prometheus.NewRegistry())
	guard := &webhooks.Handlers{
		Identities: admission.DefaultIdentities(holdfast), MachineNamespace: namespace, Observer: blind{}, Recorder: blind{}, Metrics: metrics,
	}
	mux := http.NewServeMux()
	mux.Handle(webhooks.MutatePath, webhooks.Handler(guard.Mutating()))
	mux.Handle(webhooks.ValidatePath, webhooks.Handler(guard.Validating()))
	listener, err := tls.Listen("tcp", address, &tls.Config{GetCertificate: source.GetCertificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	must(t, err)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	server.SetKeepAlivesEnabled(false)
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { must(t, server.Close()) })
	return listener.Addr().String()
}

// blind sees no cluster and tells nobody.
type blind struct{}

var errBlind = errors.New("not in this test")

func (blind) Snapshot(context.Context) (*quorum.Snapshot, error) { return nil, errBlind }
func (blind) Machines(context.Context) ([]quorum.Machine, error) { return nil, errBlind }
func (blind) Hosts(context.Context, *quorum.Machine, bool, bool) (*quorum.Snapshot, error) {
	return nil, errBlind
}
func (blind) Decided(context.Context, webhooks.Record) {}
func (blind) Selected(context.Context, labels.Selector) (*quorum.Selection, error) {
	return nil, errBlind
}

// balance passes connections on to several addresses in turn, as a Service does.
func balance(t *testing.T, to ...string) (at string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
	var turn atomic.Uint64
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer func() { _ = in.Close() }()
				out, err := net.Dial("tcp", to[turn.Add(1)%uint64(len(to))])
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(out, in)
					_ = out.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(in, out)
				_ = out.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// authorityFiles are a CA's, and those of a certificate of its for 127.0.0.1.
func authorityFiles(t *testing.T, dir string) *pki.Authority {
	t.Helper()
	ca, err := pki.NewAuthority("webhooks")
	must(t, err)
	_, _, err = ca.IssueFiles(dir, "tls", pki.Leaf{CommonName: "webhooks", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	_, err = ca.WriteCert(dir)
	must(t, err)
	return ca
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, f any) gomega.AsyncAssertion {
	t.Helper()
	return gomega.NewWithT(t).Eventually(f).WithTimeout(2 * time.Minute).WithPolling(20 * time.Millisecond)
}

// served is a source of the files in a folder, which it follows until the test ends.
func served(t *testing.T, dir string, live *Live) (*Trust, *Source) {
	t.Helper()
	metrics := NewMetrics(prometheus.NewRegistry())
	trust := NewTrust(clock.RealClock{})
	source := NewSource(live, "127.0.0.1", clock.RealClock{}, metrics, logr.Discard())
	source.settle = time.Second
	files, err := NewFiles(dir, filepath.Join(dir, "ca.crt"), source, trust, logr.Discard())
	must(t, err)
	run(t, files.Start)
	run(t, source.Start)
	return trust, source
}

// testClock stands still until it is set.
type testClock struct {
	mu    sync.Mutex
	at    time.Time
	reads atomic.Int32
}

func (c *testClock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

func (c *testClock) Now() time.Time {
	c.reads.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *testClock) Since(at time.Time) time.Duration { return c.Now().Sub(at) }
