package registrations

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// settle is how long a new certificate waits after this replica has read registrations that vouch for
// it: another API server may hear of them later, and its clock may be behind.
const settle = 10 * time.Second

// Source has the certificate that the webhooks are served with. A new one takes the place of one that is
// served only when the live registrations vouch for the new one too, so that no call fails while CA and
// certificate change. Make it with NewSource.
type Source struct {
	live    *Live // nil where the registrations are not kept: a new certificate is served at once
	host    string
	settle  time.Duration
	clock   clock.PassiveClock
	metrics *Metrics
	log     logr.Logger

	mu            sync.Mutex
	serving, next *tls.Certificate
	vouched       time.Time // since when the registrations vouch for next
}

// NewSource has no certificate yet. The host is what the API server verifies it for.
func NewSource(live *Live, host string, c clock.PassiveClock, metrics *Metrics, log logr.Logger) *Source {
	return &Source{live: live, host: host, settle: settle, clock: c, metrics: metrics, log: log}
}

// Start goes over to the certificate that was offered last, when it is time, until the context ends.
func (s *Source) Start(ctx context.Context) error { return every(ctx, time.Second, nil, s.review) }

// Offer brings a certificate, whose Leaf is set.
func (s *Source) Offer(c *tls.Certificate) {
	s.mu.Lock()
	s.next, s.vouched = c, time.Time{}
	s.mu.Unlock()
	s.review()
}

var errNoCertificate = errors.New("there is no certificate to serve the webhooks with yet")

// GetCertificate is for tls.Config.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving == nil {
		return nil, errNoCertificate
	}
	return s.serving, nil
}

// review goes over to the next certificate if it is time.
func (s *Source) review() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil || !s.due() {
		return
	}
	s.serving, s.next = s.next, nil
	s.metrics.expiry.Set(float64(s.serving.Leaf.NotAfter.Unix()))
	s.log.Info("serving a new certificate", "serial", s.serving.Leaf.SerialNumber, "issuer", s.serving.Leaf.Issuer.String(), "expires", s.serving.Leaf.NotAfter)
}

// due reports whether it is time to serve the next certificate.
func (s *Source) due() bool {
	now := s.clock.Now()
	if s.serving == nil || s.live == nil || s.live.uncalled() || now.After(s.serving.Leaf.NotAfter) {
		return true
	}
	if err := s.live.trusts(s.next, s.host, now); err != nil {
		if s.vouched = (time.Time{}); !errors.Is(err, errUnread) {
			s.log.V(1).Info("the registrations do not trust the new certificate yet; still serving the previous one", "reason", err.Error())
		}
		return false
	}
	if s.vouched.IsZero() {
		s.vouched = now
	}
	return now.Sub(s.vouched) >= s.settle || s.live.trusts(s.serving, s.host, now) != nil
}
