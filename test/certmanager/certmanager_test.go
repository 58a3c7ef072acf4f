package certmanager

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cert-manager/cert-manager/pkg/api/util"
	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"github.com/cert-manager/cert-manager/pkg/util/feature"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/metrics"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// The Certificates of the overlay, and the Secret of the second.
const (
	authority = "holdfast-ca"
	leaf      = "holdfast-webhook"
	secretOf  = "holdfast-webhook-tls"
)

// TestCertManager installs the overlay beside cert-manager, and has everything renewed that it issues.
func TestCertManager(t *testing.T) {
	f := start(t)
	f.certManager()
	part := func(name string, run func()) {
		if !t.Run(name, func(t *testing.T) { f.on(t); run() }) {
			t.FailNow()
		}
		f.on(t)
	}
	part("install", func() { f.apply(f.render("cert-manager")); f.hook(); f.guards() })
	part("the certificate is renewed", func() { f.rotation(func() { f.renew(namespace, leaf) }) })
	part("the CA is renewed", func() { f.authority(sameKey, f.injected) })
	part("the CA gets a new key, which is injected last", func() {
		f.keyOf(authority, "Always")
		f.stopInjector()
		f.authority(newKey, func(now issued) {
			f.held(now)
			f.inject()
			f.injected(now)
		})
		f.Expect(f.bundles()).To(gomega.HaveEach(gomega.HaveLen(3)), "the CAs before stay")
		f.keyOf(authority, "Never")
		f.forget()
	})
	part("the overlay is changed to self-signed", func() { f.change("self-signed") })
	part("and back", func() { f.change("cert-manager") })
	part("an injector that keeps no CA before", func() {
		f.Expect(feature.DefaultMutableFeatureGate.Set("CAInjectorMerging=false")).To(gomega.Succeed())
		f.authority(sameKey, f.injected)
		f.Expect(f.bundles()).To(gomega.HaveEach(gomega.HaveLen(1)))
	})
	part("etcd's own certificates, as in deploy/examples/etcd-host", f.etcdHosts)
	for _, pod := range f.pods() {
		f.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(gomega.BeZero(), pod.Name)
	}
}

// guards looks whether what was installed works: the injector filled in the registrations, which are
// enforced, and a deletion passes and another one does not.
func (f *fixture) guards() {
	f.Eventually(func(g gomega.Gomega) {
		validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Name: registrations.Name}, validating)).To(gomega.Succeed())
		for _, w := range validating.Webhooks {
			if w.Name == registrations.ClosedWebhook || w.Name == registrations.HomeWebhook {
				g.Expect(*w.FailurePolicy).To(gomega.Equal(admissionregistrationv1.Fail), w.Name)
			}
		}
		var managers []string
		for _, entry := range validating.ManagedFields {
			if strings.Contains(entry.FieldsV1.GetRawString(), "f:caBundle") {
				managers = append(managers, entry.Manager)
			}
		}
		g.Expect(managers).To(gomega.ContainElement("cert-manager-cainjector"))
	}).Should(gomega.Succeed())
	f.Expect(f.bundles()).To(gomega.HaveEach(gomega.ConsistOf(f.issued().ca)))
	out := f.kubectl(nil, "delete", "machine", "master-0", "--wait=false", "-n", sandbox.MachineNamespace)
	f.Expect(out).To(gomega.ContainSubstring("Holdfast (held)"))
	out, err := f.try(nil, "delete", "machine", "master-1", "--wait=false", "-n", sandbox.MachineNamespace)
	f.Expect(err).To(gomega.HaveOccurred())
	f.Expect(out).To(gomega.ContainSubstring("Refused (one-too-many)"))
}

// issued is what the webhooks' Secret holds.
type issued struct {
	leaf *x509.Certificate
	ca   string // PEM
}

func (f *fixture) issued() issued {
	f.t.Helper()
	secret := f.secretIn(namespace, secretOf)
	return issued{leaf: f.certificate(secret.Data[corev1.TLSCertKey]), ca: string(secret.Data[cmmeta.TLSCAKey])}
}

func (f *fixture) certificate(text []byte) *x509.Certificate {
	f.t.Helper()
	block, _ := pem.Decode(text)
	f.Expect(block).NotTo(gomega.BeNil())
	c, err := x509.ParseCertificate(block.Bytes)
	f.Expect(err).NotTo(gomega.HaveOccurred())
	return c
}

// bundles are the CAs that each webhook's registration holds, PEM, by the webhook's name.
func (f *fixture) bundles() map[string][]string {
	f.t.Helper()
	var (
		mutating   admissionregistrationv1.MutatingWebhookConfiguration
		validating admissionregistrationv1.ValidatingWebhookConfiguration
		out        = map[string][]string{}
	)
	f.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Name: registrations.Name}, &mutating)).To(gomega.Succeed())
	f.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Name: registrations.Name}, &validating)).To(gomega.Succeed())
	add := func(name string, bundle []byte) {
		out[name] = nil
		for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
			out[name] = append(out[name], string(pem.EncodeToMemory(block)))
		}
	}
	for i := range mutating.Webhooks {
		add(mutating.Webhooks[i].Name, mutating.Webhooks[i].ClientConfig.CABundle)
	}
	for i := range validating.Webhooks {
		add(validating.Webhooks[i].Name, validating.Webhooks[i].ClientConfig.CABundle)
	}
	f.Expect(out).To(gomega.HaveLen(5))
	return out
}

// renew has a Certificate issued anew, as `cmctl renew` does, and waits until it is.
func (f *fixture) renew(in, name string) {
	f.t.Helper()
	var before int
	f.Eventually(func() error {
		c := f.certificateIn(in, name)
		before = *c.Status.Revision
		util.SetCertificateCondition(c, c.Generation, cmapi.CertificateConditionIssuing, cmmeta.ConditionTrue, "ManuallyTriggered", "Renewed by hand")
		return f.admin.Status().Update(f.t.Context(), c)
	}).Should(gomega.Succeed())
	f.Eventually(func(g gomega.Gomega) {
		c := f.certificateIn(in, name)
		g.Expect(*c.Status.Revision).To(gomega.BeNumerically(">", before))
		g.Expect(util.CertificateHasCondition(c, cmapi.CertificateCondition{Type: cmapi.CertificateConditionReady, Status: cmmeta.ConditionTrue})).To(gomega.BeTrue())
	}).Should(gomega.Succeed())
}

// rotation has the webhooks' certificate changed under load: no request is answered wrongly, and each
// replica serves the new one, and tells when it ends.
func (f *fixture) rotation(rotate func()) {
	f.t.Helper()
	before := f.issued()
	l := f.load(f.requests(), func() {
		rotate()
		now := f.issued()
		f.Expect(now.leaf.SerialNumber).NotTo(gomega.Equal(before.leaf.SerialNumber))
		f.Expect(f.pods()).To(gomega.HaveLen(2))
		for _, pod := range f.pods() {
			f.Eventually(func(g gomega.Gomega) {
				g.Expect(serial(pod.Status.PodIP)).To(gomega.Equal(now.leaf.SerialNumber.String()))
				g.Expect(metric(pod.Status.PodIP, "holdfast_webhook_certificate_expiry_timestamp_seconds")).To(gomega.Equal(float64(now.leaf.NotAfter.Unix())))
			}).Should(gomega.Succeed(), pod.Name)
		}
	})
	f.Expect(l.wrong).To(gomega.BeEmpty())
	for _, pod := range f.pods() {
		f.Expect(metric(pod.Status.PodIP, "holdfast_registration_restored_total")).To(gomega.BeZero(), "Holdfast and the injector undo each other's writes")
	}
}

// What becomes of the CA's key when it is renewed.
const (
	sameKey = true
	newKey  = false
)

// authority renews the CA and then the webhooks' certificate, which is when the injector hears of the CA.
func (f *fixture) authority(key bool, then func(issued)) {
	f.t.Helper()
	before := f.issued()
	f.rotation(func() {
		f.renew(namespace, authority)
		f.Expect(f.issued()).To(gomega.Equal(before), "a renewed CA changes nothing yet")
		f.renew(namespace, leaf)
		now := f.issued()
		f.Expect(now.ca).NotTo(gomega.Equal(before.ca))
		public, ok := f.certificate([]byte(before.ca)).PublicKey.(*ecdsa.PublicKey)
		f.Expect(ok).To(gomega.BeTrue())
		f.Expect(public.Equal(f.certificate([]byte(now.ca)).PublicKey)).To(gomega.Equal(key), "the CA's key")
		then(now)
	})
}

// injected waits until the registrations hold the CA.
func (f *fixture) injected(now issued) {
	f.t.Helper()
	f.Eventually(f.bundles).Should(gomega.HaveEach(gomega.ContainElement(now.ca)))
}

// held waits until all replicas have a new certificate, which nobody trusts yet: they do not serve it.
func (f *fixture) held(now issued) {
	f.t.Helper()
	for _, pod := range f.pods() {
		f.Eventually(func(g gomega.Gomega) {
			files, err := filepath.Glob(filepath.Join(f.sandbox.Dir, "hosts", "*", "pods", string(pod.UID), "webhook-certificate", corev1.TLSCertKey))
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(files).To(gomega.HaveLen(1))
			text, err := os.ReadFile(files[0])
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(f.certificate(text).SerialNumber).To(gomega.Equal(now.leaf.SerialNumber))
		}).Should(gomega.Succeed(), pod.Name)
	}
	for _, pod := range f.pods() {
		f.Consistently(func() (string, error) { return serial(pod.Status.PodIP) }).WithTimeout(2*time.Second).
			ShouldNot(gomega.Equal(now.leaf.SerialNumber.String()), pod.Name)
	}
}

// keyOf says what becomes of a Certificate's key when it is renewed: Always a new one, or Never.
func (f *fixture) keyOf(name, policy string) {
	f.t.Helper()
	f.kubectl(nil, "-n", namespace, "patch", "certificate", name, "--type=merge", `-p={"spec":{"privateKey":{"rotationPolicy":"`+policy+`"}}}`)
}

// forget takes the CAs before out of the registrations, as the documentation says.
func (f *fixture) forget() {
	f.t.Helper()
	now := f.secretIn(namespace, secretOf).Data[cmmeta.TLSCAKey]
	l := f.load(f.requests(), func() {
		text := f.kubectl(nil, "get", "mutatingwebhookconfiguration,validatingwebhookconfiguration", registrations.Name, "-o", "json")
		bundle := regexp.MustCompile(`"caBundle": ".*"`)
		f.Expect(bundle.FindAllString(text, -1)).To(gomega.HaveLen(5))
		text = bundle.ReplaceAllLiteralString(text, `"caBundle": "`+base64.StdEncoding.EncodeToString(now)+`"`)
		f.kubectl([]byte(text), "replace", "-f", "-")
		// Neither the injector nor Holdfast, which looks every 5 s, brings them back.
		f.Consistently(f.bundles).WithTimeout(6 * time.Second).Should(gomega.HaveEach(gomega.ConsistOf(string(now))))
	})
	f.Expect(l.wrong).To(gomega.BeEmpty())
}

// serial is the serial number of the certificate that a replica serves its webhooks with.
func serial(address string) (string, error) {
	conn, err := tls.Dial("tcp", address+":9443", &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// metric is the sum of a metric of a replica over its labels.
func metric(address, name string) (float64, error) {
	page, err := metrics.Read(context.Background(), http.DefaultClient, "http://"+address+":9441/metrics")
	if err == nil && !page.Has(name) {
		err = fmt.Errorf("there is no metric %s", name)
	}
	return page.Sum(name), err
}
