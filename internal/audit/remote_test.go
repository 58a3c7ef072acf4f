package audit

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/holdfast-dev/holdfast/test/pki"
)

// collector is a remote sink: a server with a certificate that takes records from who has its token.
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

func remoteOptions(t *testing.T, c *collector) Options {
	o := options(filepath.Join(t.TempDir(), "audit.log"))
	o.WebhookConfigFile, o.WebhookBatchMaxWait, o.WebhookInitialBackoff = c.config, time.Millisecond, 5*time.Millisecond
	return o
}

func TestRemote(t *testing.T) {
	c := collect(t, always(http.StatusOK))
	o := remoteOptions(t, c)
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	o.WebhookBatchMaxSize, o.WebhookBatchMaxWait = 4, time.Hour
	s := sink(t, o)
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint(i))
		s.Write(record(want[i]))
	}
	gomega.NewWithT(t).Eventually(c.received).WithTimeout(2 * time.Minute).Should(gomega.HaveLen(8))
	if err := s.Close(t.Context()); err != nil { // sends the rest
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, c.received()); diff != "" || c.batch != 4 {
		t.Errorf("batches of %d: %s", c.batch, diff)
	}
	counts(t, s, "written 10 errors 0 repeated 0; sent 10 dropped 0")

	s.Write(record("late"))
	if diff := cmp.Diff(append(want, "late"), uids(entries(t, 0, o.LogPath))); diff != "" {
		t.Error(diff)
	}
	counts(t, s, "written 11 errors 0 repeated 0; sent 10 dropped 1")
}

func TestRemoteIsTriedAgain(t *testing.T) {
	answers := []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests}
	c := collect(t, func(call int) int {
		if call <= len(answers) {
			return answers[call-1]
		}
		return http.StatusOK
	})
	s := sink(t, remoteOptions(t, c))
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
	defer close(letGo)
	o := remoteOptions(t, c)
	o.WebhookBatchBufferSize, o.WebhookBatchMaxSize = 3, 1
	s := sink(t, o)
	g := gomega.NewWithT(t)
	s.Write(record("0"))
	g.Eventually(c.called).WithTimeout(2 * time.Minute).Should(gomega.Equal(1)) // it is under way, and counts
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint(i))
		if i > 0 {
			s.Write(record(want[i]))
		}
	}
	counts(t, s, "written 10 errors 0 repeated 0; sent 0 dropped 7")
	letGo <- struct{}{}
	letGo <- struct{}{}
	letGo <- struct{}{}
	g.Eventually(c.received).WithTimeout(2 * time.Minute).Should(gomega.Equal(want[:3]))
	g.Eventually(s.remote.waiting.Load).WithTimeout(2 * time.Minute).Should(gomega.BeZero()) // and there is room again
	counts(t, s, "written 10 errors 0 repeated 0; sent 3 dropped 7")
	if diff := cmp.Diff(want, uids(entries(t, 0, o.LogPath))); diff != "" {
		t.Errorf("the local log has them all: %s", diff)
	}
}

func TestRemoteRefusesForGood(t *testing.T) {
	c := collect(t, func(call int) int {
		return []int{http.StatusRequestEntityTooLarge, http.StatusBadRequest, http.StatusOK}[call-1]
	})
	o := remoteOptions(t, c)
	o.WebhookBatchMaxSize = 1
	s := sink(t, o)
	for i := range 3 {
		s.Write(record(fmt.Sprint(i)))
	}
	gomega.NewWithT(t).Eventually(c.received).WithTimeout(2 * time.Minute).Should(gomega.Equal([]string{"2"}))
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts(t, s, "written 3 errors 0 repeated 0; sent 1 dropped 2")
}

// TestRemoteIsDown: shutting down does not wait for it longer than it is given.
func TestRemoteIsDown(t *testing.T) {
	c := collect(t, always(http.StatusServiceUnavailable))
	o := remoteOptions(t, c)
	o.WebhookInitialBackoff = time.Hour
	s := sink(t, o)
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
	o := options("-")
	o.WebhookConfigFile = "/nowhere/config"
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "/nowhere/config") {
		t.Error(err)
	}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "register metrics") { // twice in one registry
		t.Error(err)
	}
}
