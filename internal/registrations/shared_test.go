package registrations

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// TestShared has what the replicas share in a real API server.
func TestShared(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for name, test := range map[string]func(*testing.T, *cluster){
		"tokens": testTokens, "deleted": testSharedDeleted, "garbled": testSharedGarbled, "immutable": testSharedImmutable, "a CA before": testCABefore,
		"a forged CA": testForgedCA, "an unusable CA": testUnusableCA, "a CA of later": testEarlyCA,
	} {
		t.Run(name, func(t *testing.T) {
			c.clear(t)
			must(t, client.IgnoreNotFound(c.api.Delete(t.Context(), sharedSecret())))
			test(t, c)
		})
	}
}

func sharedSecret() *corev1.Secret {
	s := &corev1.Secret{}
	s.Namespace, s.Name = ourPlace, "holdfast-webhook-shared"
	return s
}

// shared is one replica's, by a clock of its own.
func (c *cluster) shared(trust *Trust, at *testClock) *Shared {
	return NewShared(client.ObjectKeyFromObject(sharedSecret()), c.api, trust, at, logr.Discard())
}

func (s *Shared) good(token string) bool {
	path, ok := s.Known("/" + token + webhooks.MutatePath)
	return ok && path == webhooks.MutatePath
}

func now() *testClock {
	at := &testClock{}
	at.set(time.Now())
	return at
}

func (c *testClock) passes(d time.Duration) { c.set(c.Now().Add(d)) }

func reads(t *testing.T, s *Shared) {
	t.Helper()
	_, err := s.read(t.Context())
	must(t, err)
}

// testTokens: each replica knows a token before it is registered, and the one before as long as an API server may use it.
func testTokens(t *testing.T, c *cluster) {
	at := now()
	leader, other := c.shared(nil, at), c.shared(nil, at)
	reads(t, other)
	if err := other.Check(nil); err == nil || other.Token() != "" {
		t.Errorf("ready without a token: %v", err)
	}
	must(t, leader.keep(t.Context(), true))
	reads(t, other)
	must(t, other.Check(nil))
	first := leader.Token()
	mutating, _ := Registrations(Options{Service: &Service{Namespace: ourPlace, Name: "holdfast-webhook", Port: 443}, MachineNamespace: namespace, Token: first})
	must(t, c.api.Create(t.Context(), mutating, client.DryRunAll)) // the API server takes it for a Service's path
	if first == "" || first != other.Token() || !leader.good(first) || !other.good(first) {
		t.Fatalf("tokens %q and %q", first, other.Token())
	}
	for _, path := range []string{"", "/", webhooks.MutatePath, "/" + first, "//" + webhooks.MutatePath, "/" + strings.ToUpper(first) + webhooks.MutatePath, "/x/" + first + webhooks.MutatePath} {
		if _, ok := other.Known(path); ok {
			t.Errorf("path %q is known", path)
		}
	}
	before := secretOf(t, c.api, leader.Secret).ResourceVersion
	must(t, leader.keep(t.Context(), true))
	if v := secretOf(t, c.api, leader.Secret).ResourceVersion; v != before {
		t.Error("written although nothing differs")
	}

	at.passes(tokenLife)
	must(t, leader.keep(t.Context(), true))
	if leader.Token() != first {
		t.Error("the new token is registered before others may know it")
	}
	at.passes(tokenSettle)
	second := leader.Token()
	if second == first || second == "" {
		t.Fatalf("after a week the token is still %q", second)
	}
	reads(t, other)
	if !other.good(first) || !other.good(second) {
		t.Error("one of the two is not good")
	}
	// Whoever starts meanwhile registers the same one.
	if fresh := c.shared(nil, at); fresh.keep(t.Context(), false) != nil || fresh.Token() != second {
		t.Errorf("a replica that starts would register %q, not %q", fresh.Token(), second)
	}
	at.passes(tokenOverlap)
	must(t, leader.keep(t.Context(), true))
	reads(t, other)
	if other.good(first) || !other.good(second) {
		t.Error("an hour later the old token is good, or the new one is not")
	}
}

// testSharedDeleted: whoever deletes the Secret wants what it held forgotten. So do replicas that did not see it gone.
func testSharedDeleted(t *testing.T, c *cluster) {
	at := now()
	leaked, used := trusted(t), trusted(t)
	trust, others := NewTrust(at), NewTrust(at)
	for _, each := range []*Trust{trust, others} {
		must(t, each.Set(leaked.Bundle()))
		must(t, each.Set(used.Bundle()))
	}
	leader, other := c.shared(trust, at), c.shared(others, at)
	must(t, leader.keep(t.Context(), true))
	reads(t, other)
	first := leader.Token()
	must(t, c.api.Delete(t.Context(), sharedSecret()))
	must(t, leader.keep(t.Context(), true))
	reads(t, other)
	second := leader.Token()
	if second == "" || second == first || other.Token() != second {
		t.Fatalf("tokens %q and %q after %q", second, other.Token(), first)
	}
	if !leader.good(first) || !other.good(first) {
		t.Error("the token before is not good until the next is registered")
	}
	at.passes(forgetting)
	for name, s := range map[string]*Shared{"leader": leader, "other": other} {
		if s.good(first) || !s.good(second) {
			t.Errorf("%s: a minute later the old token is good, or the new one is not", name)
		}
		if diff := cmp.Diff(string(used.Bundle()), string(s.Trust.Bundle())); diff != "" {
			t.Errorf("%s trusts: %s", name, diff)
		}
	}
}

// testSharedGarbled: what cannot be read is made anew, and what was known is good until then.
func testSharedGarbled(t *testing.T, c *cluster) {
	at := now()
	leader, other := c.shared(nil, at), c.shared(nil, at)
	must(t, leader.keep(t.Context(), true))
	reads(t, other)
	first := leader.Token()
	for _, bad := range []string{"", "{", `{"tokens":[]}`, `{"tokens":[{"token":"short"}]}`, `{"tokens":[{"token":"aaaaaaaaaaaaaaaaaaaa/aaaaa"}]}`} {
		secret := secretOf(t, c.api, leader.Secret)
		secret.Data = map[string][]byte{recordKey: []byte(bad)}
		must(t, c.api.Update(t.Context(), secret))
		if _, err := other.read(t.Context()); err == nil || !other.good(first) {
			t.Errorf("%q: read with %v, and the token is good: %t", bad, err, other.good(first))
		}
		starting := c.keeper(t, nobodyURL, nil) // and not elected
		starting.elected.Store(false)
		starting.Writing.Shared = c.shared(nil, at)
		starting.round(t.Context())
		if reads := secretOf(t, c.api, leader.Secret).Data[recordKey]; string(reads) != bad {
			t.Errorf("%q: a replica that starts makes it %q", bad, reads)
		}
		must(t, leader.keep(t.Context(), true))
		reads(t, other)
		if other.Token() != first {
			t.Errorf("%q: token %q", bad, other.Token())
		}
	}
	must(t, c.api.Delete(t.Context(), sharedSecret()))
	must(t, c.api.Create(t.Context(), sharedSecret()))
	fresh := c.keeper(t, nobodyURL, nil) // has nothing to go by
	fresh.Writing.Shared = c.shared(nil, at)
	fresh.elected.Store(false)
	fresh.round(t.Context())
	if fresh.Writing.Shared.Token() != "" {
		t.Error("not elected, it makes something in place of an empty one")
	}
	fresh.elected.Store(true)
	fresh.round(t.Context())
	if fresh.Writing.Shared.Token() == "" {
		t.Error("nothing is made in place of an empty one")
	}
}

// testSharedImmutable: a Secret that cannot be written is deleted and made anew.
func testSharedImmutable(t *testing.T, c *cluster) {
	secret := sharedSecret()
	secret.Immutable = new(true)
	must(t, c.api.Create(t.Context(), secret))
	s := c.shared(nil, now())
	eventually(t, func() string {
		if err := s.keep(t.Context(), true); err != nil {
			return ""
		}
		return s.Token()
	}).ShouldNot(gomega.BeEmpty())
}

// testCABefore: the CA changes while no replica stands. The next one knows the one before, which others may still serve.
func testCABefore(t *testing.T, c *cluster) {
	at := now()
	trust := trusted(t)
	before := trust.Bundle()
	must(t, c.shared(trust, at).keep(t.Context(), true))
	next := trusted(t)
	used := next.Bundle()
	s := c.shared(next, at)
	must(t, s.keep(t.Context(), true))
	if diff := cmp.Diff(string(slices.Concat(used, before)), string(next.Bundle())); diff != "" {
		t.Error(diff)
	}
	must(t, s.keep(t.Context(), true)) // it says until when
	third := NewTrust(at)
	must(t, third.Set(used))
	reads(t, c.shared(third, at))
	at.passes(overlap)
	if diff := cmp.Diff(string(used), string(third.Bundle())); diff != "" {
		t.Errorf("a day later: %s", diff)
	}
}

// testForgedCA: nobody is trusted because a registration says so, not even under the CA's name, in its first day, and after
// a restart.
func testForgedCA(t *testing.T, c *cluster) {
	ca, err := pki.NewAuthority(caName)
	must(t, err)
	forged, err := pki.NewAuthority(caName)
	must(t, err)
	for _, when := range []string{"while it runs", "after a restart"} {
		trust := NewTrust(clock.RealClock{})
		must(t, trust.Set(ca.CertPEM()))
		k := c.keeper(t, nobodyURL, trust)
		k.Writing.Shared = NewShared(client.ObjectKeyFromObject(sharedSecret()), c.api, trust, clock.RealClock{}, logr.Discard())
		forge := func() {
			live := &admissionregistrationv1.MutatingWebhookConfiguration{}
			must(t, c.api.Get(t.Context(), client.ObjectKey{Name: Name}, live))
			live.Webhooks[0].ClientConfig.CABundle = slices.Concat(live.Webhooks[0].ClientConfig.CABundle, forged.CertPEM())
			must(t, c.api.Update(t.Context(), live))
		}
		if when == "after a restart" {
			forge()
		}
		k.round(t.Context())
		if when == "while it runs" {
			forge()
			k.round(t.Context())
		}
		for _, o := range k.objects() {
			if bundles, ok := bundlesOf(c, t, o); ok && slices.ContainsFunc(bundles, func(b []byte) bool { return !bytes.Equal(b, ca.CertPEM()) }) {
				t.Errorf("%s: %s trusts %q", when, o.key(), bundles)
			}
		}
	}
}

func bundlesOf(c *cluster, t *testing.T, o object) (bundles [][]byte, ok bool) {
	t.Helper()
	c.get(t, o)
	switch live := o.live.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range live.Webhooks {
			bundles = append(bundles, live.Webhooks[i].ClientConfig.CABundle)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range live.Webhooks {
			bundles = append(bundles, live.Webhooks[i].ClientConfig.CABundle)
		}
	}
	return bundles, len(bundles) > 0
}

// testUnusableCA: a CA in an immutable Secret that nobody can use does not keep a replica that starts from serving.
func testUnusableCA(t *testing.T, c *cluster) {
	secret := &corev1.Secret{Immutable: new(true), Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y"), "ca.crt": []byte("x")}}
	secret.Namespace, secret.Name = ourPlace, "holdfast-webhook-ca"
	must(t, client.IgnoreNotFound(c.api.Delete(t.Context(), secret.DeepCopy())))
	must(t, c.api.Create(t.Context(), secret))
	r := c.replica(t)
	recorder := events.NewFakeRecorder(10)
	run(t, func(ctx context.Context) error {
		return (&SelfSigned{
			Secret: client.ObjectKeyFromObject(secret), Config: c.config, API: c.api, Hosts: []string{"127.0.0.1"}, Events: recorder,
			Source: r.source, Trust: r.trust, Clock: clock.RealClock{}, Log: logr.Discard(),
		}).Start(ctx)
	})
	eventually(t, r.serial).ShouldNot(gomega.BeEmpty())
	if told := <-recorder.Events; !strings.Contains(told, "WebhookCAReplaced") {
		t.Error(told)
	}
}

// testEarlyCA: of a CA that was made where the clock was weeks ahead the reason is told, and the Secret stays: this clock may be the wrong one.
func testEarlyCA(t *testing.T, c *cluster) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	ahead := time.Now().AddDate(0, 0, 20)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: ahead, NotAfter: ahead.AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := &corev1.Secret{Data: map[string][]byte{"tls.crt": ca, "ca.crt": ca, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})}}
	secret.Namespace, secret.Name = ourPlace, "holdfast-webhook-ca"
	must(t, client.IgnoreNotFound(c.api.Delete(t.Context(), secret.DeepCopy())))
	must(t, c.api.Create(t.Context(), secret))
	s := &SelfSigned{Secret: client.ObjectKeyFromObject(secret), API: c.api, Clock: clock.RealClock{}}
	if _, err := s.issue(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "a clock is wrong") {
		t.Error(err)
	}
	must(t, c.api.Delete(t.Context(), secret))
}
