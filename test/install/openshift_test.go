package install_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestOpenShift installs OpenShift's overlay beside a stand-in for the service CA operator, and has all that it issues
// renewed under load. What of the overlay is for cluster monitoring's operator is left out: its kinds are not here.
func TestOpenShift(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	f := start(t)
	f.hook()
	ca := f.serviceCA()
	part := f.parts(t)
	part("guard mode", func() {
		f.must("kubectl", nil, "create", "namespace", "openshift-config-managed")
		f.install(withoutMonitoring(f.render("openshift", "")))
		f.guarded("master-0", "master-1", "master-2")
		f.enforced()
	})
	part("the certificate is renewed under load", func() { f.rotation(ca, func() { ca.issue(f) }) })
	part("the CA is rotated under load", func() {
		ca.rotate(f)
		f.rotation(ca, func() { ca.issue(f) }) // who has the CA before alone trusts this one, too
		f.rotation(ca, func() {
			ca.trust(f)
			f.Eventually(f.bundles).Should(gomega.HaveEach(gomega.Equal(string(ca.bundle()))))
			ca.issue(f)
		})
	})
	part("what somebody edits comes back with the CA", func() {
		f.must("kubectl", nil, "delete", "validatingwebhookconfiguration", registrations.Name)
		f.enforced()
		f.Eventually(f.bundles).Should(gomega.HaveEach(gomega.Equal(string(ca.bundle()))))
	})
	for _, pod := range f.pods() {
		f.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(gomega.BeZero(), pod.Name)
	}
}

// withoutMonitoring are manifests less the kinds of the Prometheus operator.
func withoutMonitoring(manifests []byte) []byte {
	return bytes.Join(slices.DeleteFunc(bytes.Split(manifests, []byte("\n---\n")), func(object []byte) bool {
		return bytes.Contains(object, []byte("apiVersion: monitoring.coreos.com/"))
	}), []byte("\n---\n"))
}

// The annotations that the service CA operator goes by.
const (
	wantsCertificate = "service.beta.openshift.io/serving-cert-secret-name"
	wantsBundle      = "service.beta.openshift.io/inject-cabundle"
)

// serviceCA stands in for the service CA operator. It issues a certificate for each Service that asks for one, and writes
// its CAs into the webhook configurations that do. Its new CA is endorsed by the one before, and what it issues comes
// with that.
type serviceCA struct {
	mu       sync.Mutex
	now      *pki.Authority
	endorsed []byte   // the present CA's certificate by the one before, PEM
	trusted  [][]byte // CAs that are injected, PEM
	secret   client.ObjectKey
	host     string
}

// serviceCA starts one, which runs until the test ends.
func (f *fixture) serviceCA() *serviceCA {
	f.t.Helper()
	now, err := pki.NewAuthority("openshift-service-serving-signer")
	f.Expect(err).NotTo(gomega.HaveOccurred())
	ca := &serviceCA{now: now, trusted: [][]byte{now.CertPEM()}}
	ctx, stop := context.WithCancel(f.t.Context())
	var runs sync.WaitGroup
	runs.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C: // what fails is tried again
				_ = errors.Join(ca.serve(ctx, f.admin, false), ca.inject(ctx, f.admin))
			}
		}
	})
	f.t.Cleanup(func() { stop(); runs.Wait() })
	return ca
}

// bundle are the CAs that are injected.
func (ca *serviceCA) bundle() []byte {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return bytes.Join(ca.trusted, nil)
}

// serve issues for the Services that ask for it, again where there is a certificate if that is wanted.
func (ca *serviceCA) serve(ctx context.Context, c client.Client, again bool) error {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	var services corev1.ServiceList
	if err := c.List(ctx, &services, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range services.Items {
		s := &services.Items[i]
		name := s.Annotations[wantsCertificate]
		if name == "" {
			continue
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}, Type: corev1.SecretTypeTLS}
		ca.secret, ca.host = client.ObjectKeyFromObject(secret), s.Name+"."+s.Namespace+".svc"
		err := c.Get(ctx, ca.secret, &corev1.Secret{})
		if err == nil && !again || err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		cert, key, err := ca.now.Issue(pki.Leaf{CommonName: ca.host, Hosts: []string{ca.host, ca.host + ".cluster.local"}})
		if err != nil {
			return err
		}
		if _, err := controllerutil.CreateOrUpdate(ctx, c, secret, func() error {
			secret.Data = map[string][]byte{corev1.TLSCertKey: append(cert, ca.endorsed...), corev1.TLSPrivateKeyKey: key}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// inject writes the CAs into the configurations that ask for them.
func (ca *serviceCA) inject(ctx context.Context, c client.Client) error {
	bundle := ca.bundle()
	var (
		mutating   admissionregistrationv1.MutatingWebhookConfigurationList
		validating admissionregistrationv1.ValidatingWebhookConfigurationList
	)
	if err := errors.Join(c.List(ctx, &mutating), c.List(ctx, &validating)); err != nil {
		return err
	}
	var failed error
	put := func(o client.Object, configs []*admissionregistrationv1.WebhookClientConfig) {
		if o.GetAnnotations()[wantsBundle] != "true" || !slices.ContainsFunc(configs, func(w *admissionregistrationv1.WebhookClientConfig) bool { return !bytes.Equal(w.CABundle, bundle) }) {
			return
		}
		for _, w := range configs {
			w.CABundle = bundle
		}
		failed = errors.Join(failed, c.Update(ctx, o))
	}
	for i := range mutating.Items {
		var all []*admissionregistrationv1.WebhookClientConfig
		for k := range mutating.Items[i].Webhooks {
			all = append(all, &mutating.Items[i].Webhooks[k].ClientConfig)
		}
		put(&mutating.Items[i], all)
	}
	for i := range validating.Items {
		var all []*admissionregistrationv1.WebhookClientConfig
		for k := range validating.Items[i].Webhooks {
			all = append(all, &validating.Items[i].Webhooks[k].ClientConfig)
		}
		put(&validating.Items[i], all)
	}
	return failed
}

// issue replaces the certificates.
func (ca *serviceCA) issue(f *fixture) {
	f.t.Helper()
	f.Expect(ca.serve(f.t.Context(), f.admin, true)).To(gomega.Succeed())
}

// rotate makes a CA with a new key, endorsed by the one before. It is not injected yet.
func (ca *serviceCA) rotate(f *fixture) {
	f.t.Helper()
	next, err := pki.NewAuthority("openshift-service-serving-signer-2")
	f.Expect(err).NotTo(gomega.HaveOccurred())
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.endorsed, err = ca.now.Endorse(next)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	ca.now = next
}

// trust has the present CA injected beside those before.
func (ca *serviceCA) trust(f *fixture) {
	f.t.Helper()
	ca.mu.Lock()
	defer ca.mu.Unlock()
	ca.trusted = append(ca.trusted, ca.now.CertPEM())
}

// rotation has something renewed under load: no request is answered wrongly, and each replica serves what is in the Secret then.
func (f *fixture) rotation(ca *serviceCA, renew func()) {
	f.t.Helper()
	l := f.load(f.requests(""), func() {
		renew()
		var secret corev1.Secret
		f.Expect(f.admin.Get(f.t.Context(), ca.secret, &secret)).To(gomega.Succeed())
		block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
		f.Expect(block).NotTo(gomega.BeNil())
		f.Expect(f.pods()).To(gomega.HaveLen(2))
		for _, pod := range f.pods() {
			f.Eventually(func() ([]byte, error) { return served(f.t.Context(), pod.Status.PodIP+":9443") }).Should(gomega.Equal(block.Bytes), pod.Name)
		}
	})
	f.Expect(l.wrong).To(gomega.BeEmpty())
}

// served is the certificate that is shown at an address, DER.
func served(ctx context.Context, address string) ([]byte, error) {
	var shown []byte
	dial := tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, // it is looked at, not trusted
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			shown = raw[0]
			return nil
		},
	}}
	conn, err := dial.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return shown, conn.Close()
}

// enforced waits until the API server fails closed where it should.
func (f *fixture) enforced() {
	f.t.Helper()
	f.Eventually(func(g gomega.Gomega) {
		var validating admissionregistrationv1.ValidatingWebhookConfiguration
		g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Name: registrations.Name}, &validating)).To(gomega.Succeed())
		closed := 0
		for _, w := range validating.Webhooks {
			if *w.FailurePolicy == admissionregistrationv1.Fail {
				closed++
			}
		}
		g.Expect(closed).To(gomega.Equal(2))
	}).Should(gomega.Succeed())
}

// bundles are the CAs in each webhook's registration.
func (f *fixture) bundles() (out []string) {
	var (
		mutating   admissionregistrationv1.MutatingWebhookConfiguration
		validating admissionregistrationv1.ValidatingWebhookConfiguration
	)
	key := client.ObjectKey{Name: registrations.Name}
	f.Expect(errors.Join(f.admin.Get(f.t.Context(), key, &mutating), f.admin.Get(f.t.Context(), key, &validating))).To(gomega.Succeed())
	for i := range mutating.Webhooks {
		out = append(out, string(mutating.Webhooks[i].ClientConfig.CABundle))
	}
	for i := range validating.Webhooks {
		out = append(out, string(validating.Webhooks[i].ClientConfig.CABundle))
	}
	return out
}
