package registrations

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

// TestRotation changes CA and certificate while calls go through the webhooks, which are refused if the
// API server does not reach them: none may fail.
func TestRotation(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for name, test := range map[string]func(*testing.T, *cluster){"self-signed": testSelfSigned, "files": testFiles} {
		t.Run(name, func(t *testing.T) {
			c.clear(t)
			c.machine(t)
			test(t, c)
		})
	}
}

// replica is one Holdfast's share of serving.
type replica struct {
	live   *Live
	looks  keeper // at the registrations, and keeps none
	trust  *Trust
	source *Source
	ready  healthz.Checker
	at     string
	blind  func() // has it look at the registrations no more
}

func (c *cluster) replica(t *testing.T) *replica {
	t.Helper()
	metrics := NewMetrics(prometheus.NewRegistry())
	r := &replica{live: &Live{}, trust: NewTrust(clock.RealClock{})}
	r.looks = c.looker(t, r.live)
	r.source = NewSource(r.live, "127.0.0.1", clock.RealClock{}, metrics, logr.Discard())
	r.source.settle = 3 * time.Second // the API server of a busy computer hears late of a registration
	r.ready = r.source.Vouched()
	r.blind = run(t, r.looks.Start)
	run(t, r.source.Start)
	r.at = serve(t, "127.0.0.1:0", r.source)
	return r
}

// serial is the serial number of what it serves.
func (r *replica) serial() string {
	served, err := r.source.GetCertificate(nil)
	if err != nil {
		return ""
	}
	return served.Leaf.SerialNumber.String()
}

// load calls through the API server and the webhooks without a pause until it is stopped, and then says
// how many calls there were. One that fails is an error.
func load(t *testing.T, call func(context.Context) error) (calls func() int64, stop func() int64) {
	t.Helper()
	var (
		done   atomic.Bool
		count  atomic.Int64
		caller sync.WaitGroup
	)
	caller.Go(func() { // one: several wait for each other's handshakes, on a busy computer for longer than a webhook may take
		for !done.Load() {
			if err := call(t.Context()); err != nil {
				t.Errorf("after %d calls: %v", count.Load(), err)
				return
			}
			count.Add(1)
		}
	})
	return count.Load, func() int64 {
		done.Store(true)
		caller.Wait()
		return count.Load()
	}
}

// testSelfSigned has two replicas behind one address, one of them elected.
func testSelfSigned(t *testing.T, c *cluster) {
	secret := client.ObjectKey{Namespace: ourPlace, Name: "holdfast-webhook-ca"}
	replicas := []*replica{c.replica(t), c.replica(t)}
	for _, r := range replicas {
		run(t, (&SelfSigned{
			Secret: secret, Config: c.config, API: c.api, Hosts: []string{"127.0.0.1"},
			Source: r.source, Trust: r.trust, Clock: clock.RealClock{}, Log: logr.Discard(),
		}).Start)
	}
	k := c.keeper(t, "https://"+balance(t, replicas[0].at, replicas[1].at), replicas[0].trust)
	for _, r := range replicas {
		eventually(t, r.serial).ShouldNot(gomega.BeEmpty())
		if err := r.ready(nil); err == nil {
			t.Error("a replica is ready before anything is registered")
		}
	}
	resign := run(t, k.Start)
	eventually(t, func() float64 { return k.value(t, "holdfast_registration_enforced") }).Should(gomega.Equal(2.0))
	for _, r := range replicas {
		eventually(t, func() error { return r.ready(nil) }).Should(gomega.Succeed())
	}

	calls, stop := load(t, k.Writing.Proof)
	for _, c := range []struct {
		name   string
		rotate func(*corev1.Secret) error
	}{
		{"the Secret is deleted", func(s *corev1.Secret) error { return c.api.Delete(t.Context(), s) }},
		{"the CA is due", func(s *corev1.Secret) error { s.Data["ca.crt"] = nil; return c.api.Update(t.Context(), s) }},
	} {
		was := []string{replicas[0].serial(), replicas[1].serial()}
		// Nobody is elected for a while: the new CA is known, and not registered.
		resign()
		known := [][]byte{replicas[0].trust.Bundle(), replicas[1].trust.Bundle()}
		must(t, c.rotate(secretOf(t, k.API, secret)))
		for i, r := range replicas {
			eventually(t, func() []byte { return r.trust.Bundle() }).ShouldNot(gomega.Equal(known[i]), c.name)
		}
		goesOn(t, calls, c.name+", before it is registered")
		// It is registered, and one replica does not hear of it.
		replicas[1].blind()
		resign = run(t, k.Start)
		eventually(t, replicas[0].serial).ShouldNot(gomega.Equal(was[0]), c.name)
		goesOn(t, calls, c.name+", while two are served")
		if replicas[1].serial() != was[1] {
			t.Errorf("%s: a certificate is served that nobody is known to trust", c.name)
		}
		replicas[1].blind = run(t, replicas[1].looks.Start)
		eventually(t, replicas[1].serial).ShouldNot(gomega.Equal(was[1]), c.name)
		goesOn(t, calls, c.name+", after it")
		for _, r := range replicas {
			must(t, r.ready(nil))
		}
	}
	t.Logf("%d calls", stop())
}

// goesOn waits for more calls: one that failed would have failed the test.
func goesOn(t *testing.T, calls func() int64, when string) {
	t.Helper()
	eventually(t, calls).Should(gomega.BeNumerically(">", calls()+30), when)
}

func secretOf(t *testing.T, api client.Reader, key client.ObjectKey) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	must(t, api.Get(t.Context(), key, s))
	return s
}

// testFiles has certificate and CA replaced in a folder as a kubelet does: by one rename of a link.
func testFiles(t *testing.T, c *cluster) {
	dir := t.TempDir()
	put := func(version string) {
		must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		authorityFiles(t, filepath.Join(dir, version))
		must(t, os.Symlink(version, filepath.Join(dir, "..next")))
		must(t, os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")))
	}
	put("..1")
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	r := c.replica(t)
	files, err := NewFiles(dir, filepath.Join(dir, "ca.crt"), r.source, r.trust, logr.Discard())
	must(t, err)
	run(t, files.Start)
	k := c.keeper(t, "https://"+r.at, r.trust)
	run(t, k.Start)
	eventually(t, func() float64 { return k.value(t, "holdfast_registration_enforced") }).Should(gomega.Equal(2.0))
	calls, stop := load(t, k.Writing.Proof)
	for _, version := range []string{"..2", "..3"} {
		was := r.serial()
		put(version)
		eventually(t, r.serial).ShouldNot(gomega.Equal(was), version)
		goesOn(t, calls, version)
	}
	t.Logf("%d calls", stop())
}

// TestReadiness has the sentences that a replica is not ready with.
func TestReadiness(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	says := func(what string, err error, words ...string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: ready", what)
			return
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not say %q", what, err, word)
			}
		}
	}
	dir := t.TempDir()
	authorityFiles(t, dir)
	at := &testClock{}
	at.set(time.Now())
	metrics := NewMetrics(prometheus.NewRegistry())
	live := &Live{}
	looks := c.looker(t, live)
	source := NewSource(live, "127.0.0.1", at, metrics, logr.Discard())
	ready := source.Vouched()
	says("no certificate", source.Loaded(nil), "no certificate")
	says("no certificate", ready(nil), "no certificate")
	trust := NewTrust(at)
	files, err := NewFiles(dir, filepath.Join(dir, "ca.crt"), source, trust, logr.Discard())
	must(t, err)
	files.look(t.Context())
	must(t, source.Loaded(nil))
	says("nothing read", ready(nil), "not been read", "API server")
	looks.round(t.Context())
	says("nothing registered", ready(nil), "WebhookConfiguration holdfast does not exist")

	k := c.keeper(t, nobodyURL, trusted(t)) // another CA
	k.round(t.Context())
	looks.round(t.Context())
	says("another CA", ready(nil), ClosedWebhook, "caBundle", "127.0.0.1", "signed by unknown authority")
	k.Writing.Trust = trust
	k.round(t.Context())
	looks.round(t.Context())
	must(t, ready(nil))
	// One webhook that is missing is no reason, at first or later: who is elected may be of a version without it.
	config := c.validating(t)
	config.Webhooks = config.Webhooks[:3]
	must(t, c.api.Update(t.Context(), config))
	looks.round(t.Context())
	must(t, source.Vouched()(nil))
	at.set(at.Now().Add(readinessGrace + time.Second))
	must(t, ready(nil))
	source.host = "holdfast-webhook.holdfast-system.svc"
	says("another name", source.Vouched()(nil), source.host)
	source.host = "127.0.0.1"

	// Once ready, it stays so while the API server does not answer, and for a moment if it says otherwise.
	hung, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := looks.read(hung, &looks.objects()[0]); err == nil {
		t.Error("the API server answered")
	}
	at.set(at.Now().Add(time.Hour))
	must(t, ready(nil))
	c.clear(t)
	looks.round(t.Context())
	must(t, ready(nil))
	// Nothing registered is nobody's call: only a replica that never was vouched for waits for it.
	at.set(at.Now().Add(readinessGrace + time.Second))
	must(t, ready(nil))
	says("cleared, and started after it", source.Vouched()(nil), "does not exist")

	at.set(time.Now().Add(365 * 24 * time.Hour))
	says("expired", source.Loaded(nil), "expired at")
}
