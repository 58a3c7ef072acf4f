package waysin_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
	"github.com/holdfast-dev/holdfast/webhooks"
)

const rounds = 15

// replicas are two Holdfasts that share nothing but the API server: requests take turns. Their ring
// is the round's, with a healthy voter at each of three addresses.
type replicas struct {
	turn     atomic.Int64
	handlers [2]http.Handler
	round    atomic.Int64
}

func (r *replicas) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.handlers[r.turn.Add(1)%2].ServeHTTP(w, req)
}

func address(round int64, member int) string { return fmt.Sprintf("10.0.%d.%d", round, member) }

// Read is the round's ring.
func (r *replicas) Read(context.Context) quorum.Ring {
	round := r.round.Load()
	ring := quorum.Ring{Known: true, Leader: 1, Version: "3.7.3"}
	for i := range 3 {
		ring.Members = append(ring.Members, quorum.Member{
			ID: quorum.MemberID(i + 1), Name: machineOf(round, i), Healthy: true, PeerURLs: []string{"https://" + address(round, i) + ":2380"},
		})
	}
	return ring
}

// Decided records nothing.
func (r *replicas) Decided(context.Context, webhooks.Record) {}

func machineOf(round int64, i int) string { return fmt.Sprintf("m-%d-%d", round, i) }

// TestTwoDeletesAtOnce sends DELETEs of two healthy voters' Machines at the same instant, again and
// again, through two replicas on a real API server. Admission reads the other Machine before either
// DELETE is stored, so it may let both pass: the rule one-too-many is a courtesy then, and it is the
// hook that serialises. That must stand on both.
func TestTwoDeletesAtOnce(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c, r := serveTwice(t)
	passed := map[int]int{} // rounds, by how many DELETEs passed
	for range rounds {
		round := r.round.Add(1)
		var machines []*machinev1beta1.Machine
		for i := range 3 {
			machines = append(machines, voter(t, c, round, i))
		}
		var wait sync.WaitGroup
		var errs [2]error
		ready := make(chan struct{})
		for i := range 2 {
			wait.Go(func() {
				<-ready
				errs[i] = c.Delete(t.Context(), machines[i])
			})
		}
		close(ready)
		wait.Wait()
		n := 0
		for i, err := range errs {
			m := &machinev1beta1.Machine{}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(machines[i]), m); err != nil {
				t.Fatal(err)
			}
			seen := machineapi.Machine(m)
			if !seen.Protected() || seen.Deleting() != (err == nil) {
				t.Errorf("round %d: Machine %s: protected %t, deleting %t, DELETE: %v", round, m.Name, seen.Protected(), seen.Deleting(), err)
			}
			if err == nil {
				n++
			} else if outcomeOf(err, nil) != denied(quorum.RuleOneTooMany) {
				t.Errorf("round %d: %v", round, err)
			}
		}
		passed[n]++
		// Whoever comes after the two is refused, however many of them passed.
		if err := c.Delete(t.Context(), machines[2]); n > 0 && outcomeOf(err, nil) != denied(quorum.RuleOneTooMany) {
			t.Errorf("round %d: the third: %v", round, err)
		}
	}
	t.Logf("of %d rounds both passed in %d, one in %d, none in %d", rounds, passed[2], passed[1], passed[0])
}

// voter makes the Machine of a healthy voter, protected.
func voter(t *testing.T, c client.Client, round int64, i int) *machinev1beta1.Machine {
	t.Helper()
	m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		Name: machineOf(round, i), Namespace: sandbox.MachineNamespace, Finalizers: []string{quorum.Finalizer},
		Labels: map[string]string{quorum.RoleLabel: "master"},
	}}
	m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{PreDrain: []machinev1beta1.LifecycleHook{{Name: quorum.HookName, Owner: quorum.HookOwner}}}
	if err := c.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	m.Status.Phase = new(machinev1beta1.PhaseRunning)
	m.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address(round, i)}}
	if err := c.Status().Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// serveTwice starts an API server with the webhooks of two replicas; its client is a person's.
func serveTwice(t *testing.T) (client.Client, *replicas) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log.SetLogger(logr.Discard())
	config := apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...)).Config
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	scheme := runtime.NewScheme()
	must(clientgoscheme.AddToScheme(scheme))
	must(machinev1beta1.Install(scheme))
	c, err := client.New(config, client.Options{Scheme: scheme})
	must(err)
	must(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: sandbox.MachineNamespace}}))

	r := &replicas{}
	ids := admission.DefaultIdentities(string(sandbox.Holdfast))
	for i := range r.handlers {
		metrics := webhooks.NewMetrics(prometheus.NewRegistry())
		guard := &webhooks.Handlers{
			Identities: ids, MachineNamespace: sandbox.MachineNamespace, Recorder: r, Metrics: metrics,
			Observer: &observe.Observer{
				API: c, Etcd: r, Namespace: sandbox.MachineNamespace, Mode: quorum.ModeGuard, Desired: 3,
				Limits: quorum.DefaultLimits(), Clock: clock.RealClock{},
			},
		}
		mux := http.NewServeMux()
		mux.Handle(webhooks.MutatePath, webhooks.Handler(guard.Mutating()))
		mux.Handle(webhooks.ValidatePath, webhooks.Handler(guard.Validating()))
		r.handlers[i] = mux
	}
	ca, err := pki.NewAuthority("webhooks")
	must(err)
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "webhooks", Hosts: []string{"127.0.0.1"}})
	must(err)
	pair, err := tls.X509KeyPair(cert, key)
	must(err)
	server := httptest.NewUnstartedServer(r)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	mutating, validating := registrations.Registrations(registrations.Options{
		URL: server.URL, CABundle: ca.CertPEM(), MachineNamespace: sandbox.MachineNamespace, Identities: ids,
	})
	must(c.Create(t.Context(), mutating))
	must(c.Create(t.Context(), validating))
	// They are called once a hook brings its latch along.
	eventually(t, func(ctx context.Context) error {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Namespace: sandbox.MachineNamespace, Labels: map[string]string{quorum.RoleLabel: "master"}}}
		m.Spec.LifecycleHooks.PreDrain = []machinev1beta1.LifecycleHook{{Name: quorum.HookName, Owner: quorum.HookOwner}}
		if err := c.Create(ctx, m, client.DryRunAll); err != nil {
			return err
		}
		if len(m.Spec.LifecycleHooks.PreTerminate) == 0 {
			return fmt.Errorf("no latch yet")
		}
		return nil
	})
	return c, r
}
