package registrations

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cert-manager/cert-manager/pkg/server/tls/authority"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SelfSigned has a CA in a Secret that all replicas share, and issues this replica's certificate from it,
// in memory. The authority makes the CA when it is missing and a new one two thirds through its life. It
// keeps one CA and announces a new one at once: going over to it is Source's and Trust's.
//
// Every replica runs it; two that make a CA at the same time are told apart by the Secret's
// resourceVersion.
type SelfSigned struct {
	Secret client.ObjectKey // the CA's
	Config *rest.Config
	API    client.Client // without a cache
	Hosts  []string      // what the certificate is for
	Events events.EventRecorder
	Source *Source
	Trust  *Trust
	Clock  clock.PassiveClock
	Log    logr.Logger
}

const (
	caName       = "holdfast-webhook-ca"
	caDuration   = 365 * 24 * time.Hour
	leafDuration = 7 * 24 * time.Hour
	issueRetry   = time.Second // doubled after each failure
	issuePause   = time.Minute // at most
)

// Start issues certificates until the context ends: at the beginning, when the CA is another one, and
// when the certificate has a third of its life left.
func (s *SelfSigned) Start(ctx context.Context) error {
	ca := &authority.DynamicAuthority{
		SecretNamespace: s.Secret.Namespace, SecretName: s.Secret.Name, RESTConfig: s.Config,
		CommonName: caName, CADuration: caDuration, LeafDuration: leafDuration,
		SecretLabels: map[string]string{"app.kubernetes.io/managed-by": "holdfast"},
	}
	rotated := make(chan struct{}, 1)
	ca.WatchRotation(rotated)
	defer ca.StopWatchingRotation(rotated)
	ended := make(chan error, 1)
	go func() { ended <- ca.Run(logr.NewContext(ctx, s.Log.WithName("authority"))) }()

	tick := time.NewTicker(issueRetry)
	defer tick.Stop()
	var (
		renew time.Time
		pause = issueRetry
		t     trouble
	)
	for {
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("the webhooks' CA (Secret %s): %w", s.Secret, err)
			}
			return nil // the context has ended
		case <-rotated:
			renew, pause = time.Time{}, issueRetry
		case <-tick.C:
		}
		if s.Clock.Now().Before(renew) {
			continue
		}
		leaf, err := s.issue(ctx, ca)
		if errors.Is(err, authority.ErrCertificateNotAvailable) {
			if err = s.mend(ctx); err == nil {
				continue
			}
		}
		t.say(ctx, s.Log, err, "no new certificate for the webhooks; trying again")
		if err != nil {
			renew, pause = s.Clock.Now().Add(pause), min(2*pause, issuePause)
			continue
		}
		pause = issueRetry
		renew = leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore) / 3)
	}
}

// issue offers a new certificate, once it is known who signed it.
func (s *SelfSigned) issue(ctx context.Context, ca *authority.DynamicAuthority) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	// The authority does not return its CA's certificate. Read first, it costs no key where there is no answer.
	var secret corev1.Secret
	if err := s.API.Get(ctx, s.Secret, &secret); apierrors.IsNotFound(err) {
		return nil, authority.ErrCertificateNotAvailable // the authority is about to make it
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", s.Secret, err)
	}
	// Not deleted here: a replica whose own clock is behind would delete what the others make.
	if pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err == nil && pair.Leaf.NotBefore.After(s.Clock.Now()) {
		return nil, fmt.Errorf("the CA in Secret %s is not valid before %s: a clock is wrong, this host's or that of the replica that made the CA; in the latter case delete the Secret, and a new CA is made",
			s.Secret, pair.Leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "holdfast-webhook"}, PublicKeyAlgorithm: x509.ECDSA, PublicKey: key.Public(),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range s.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	leaf, err := ca.Sign(template)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	bundle := secret.Data[corev1.TLSCertKey]
	certificate := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	if err := verify(certificate, s.Hosts[0], bundle, leaf.NotBefore); err != nil {
		return nil, fmt.Errorf("the CA in Secret %s has just become another one: %w", s.Secret, err)
	}
	if err := s.Trust.Set(bundle); err != nil {
		return nil, fmt.Errorf("Secret %s, %s: %w", s.Secret, corev1.TLSCertKey, err)
	}
	s.Source.Offer(certificate)
	return leaf, nil
}

// mend deletes the Secret if it cannot be used and, being immutable, cannot be put right either. The authority makes
// another.
func (s *SelfSigned) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	var secret corev1.Secret
	if err := s.API.Get(ctx, s.Secret, &secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !ptr.Deref(secret.Immutable, false) || usable(&secret, s.Clock.Now()) {
		return nil // the authority puts it right, or is about to take it
	}
	if err := remove(ctx, s.API, &secret); err != nil {
		return fmt.Errorf("the webhooks' CA in Secret %s cannot be used, and the Secret is immutable: %w", s.Secret, err)
	}
	s.Log.Info("the webhooks' CA could not be used, and its Secret was immutable: the Secret was deleted, and a new CA is made", "secret", s.Secret.String())
	s.Events.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: s.Secret.Namespace, Name: s.Secret.Name, UID: secret.UID},
		nil, corev1.EventTypeWarning, "WebhookCAReplaced", "Replace", "The webhooks' CA in Secret %s could not be used, and the Secret was immutable. It was deleted, and a new CA is made.", s.Secret)
	return nil
}

// usable reports whether the authority takes a Secret's CA as it is.
func usable(secret *corev1.Secret, now time.Time) bool {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil || !bytes.Equal(secret.Data[corev1.TLSCertKey], secret.Data[corev1.ServiceAccountRootCAKey]) {
		return false
	}
	return pair.Leaf.IsCA && pair.Leaf.NotAfter.Sub(now) >= pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)/3
}
