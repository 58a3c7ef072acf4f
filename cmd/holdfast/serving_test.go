package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/apiserver"
	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/loopback"
	"github.com/holdfast-dev/holdfast/test/pki"
)

// TestServingFlags has what is said to those who mix up where certificates and CA come from.
func TestServingFlags(t *testing.T) {
	pem := file(t, "any.pem", "x")
	certs := filepath.Dir(file(t, "tls.crt", "x"))
	run := []string{"run", "--endpoints=https://127.0.0.1:2379", "--cacert=" + pem, "--cert=" + pem, "--key=" + pem}
	manifests := []string{"manifests"}
	const service, url = "--webhook-service=holdfast-system/holdfast-webhook", "--webhook-url=https://10.0.0.9:9443"
	const inject = "--registration-annotations=service.beta.openshift.io/inject-cabundle=true"
	withKey := "--webhook-cert-dir=" + certs
	ok(t, os.WriteFile(filepath.Join(certs, "tls.key"), []byte("x"), 0o600))
	for name, c := range map[string]struct {
		command, args []string
		want          []string
	}{
		"two places":                   {run, []string{withKey, service, url}, []string{"--webhook-service", "--webhook-url", "one of them"}},
		"no Service":                   {run, []string{withKey, "--webhook-service=holdfast-webhook"}, []string{`"holdfast-webhook"`, "NAMESPACE/NAME[:PORT]", "holdfast-system/holdfast-webhook"}},
		"a Service's port":             {run, []string{withKey, service + ":99999"}, []string{"--webhook-service", `"99999"`, "65535"}},
		"a plain URL":                  {run, []string{withKey, "--webhook-url=http://10.0.0.9"}, []string{"--webhook-url", "https"}},
		"another source":               {run, []string{withKey, service, "--webhook-cert-source=vault"}, []string{"--webhook-cert-source", `"vault"`, "files", "self-signed"}},
		"self-signed for nobody":       {run, []string{"--webhook-cert-source=self-signed"}, []string{"--webhook-service", "--webhook-url"}},
		"self-signed with a CA":        {run, []string{service, "--webhook-cert-source=self-signed", "--webhook-ca-file=" + pem}, []string{"self-signed", "--webhook-ca-file"}},
		"self-signed with an injector": {run, []string{service, "--webhook-cert-source=self-signed", inject}, []string{"self-signed", "--registration-annotations"}},
		"self-signed with files":       {run, []string{withKey, service, "--webhook-cert-source=self-signed"}, []string{"self-signed", "--webhook-cert-dir"}},
		"a folder for no Secret":       {run, []string{withKey, "--etcd-cert-dir=/var/run/holdfast/etcd"}, []string{"--etcd-cert-dir", "--etcd-secret"}},
		"a CA for no registrations":    {run, []string{withKey, "--webhook-ca-file=" + pem}, []string{"--webhook-ca-file", "--webhook-service", "--webhook-url"}},
		"an injector for none":         {run, []string{withKey, inject}, []string{"--registration-annotations", "--webhook-service"}},
		"a CA and an injector":         {run, []string{withKey, service, inject, "--webhook-ca-file=" + pem}, []string{"--webhook-ca-file", "--registration-annotations"}},
		"no CA at all":                 {run, []string{withKey, service}, []string{"--webhook-ca-file", filepath.Join(certs, "ca.crt"), "--registration-annotations", "self-signed"}},
		"a CA that is not there":       {run, []string{withKey, service, "--webhook-ca-file=/nowhere/ca.crt"}, []string{"--webhook-ca-file", "/nowhere/ca.crt"}},
		"a key that is none":           {run, []string{withKey, service, "--registration-annotations=a b=c"}, []string{"--registration-annotations", `"a b"`}},
		"annotations that are none":    {run, []string{withKey, service, "--registration-annotations=inject"}, []string{"--registration-annotations", "inject"}},
		"no certificate":               {run, []string{service, "--webhook-cert-dir=/nowhere"}, []string{"--webhook-cert-dir", "/nowhere/tls.crt"}},
		"manifests for two places":     {manifests, []string{service, url, "--webhook-ca-file=" + pem}, []string{"--webhook-service", "--webhook-url"}},
		"manifests for nowhere":        {manifests, []string{"--webhook-ca-file=" + pem}, []string{"--webhook-url", `""`}},
		"manifests without a CA":       {manifests, []string{service}, []string{"--webhook-ca-file is missing"}},
		"manifests with two CAs":       {manifests, []string{service, inject, "--webhook-ca-file=" + pem}, []string{"--webhook-ca-file", "--registration-annotations"}},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, stderr := typed(t, append(slices.Clone(c.command), c.args...)...)
			if status != 2 || strings.Count(stderr, "\n") != 1 {
				t.Errorf("status %d, want 2 and one line: %q", status, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr %q does not hold %q", stderr, want)
				}
			}
		})
	}
}

// TestManifestsForAService: what is printed says where and whom to trust.
func TestManifestsForAService(t *testing.T) {
	ca := file(t, "ca.crt", "a CA")
	status, stdout, stderr := typed(t, "manifests", "--webhook-service=there/it-is:8443", "--webhook-ca-file="+ca)
	for _, want := range []string{"namespace: there", "name: it-is", "port: 8443", "caBundle: YSBDQQ==", "failurePolicy: Fail"} {
		if status != 0 || !strings.Contains(stdout, want) {
			t.Errorf("status %d, %q; not there: %q", status, stderr, want)
		}
	}
	status, stdout, stderr = typed(t, "manifests", "--webhook-service=there/it-is", "--registration-annotations=cert-manager.io/inject-ca-from=there/cert")
	if status != 0 || strings.Count(stdout, "cert-manager.io/inject-ca-from: there/cert") != 2 || strings.Contains(stdout, "caBundle") || !strings.Contains(stdout, "port: 443") {
		t.Errorf("status %d, %q:\n%s", status, stderr, stdout)
	}
}

// output is a stream that many write to.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// TestRun runs the manager with certificates of its own against a real API server, without an etcd: it
// registers itself, becomes ready, sees that it is reached, and keeps its registrations.
func TestRun(t *testing.T) {
	t.Parallel()
	const me = "system:serviceaccount:holdfast-system:holdfast"
	env := apiserver.Start(t, apiserver.WithCRDs(t, assets.MachineAPI()...))
	user, err := env.AddUser(envtest.User{Name: me, Groups: []string{"system:masters"}}, nil)
	ok(t, err)
	text, err := user.KubeConfig()
	ok(t, err)
	api, err := client.New(env.Config, client.Options{Scheme: scheme()})
	ok(t, err)
	for _, name := range []string{"holdfast-system", "openshift-machine-api"} {
		ok(t, api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	dir := t.TempDir()
	ca, err := pki.NewAuthority("etcd")
	ok(t, err)
	cacert, err := ca.WriteCert(dir)
	ok(t, err)
	cert, key, err := ca.IssueFiles(dir, "client", pki.Leaf{CommonName: "holdfast"})
	ok(t, err)

	block, err := loopback.Claim()
	ok(t, err)
	t.Cleanup(func() { ok(t, block.Close()) })
	ports, err := block.FreePorts(3)
	ok(t, err)
	host := block.Addr(1).String()
	at := func(i int) string { return net.JoinHostPort(host, strconv.Itoa(ports[i])) }
	webhooks, probes, meters := at(0), at(1), at(2)
	ctx, cancel := context.WithCancel(t.Context())
	var stderr output
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{
			"run", "--kubeconfig=" + file(t, "kubeconfig", string(text)), "--endpoints=https://127.0.0.1:1", "--cacert=" + cacert, "--cert=" + cert, "--key=" + key,
			"--webhook-url=https://" + webhooks, "--webhook-host=" + host, "--webhook-port=" + strconv.Itoa(ports[0]), "--webhook-cert-source=self-signed",
			"--health-probe-bind-address=" + probes, "--metrics-bind-address=" + meters, "--audit-log-path=/dev/full", "--cluster-operator=",
		}, io.Discard, &stderr)
	}()
	t.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("status %d: %s", status, stderr.text.String())
		}
	})
	eventually := func(f any) gomega.AsyncAssertion {
		return gomega.NewWithT(t).Eventually(f).WithTimeout(2 * time.Minute).WithPolling(50 * time.Millisecond)
	}
	eventually(func() string { return get("http://" + probes + "/readyz") }).Should(gomega.Equal("200 ok"))
	for _, check := range []string{"webhooks", "certificate", "etcd", "registrations"} {
		if said := get("http://" + probes + "/readyz/" + check); said != "200 ok" {
			t.Errorf("check %s: %s", check, said)
		}
	}
	policy := func() string {
		var v admissionregistrationv1.ValidatingWebhookConfiguration
		if err := api.Get(t.Context(), client.ObjectKey{Name: registrations.Name}, &v); err != nil {
			return err.Error()
		}
		return string(*v.Webhooks[0].FailurePolicy)
	}
	if is := policy(); is != "Ignore" {
		t.Errorf("without a Machine to try it with, the failure policy is %s", is)
	}
	machine := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "openshift-machine-api", Name: "cp", Labels: map[string]string{quorum.RoleLabel: "master"},
	}}
	ok(t, api.Create(t.Context(), machine))
	machine.Status.Phase = new("Running") // before one ever was, the Machine API may be at its installation
	asMachineAPI := rest.CopyConfig(env.Config)
	asMachineAPI.Impersonate = rest.ImpersonationConfig{UserName: admission.DefaultIdentities("").MachineAPI[0], Groups: []string{"system:masters"}}
	machineAPI, err := client.New(asMachineAPI, client.Options{Scheme: scheme()})
	ok(t, err)
	ok(t, machineAPI.Status().Update(t.Context(), machine))
	eventually(policy).Should(gomega.Equal("Fail"))
	// The guard is at work: the Machine lacks its hook, and etcd does not answer.
	if err := api.Delete(t.Context(), machine); err == nil || !strings.Contains(err.Error(), string(quorum.RuleUnprotectedDelete)) {
		t.Errorf("deleted: %v", err)
	}

	// That the denial could not be recorded is told, and the guard goes on: the disk may be full on all hosts.
	eventually(func() string { return get("http://" + meters + "/metrics") }).Should(gomega.ContainSubstring("holdfast_audit_log_writable 0"))
	if said := get("http://" + probes + "/readyz"); said != "200 ok" {
		t.Errorf("with a full disk: %s", said)
	}

	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	mutating.Name = registrations.Name
	ok(t, api.Delete(t.Context(), &mutating))
	eventually(func() error { return api.Get(t.Context(), client.ObjectKey{Name: registrations.Name}, &mutating) }).Should(gomega.Succeed())
	eventually(func() string { return get("http://" + meters + "/metrics") }).Should(gomega.And(
		gomega.ContainSubstring(`holdfast_registration_restored_total{kind="MutatingWebhookConfiguration",name="holdfast"} 1`),
		gomega.ContainSubstring(`holdfast_registration_enforced{name="guard-closed.machines.holdfast.dev"} 1`),
		gomega.ContainSubstring("holdfast_etcd_answered 0"),
		gomega.MatchRegexp(`holdfast_webhook_certificate_expiry_timestamp_seconds [1-9]`),
	))
	eventually(func() (reasons []string) {
		var list corev1.EventList
		ok(t, api.List(t.Context(), &list, client.InNamespace("default")))
		for _, e := range list.Items {
			reasons = append(reasons, e.InvolvedObject.Kind+" "+e.Reason)
		}
		return reasons
	}).Should(gomega.ContainElement("MutatingWebhookConfiguration RegistrationRestored"))
}

// get is an answer's status and text.
func get(url string) string {
	response, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", response.StatusCode, text)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
