package registrations

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
)

// overlap is how long a replaced CA stays in the registrations, beside the new one. A replica changes to a certificate of
// the new CA seconds after it reads registrations that have both. If a replica has no connection to the API server for longer
// than overlap, the API server does not trust its old certificate when the connection is back, until the replica has changed, too.
const overlap = 24 * time.Hour

// pastMost is how many replaced CAs are trusted at most.
const pastMost = 3

// Trust is the CAs that the API server is to trust: those in use, and replaced ones for as long as a replica may still
// serve a certificate of theirs. Every replica keeps a Trust, so that a newly elected replica knows the replaced CAs.
// Make it with NewTrust.
type Trust struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	current []*x509.Certificate
	past    []pastCA
	forgot  time.Time // when the replaced CAs were forgotten
	changed []func()
}

type pastCA struct {
	cert  *x509.Certificate
	until time.Time
}

// NewTrust has no CA yet.
func NewTrust(c clock.PassiveClock) *Trust { return &Trust{clock: c} }

// OnChange has a function called, which must not block, whenever the bundle may be another one.
func (t *Trust) OnChange(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = append(t.changed, f)
}

// Set takes the CAs in use, PEM. Those before them stay for the overlap.
func (t *Trust) Set(bundle []byte) error {
	certs, err := parseCAs(bundle)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.EqualFunc(t.current, certs, (*x509.Certificate).Equal) {
		return nil
	}
	for _, old := range t.current {
		if now := t.clock.Now(); !holds(certs, old) && now.Sub(t.forgot) >= forgetting {
			t.remember(old, now.Add(overlap))
		}
	}
	t.past = slices.DeleteFunc(t.past, func(p pastCA) bool { return holds(certs, p.cert) })
	t.current = certs
	for _, f := range t.changed {
		f()
	}
	return nil
}

// recall takes the CAs of a record that are not in use as those before.
func (t *Trust) recall(as []recordedCA) error {
	var errs []error
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	for _, a := range as {
		certs, err := parseCAs([]byte(a.Certificate))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		until := now.Add(overlap)
		if a.Until != nil && a.Until.Before(until) {
			until = *a.Until
		}
		for _, c := range certs {
			if !holds(t.current, c) {
				t.remember(c, until)
			}
		}
	}
	return errors.Join(errs...)
}

// record returns the CAs in the form in which recall reads them.
func (t *Trust) record() []recordedCA {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []recordedCA
	for _, c := range t.current {
		out = append(out, recordedCA{Certificate: string(encode(c))})
	}
	for _, p := range t.past {
		out = append(out, recordedCA{Certificate: string(encode(p.cert)), Until: new(p.until.UTC().Truncate(time.Second))})
	}
	return out
}

// forget drops all replaced CAs. One that is replaced within the next minute is not kept either.
func (t *Trust) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.past, t.forgot = nil, t.clock.Now()
	for _, f := range t.changed {
		f()
	}
}

// remember adds a CA to those before, of which there are a few at most. t.mu is held.
func (t *Trust) remember(c *x509.Certificate, until time.Time) {
	if slices.ContainsFunc(t.past, func(p pastCA) bool { return p.cert.Equal(c) }) {
		return
	}
	t.past = append(t.past, pastCA{c, until})
	slices.SortStableFunc(t.past, func(a, b pastCA) int { return b.until.Compare(a.until) })
	t.past = t.past[:min(len(t.past), pastMost)]
}

// Bundle is what the registrations are to hold, PEM; nil while no CA is known.
func (t *Trust) Bundle() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.current) == 0 {
		return nil
	}
	now := t.clock.Now()
	t.past = slices.DeleteFunc(t.past, func(p pastCA) bool { return !now.Before(p.until) || !now.Before(p.cert.NotAfter) })
	var out bytes.Buffer
	for _, c := range t.current {
		out.Write(encode(c))
	}
	for _, p := range t.past {
		out.Write(encode(p.cert))
	}
	return out.Bytes()
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw})
}

func holds(certs []*x509.Certificate, c *x509.Certificate) bool {
	return slices.ContainsFunc(certs, c.Equal)
}

// parseCAs reads a bundle, of at least one certificate.
func parseCAs(bundle []byte) (out []*x509.Certificate, err error) {
	certs, err := cert.ParseCertsPEM(bundle)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read as certificates in PEM: %w", err)
	}
	for _, c := range certs {
		if !holds(out, c) {
			out = append(out, c)
		}
	}
	return out, nil
}

// verify says why a bundle does not vouch for a certificate under a host's name, nil if it does.
func verify(c *tls.Certificate, host string, bundle []byte, now time.Time) error {
	if len(bundle) == 0 {
		return errors.New("caBundle is empty")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("caBundle holds no certificate")
	}
	between := x509.NewCertPool()
	for _, der := range c.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(cert)
		}
	}
	_, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}
