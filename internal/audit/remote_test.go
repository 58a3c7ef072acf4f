package audit

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/holdfast-dev/holdfast/test/pki"
)

// collector is a remote sink: a server with a certificate that takes records from clients with its token.
type collector struct {
	config string // kubeconfig

	mu     sync.Mutex
	answer func(call int) int // status
	calls  int
	batch  int // the largest
	got    []string
}

func collect(t *testing.T, answer func(call int) int) *collector {
	t.Helper()
	c := &collector{answer: answer, config: filepath.Join(t.TempDir(), "kubeconfig")}
	ca, err := pki.NewAuthority("collector")
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "collector", Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(c)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	config := clientcmdapi.Config{
		CurrentContext: "c", Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: server.URL + "/in/here", CertificateAuthorityData: ca.CertPEM()}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: "sesame"}},
	}
	if err := clientcmd.WriteToFile(config, c.config); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var list auditv1.EventList
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil || list.Kind != "EventList" || list.APIVersion != "audit.k8s.io/v1" ||
		r.Method != http.MethodPost || r.URL.Path != "/in/here" || r.Header.Get("Authorization") != "Bearer sesame" {
		http.Error(w, fmt.Sprintf("%s %s %s %v", r.Method, r.URL, list.Kind, err), http.StatusTeapot)
		return
	}
	c.mu.Lock()
	c.calls++
	call := c.calls
	c.mu.Unlock()
	status := c.answer(call)
	if status == http.StatusOK {
		c.mu.Lock()
		for i := range list.Items {
			c.got = append(c.got, string(list.Items[i].AuditID))
		}
		c.batch = max(c.batch, len(list.Items))
		c.mu.Unlock()
	}
	w.WriteHeader(status)
}

func (c *collector) received() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.got...)
}

func (c *collector) called() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

func always(status int) func(int) int { return func(int) int { return status } }

// sending is a sink whose remote one is tried again soon, and changed before it begins.
func sending(t *testing.T, c *collector, path string, change func(*remote)) *Sink {
	t.Helper()
	o := options(path)
	s := sink(t, o)
	r, err := newRemote(c.config, o.Log, newCounters(o.Registerer, "webhook"))
	if err != nil {
		t.Fatal(err)
	}
	r.backoff.Duration = 5 * time.Millisecond
	change(r)
	s.remote = r
	go r.run()
	return s
}

func asItIs(*remote) {}

func TestRemote(t *testing.T) {
	letGo := make(chan struct{})
	c := collect(t, func(int) int { <-letGo; return http.StatusOK })
	path := filepath.Join(t.TempDir(), "audit.log")
	s := sending(t, c, path, asItIs)
	var want []string
	for i := range batchLimit + 10 {
		want = append(want, fmt.Sprint(i))
		s.Write(record(want[i]))
		if i == 0 {
			gomega.NewWithT(t).Eventually(c.called).WithTimeout(2 * time.Minute).Should(gomega.Equal(1))
		}
	}
	close(letGo)
	if err := s.Close(t.Context()); err != nil { // sends the rest
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, c.received()); diff != "" || c.batch != batchLimit || c.called() != 3 {
		t.Errorf("%d calls, batches of %d: %s", c.called(), c.batch, diff)
	}
	counts(t, s, "written 110 errors 0 repeated 0; sent 110 dropped 0")

	s.Write(record("late"))
	if diff := cmp.Diff(append(want, "late"), uids(entries(t, 0, path))); diff != "" {
		t.Error(diff)
	}
	counts(t, s, "written 111 errors 0 repeated 0; sent 110 dropped 1")
}

func TestRemoteIsTriedAgain(t *testing.T) {
	answers := []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests}
	c := collect(t, func(call int) int {
		if call <= len(answers) {
			return answers[call-1]
		}
		return http.StatusOK
	})
	s := sending(t, c, "/dev/null", asItIs)
	s.Write(record("a"))
	gomega.NewWithT(t).Eventually(c.received).WithTimeout(2 * time.Minute).Should(gomega.Equal([]string{"a"}))
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(s.remote.counters.errors); got != 5 {
		t.Errorf("%v failed calls counted", got)
	}
	counts(t, s, "written 1 errors 0 repeated 0; sent 1 dropped 0")
}

func TestRemoteOverflow(t *testing.T) {
	letGo := make(chan struct{})
	c := collect(t, func(int) int { <-letGo; return http.StatusOK })
	path := filepath.Join(t.TempDir(), "audit.log")
	s := sending(t, c, path, func(r *remote) { r.queue = make(chan *auditapi.Event, 3) })
	s.Write(record("0"))
	gomega.NewWithT(t).Eventually(c.called).WithTimeout(2 * time.Minute).Should(gomega.Equal(1)) // it is under way
	want := []string{"0"}
	for i := range 9 {
		want = append(want, fmt.Sprint(i+1))
		s.Write(record(want[i+1]))
	}
	counts(t, s, "written 10 errors 0 repeated 0; sent 0 dropped 6")
	close(letGo)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[:4], c.received()); diff != "" {
		t.Error(diff)
	}
	counts(t, s, "written 10 errors 0 repeated 0; sent 4 dropped 6")
	if diff := cmp.Diff(want, uids(entries(t, 0, path))); diff != "" {
		t.Errorf("the local log has them all: %s", diff)
	}
}

func TestRemoteRefusesForGood(t *testing.T) {
	c := collect(t, func(call int) int {
		return []int{http.StatusRequestEntityTooLarge, http.StatusBadRequest, http.StatusOK}[call-1]
	})
	s := sending(t, c, "/dev/null", asItIs)
	for i := range 3 {
		s.Write(record(fmt.Sprint(i)))
		gomega.NewWithT(t).Eventually(c.called).WithTimeout(2 * time.Minute).Should(gomega.Equal(i + 1))
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"2"}, c.received()); diff != "" {
		t.Error(diff)
	}
	counts(t, s, "written 3 errors 0 repeated 0; sent 1 dropped 2")
}

// TestRemoteIsDown: shutting down does not wait for it longer than it is given.
func TestRemoteIsDown(t *testing.T) {
	c := collect(t, always(http.StatusServiceUnavailable))
	s := sending(t, c, "/dev/null", func(r *remote) { r.backoff.Duration = time.Hour })
	s.Write(record("a"))
	gomega.NewWithT(t).Eventually(c.called).WithTimeout(2 * time.Minute).Should(gomega.BeNumerically(">", 0))
	s.Write(record("b"))
	if err := s.Ready(); err != nil {
		t.Errorf("the local log is written: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("closed with %v", err)
	}
	counts(t, s, "written 2 errors 0 repeated 0; sent 0 dropped 2")
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(empty, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, config := range []string{"/nowhere/config", empty} {
		o := options("-")
		o.WebhookConfigFile = config
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), "--audit-webhook-config-file "+config) {
			t.Error(err)
		}
	}
}
