package scenario_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestOutage: the webhooks outlive an API server and an etcd that do not answer for longer than an election
// lasts, and Holdfast starts while they do not.
func TestOutage(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 1, HoldfastArgs: []string{"--leader-elect=true"}})
	c.atRest(t)
	before, err := c.machine(t.Context(), "master-0")
	must(t, err)
	answers := c.webhook(t, before)
	must(t, answers(t.Context()))
	running := c.Holdfast.Process()

	voter := c.hostProcess(t, "master-0")
	eventually(t, quickly, "the ring to be told", func(ctx context.Context) error {
		_, err := c.ring(ctx)
		return err
	})
	for _, outage := range []struct {
		of         string
		begin, end func() error
	}{
		{"the API server", c.APIServer.Pause, c.APIServer.Resume},
		{"etcd", func() error { return voter.Signal(syscall.SIGSTOP) }, func() error { return voter.Signal(syscall.SIGCONT) }},
	} {
		t.Run(outage.of+" does not answer", func(t *testing.T) {
			t.Cleanup(func() { _ = outage.end() })
			terms := c.counts(t, "this replica is no longer elected")
			must(t, outage.begin())
			eventually(t, quickly, "the election to be lost", func(context.Context) error {
				select {
				case <-running.Done():
					return fmt.Errorf("Holdfast has ended: %w", running.Err())
				default:
				}
				if c.counts(t, "this replica is no longer elected") == terms {
					return errors.New("it is not")
				}
				return nil
			})
			must(t, answers(t.Context()))
			elected := c.counts(t, "this replica is elected")
			must(t, outage.end())
			eventually(t, quickly, "the election to be won again", func(context.Context) error {
				if c.counts(t, "this replica is elected") == elected {
					return errors.New("it is not")
				}
				return nil
			})
			// The elected part works again.
			view, err := c.ring(t.Context())
			must(t, err)
			must(t, c.as(sandbox.Admin).Delete(t.Context(), view))
			eventually(t, quickly, "the ring to be told again", func(ctx context.Context) error {
				_, err := c.ring(ctx)
				return err
			})
			must(t, answers(t.Context()))
			if c.Holdfast.Process() != running || running.Err() != nil {
				t.Errorf("Holdfast was started again, or ended: %v", running.Err())
			}
		})
	}

	t.Run("Holdfast starts while the API server does not answer", func(t *testing.T) {
		must(t, c.Holdfast.Stop())
		must(t, c.APIServer.Stop())
		must(t, c.Holdfast.Start())
		running := c.Holdfast.Process()
		eventually(t, quickly, "Holdfast to say what it waits for", func(ctx context.Context) error {
			status, body, err := get(ctx, c.ReadyURL())
			if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(body, "the API server")) {
				err = fmt.Errorf("%d %s", status, body)
			}
			return err
		})
		if status, body, err := get(t.Context(), strings.Replace(c.ReadyURL(), "/readyz", "/healthz", 1)); status != http.StatusOK {
			t.Errorf("alive: %d %s %v", status, body, err)
		}
		c.logs(t, "waiting")
		must(t, c.APIServer.Start())
		must(t, c.WaitHoldfast(t.Context()))
		must(t, answers(t.Context()))
		if c.Holdfast.Process() != running || running.Err() != nil {
			t.Errorf("Holdfast was started again, or ended: %v", running.Err())
		}
		c.atRest(t)
	})
}

// counts is how often Holdfast's log has a text.
func (c *cluster) counts(t *testing.T, text string) int {
	t.Helper()
	log, err := os.ReadFile(c.Holdfast.Process().Log())
	must(t, err)
	return bytes.Count(log, []byte(text))
}

// webhook asks the webhooks as the API server would, whether automation may take the hook off a Machine.
func (c *cluster) webhook(t *testing.T, m *machinev1beta1.Machine) func(context.Context) error {
	t.Helper()
	var registered admissionregistrationv1.MutatingWebhookConfiguration
	must(t, c.as(sandbox.Admin).Get(t.Context(), client.ObjectKey{Name: "holdfast"}, &registered))
	where := registered.Webhooks[0].ClientConfig
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(where.CABundle) {
		t.Fatal("the registration has no CA")
	}
	stripped := m.DeepCopy()
	stripped.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
	raw := func(m *machinev1beta1.Machine) runtime.RawExtension {
		m.TypeMeta = metav1.TypeMeta{APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine"}
		text, err := json.Marshal(m)
		must(t, err)
		return runtime.RawExtension{Raw: text}
	}
	machines := metav1.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "1", Operation: admissionv1.Update, Resource: machines, RequestResource: &machines,
			Kind:      metav1.GroupVersionKind{Group: "machine.openshift.io", Version: "v1beta1", Kind: "Machine"},
			Namespace: m.Namespace, Name: m.Name, UserInfo: authenticationv1.UserInfo{Username: "system:serviceaccount:gitops:robot"},
			Object: raw(stripped), OldObject: raw(m.DeepCopy()),
		},
	})
	must(t, err)
	asks := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}, Timeout: attempt}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, *where.URL, bytes.NewReader(review))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		began := time.Now()
		response, err := asks.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var answer admissionv1.AdmissionReview
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			return err
		}
		if answer.Response == nil || !strings.Contains(string(answer.Response.Patch), "EtcdQuorumOperator") {
			return fmt.Errorf("after %s: a hook that a tool takes off is not put back: %+v", time.Since(began), answer.Response)
		}
		return nil
	}
}

func get(ctx context.Context, url string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}
