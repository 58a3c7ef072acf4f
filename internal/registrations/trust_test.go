package registrations

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast/test/pki"
)

// TestTrust: the CA before stays beside the one in use for a day, or until it expires; what cannot be
// read changes nothing, and a person may have those before forgotten.
func TestTrust(t *testing.T) {
	authority := func(name string) []byte {
		ca, err := pki.NewAuthority(name)
		must(t, err)
		return ca.CertPEM()
	}
	first, second, third := authority("a"), authority("b"), authority("b")
	at := &testClock{}
	at.set(time.Now())
	trust := NewTrust(at)
	changes := 0
	trust.OnChange(func() { changes++ })
	holds := func(when string, want ...[]byte) {
		t.Helper()
		if diff := cmp.Diff(string(slices.Concat(want...)), string(trust.Bundle())); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	if trust.Bundle() != nil {
		t.Error("somebody is trusted from the start")
	}
	must(t, trust.Set(first))
	must(t, trust.Set(first))
	holds("at first", first)
	for name, bad := range map[string][]byte{"empty": nil, "no PEM": []byte("x"), "a key": []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), "cut off": first[:len(first)/2], "no certificate": bytes.Replace(first, first[40:48], []byte("AAAAAAAA"), 1)} {
		if err := trust.Set(bad); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	holds("after what cannot be read", first)
	must(t, trust.Set(second))
	holds("then", second, first)
	must(t, trust.Set(slices.Concat(second, first)))
	holds("both in the file", second, first)
	must(t, trust.Set(second))
	// Another replica, which starts now, is told of both.
	other := NewTrust(at)
	must(t, other.recall(trust.record()))
	must(t, other.Set(second))
	if diff := cmp.Diff(string(trust.Bundle()), string(other.Bundle())); diff != "" {
		t.Errorf("told of it: %s", diff)
	}
	at.set(at.Now().Add(overlap + time.Second))
	holds("a day later", second)
	must(t, trust.Set(third))
	holds("a third", third, second)
	trust.forget()
	holds("forgotten", third)
	must(t, trust.Set(first))
	holds("replaced in that minute", first)
	for range pastMost + 2 {
		at.set(at.Now().Add(forgetting))
		must(t, trust.Set(authority("more")))
	}
	if n := bytes.Count(trust.Bundle(), []byte("BEGIN")); n != 1+pastMost {
		t.Errorf("%d CAs are trusted, want the one in use and %d before it", n, pastMost)
	}
	must(t, trust.Set(third))
	at.set(time.Now().Add(30 * 24 * time.Hour)) // past all that these CAs are good for
	holds("a month later", third)
	if changes != 8+pastMost+2 {
		t.Errorf("%d changes were told of", changes)
	}
}

// TestServices has the texts that parse as a Service.
func TestServices(t *testing.T) {
	for text, want := range map[string]*Service{
		"a/b": {Namespace: "a", Name: "b", Port: 443}, "holdfast-system/holdfast-webhook:9443": {Namespace: "holdfast-system", Name: "holdfast-webhook", Port: 9443},
		"": nil, "a": nil, "a/": nil, "/b": nil, "a/b/c": nil, "a/b:": nil, "a/b:0": nil, "a/b:65536": nil, "a/b:x": nil, "A/b": nil, "a/1b": nil, "a/b:1:2": nil,
	} {
		got, err := ParseService(text)
		if diff := cmp.Diff(want, got); err == nil && diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{Service: &Service{Namespace: "n", Name: "s", Port: 443}}, []string{"s.n.svc", "s.n.svc.cluster.local"}},
		{Options{URL: "https://10.0.0.9:9443"}, []string{"10.0.0.9"}}, {Options{URL: "https://[fd00::1]:9443/"}, []string{"fd00::1"}}, {Options{URL: "https://h.example"}, []string{"h.example"}},
	} {
		got, err := c.o.Hosts()
		must(t, err)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Error(diff)
		}
	}
}
