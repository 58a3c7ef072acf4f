package registrations

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestFiles: a pair that is gone or broken is said once, while the one before is served; the next whole
// one is taken, however it came.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	authorityFiles(t, dir)
	metrics := NewMetrics(prometheus.NewRegistry())
	lines := 0
	source := NewSource(nil, "", clock.RealClock{}, metrics, funcr.New(func(string, string) {}, funcr.Options{}))
	if _, err := NewFiles(t.TempDir(), "", source, nil, funcr.New(func(string, string) {}, funcr.Options{})); err == nil {
		t.Error("an empty folder is taken")
	}
	files, err := NewFiles(dir, "", source, nil, funcr.New(func(string, string) { lines++ }, funcr.Options{}))
	must(t, err)
	serial := func() string {
		c, err := source.GetCertificate(nil)
		must(t, err)
		return c.Leaf.SerialNumber.String()
	}
	was := serial()
	for _, broken := range []func(path string) error{
		os.Remove,
		func(path string) error { return os.WriteFile(path, []byte("not PEM"), 0o600) },
	} {
		must(t, broken(filepath.Join(dir, "tls.key")))
		lines = 0
		for range 3 {
			files.look(t.Context())
		}
		if serial() != was || lines != 1 {
			t.Errorf("a broken pair: %d lines, want one; another certificate is served: %t", lines, serial() != was)
		}
		authorityFiles(t, dir)
		files.look(t.Context())
		if serial() == was {
			t.Error("the next whole pair is not served")
		}
		was = serial()
		files.look(t.Context())
		if lines != 1 || serial() != was {
			t.Errorf("%d lines, want one", lines)
		}
	}
}

// TestSelfSignedAway: while the API server does not answer, it is asked less and less often, and that is
// said once.
func TestSelfSignedAway(t *testing.T) {
	var asked, lines atomic.Int32
	secrets := meta.NewDefaultRESTMapper(nil)
	secrets.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	away, err := client.NewWithWatch(&rest.Config{Host: nobodyURL}, client.Options{HTTPClient: http.DefaultClient, Mapper: secrets})
	must(t, err)
	at := &testClock{}
	at.set(time.Now())
	s := &SelfSigned{
		Secret: client.ObjectKey{Namespace: ourPlace, Name: "ca"}, Config: &rest.Config{Host: nobodyURL}, Hosts: []string{"127.0.0.1"}, Clock: at,
		API: interceptor.NewClient(away, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				asked.Add(1)
				return c.Get(ctx, key, o, opts...)
			},
		}),
		Log: funcr.New(func(prefix, _ string) {
			if prefix == "" { // the authority has its own
				lines.Add(1)
			}
		}, funcr.Options{}),
	}
	run(t, s.Start)
	for i, step := range []struct {
		later time.Duration
		asked int32
	}{{0, 1}, {issueRetry, 2}, {issueRetry, 2}, {issueRetry, 3}} { // the second pause is longer
		at.set(at.Now().Add(step.later))
		eventually(t, asked.Load).Should(gomega.BeNumerically(">=", step.asked))
		// The clock is read for the pause that begins, and at each tick: what is seen after that many is what stays.
		read := at.reads.Load()
		eventually(t, at.reads.Load).Should(gomega.BeNumerically(">=", read+3))
		if n := asked.Load(); n != step.asked {
			t.Errorf("step %d: asked %d times, want %d", i, n, step.asked)
		}
	}
	if n := lines.Load(); n != 1 {
		t.Errorf("it was said %d times, want once", n)
	}
}
