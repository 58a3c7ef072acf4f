package certmanager

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/install"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// change changes the overlay as docs/install.md says, under load: while no replica runs, what must not pass is
// refused. Then all is the new overlay's, nothing is the old one's, and all is answered again.
func (f *fixture) change(to string) {
	f.t.Helper()
	script := f.script(to)
	l := f.load(f.requestsWhileDown(), func() {
		f.run(script)
		f.complete()
		f.registered(to)
	})
	f.Expect(l.wrong).To(gomega.BeEmpty())
	l = f.load(f.requests(), func() {})
	f.Expect(l.wrong).To(gomega.BeEmpty())
	for _, name := range []string{"master-0", "master-1", "master-2"} {
		m := machineapi.Machine(f.machine(name))
		f.Expect(m.Hook).To(gomega.Equal(quorum.EntryOurs), name)
		f.Expect(m.Latch).To(gomega.Equal(quorum.EntryOurs), name)
	}
}

// script is the documented one that applies that overlay, whose manifests are those for this sandbox.
func (f *fixture) script(to string) string {
	f.t.Helper()
	scripts, err := install.Documented("install.md", "Changing the overlay")
	f.Expect(err).NotTo(gomega.HaveOccurred())
	file := filepath.Join(f.t.TempDir(), "manifests.yaml")
	f.Expect(os.WriteFile(file, f.render(to), 0o600)).To(gomega.Succeed())
	for _, script := range scripts {
		if documented := "bin/release/holdfast-" + to + ".yaml"; strings.Contains(script, documented) {
			return strings.ReplaceAll(script, documented, file)
		}
	}
	f.t.Fatalf("docs/install.md has no script that changes the overlay to %s", to)
	return ""
}

// run runs a script as the administrator.
func (f *fixture) run(script string) {
	f.t.Helper()
	kubectl, err := assets.Path("kubectl")
	f.Expect(err).NotTo(gomega.HaveOccurred())
	cmd := exec.CommandContext(f.t.Context(), "bash", "-euc", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.sandbox.Kubeconfig(sandbox.Admin), "PATH="+filepath.Dir(kubectl)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	f.t.Log(string(out))
	f.Expect(err).NotTo(gomega.HaveOccurred(), string(out))
}

// registered waits until the registrations are as that overlay has them, and are enforced; nobody else has a hand
// in the Secret of the CA.
func (f *fixture) registered(overlay string) {
	f.t.Helper()
	self := overlay == "self-signed"
	f.Eventually(func(g gomega.Gomega) {
		secret := &corev1.Secret{}
		g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: "holdfast-webhook-ca"}, secret)).To(gomega.Succeed())
		_, certManagers := secret.Annotations[cmapi.CertificateNameKey]
		g.Expect(certManagers).NotTo(gomega.Equal(self), "who makes the Secret")
		validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		g.Expect(f.admin.Get(f.t.Context(), client.ObjectKey{Name: registrations.Name}, validating)).To(gomega.Succeed())
		for i := range validating.Webhooks {
			w := &validating.Webhooks[i]
			if w.Name == registrations.ClosedWebhook || w.Name == registrations.HomeWebhook {
				g.Expect(*w.FailurePolicy).To(gomega.Equal(admissionregistrationv1.Fail), w.Name)
			}
			g.Expect(bytes.Contains(w.ClientConfig.CABundle, secret.Data[corev1.TLSCertKey])).To(gomega.BeTrue(), w.Name)
		}
		if self {
			g.Expect(validating.Annotations).NotTo(gomega.HaveKey(cmapi.WantInjectAnnotation))
		} else {
			g.Expect(validating.Annotations).To(gomega.HaveKey(cmapi.WantInjectAnnotation))
		}
	}).WithTimeout(3 * time.Minute).Should(gomega.Succeed())
}
