package webhookserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/holdfast-dev/holdfast/test/pki"
)

const token, hook = "/TOKEN", "/a-webhook"

// fixture is a server, whose webhook says how long the body was that it read.
type fixture struct {
	*Server
	at     string
	ca     *pki.Authority
	client *http.Client
}

func start(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	ca, err := pki.NewAuthority("webhooks")
	must(t, err)
	dir := t.TempDir()
	_, _, err = ca.IssueFiles(dir, "tls", pki.Leaf{CommonName: "webhooks", Hosts: []string{"127.0.0.1"}})
	must(t, err)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	must(t, err)
	options := Options{
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil },
		Known:       func(path string) (string, bool) { return strings.CutPrefix(path, token) },
		Registry:    prometheus.NewRegistry(), Log: logr.Discard(),
	}
	if change != nil {
		change(&options)
	}
	f := &fixture{Server: New(options), ca: ca}
	f.Register(hook, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, err)
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.at = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.serve(ctx, l) }()
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	f.client = &http.Client{Transport: &http.Transport{TLSClientConfig: f.trust(), ForceAttemptHTTP2: true}, Timeout: time.Minute}
	return f
}

func (f *fixture) trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.ca.CertPEM())
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// call posts a body, and returns status and text.
func (f *fixture) call(path string, body io.Reader) (int, string, error) {
	answer, err := f.client.Post("https://"+f.at+path, "application/json", body)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// dial is a stranger's connection, over TLS.
func (f *fixture) dial(t *testing.T, protocols ...string) *tls.Conn {
	t.Helper()
	config := f.trust()
	config.NextProtos, config.ServerName = protocols, "127.0.0.1"
	c := tls.Client(f.knock(t), config)
	_ = c.Handshake() // it may have been closed by now
	return c
}

// knock is a stranger's connection without TLS, from an address of its own.
func (f *fixture) knock(t *testing.T) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := dialer.Dial("tcp", f.at)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (f *fixture) count(what string) float64 {
	return testutil.ToFloat64(f.Server.count.WithLabelValues(what))
}

// TestTimeout: the API server says in the URL how long it waits, and a webhook's context ends with that: no record says that an answer
// took effect that nobody waited for.
func TestTimeout(t *testing.T) {
	f := start(t, nil)
	f.Register("/slow", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, bounded := r.Context().Deadline(); bounded {
			<-r.Context().Done()
		}
		_, _ = fmt.Fprint(w, r.Context().Err())
	}))
	for query, want := range map[string]string{"?timeout=1ms": "context deadline exceeded", "": "<nil>", "?timeout=soon": "<nil>"} {
		if _, got, err := f.call(token+"/slow"+query, nil); err != nil || got != want {
			t.Errorf("%q: %s, %v", query, got, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// answers checks that the API server is answered, over its connection and over a new one.
func (f *fixture) answers(t *testing.T, when string) {
	t.Helper()
	for range 2 {
		if code, text, err := f.call(token+hook, strings.NewReader("four")); err != nil || code != http.StatusOK || text != "4 <nil>" {
			t.Errorf("%s: %d %q %v", when, code, text, err)
		}
		f.client.CloseIdleConnections()
	}
}

// TestKnown: who knows the path is answered; anybody else gets a 404, and his body is not read.
func TestKnown(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.answers(t, "at first")
	for i, path := range []string{"/", hook, "/OTHER" + hook, "/healthz", token + hook + "/../../x"} {
		if code, text, err := f.call(path, strings.NewReader("x")); err != nil || code != http.StatusNotFound {
			t.Errorf("%s: %d %q %v", path, code, text, err)
		}
		if n := int(f.count(unknownPath)); n > i+1 {
			t.Errorf("%s: counted %d", path, n)
		}
	}
	// Over HTTP/1.1, to have a body that never comes.
	c := f.dial(t)
	_, err := fmt.Fprintf(c, "POST /OTHER HTTP/1.1\r\nHost: x\r\nContent-Length: 7000000\r\n\r\n")
	must(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	if answer.StatusCode != http.StatusNotFound || !answer.Close {
		t.Errorf("%s, to be closed: %t", answer.Status, answer.Close)
	}
	must(t, answer.Body.Close())
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("the connection is not closed in order: %v", err)
	}
}

// TestEachPath: where nobody keeps the registrations, each webhook has its own path.
func TestEachPath(t *testing.T) {
	t.Parallel()
	f := start(t, func(o *Options) { o.Known = nil })
	if code, text, err := f.call(hook, strings.NewReader("four")); err != nil || code != http.StatusOK || text != "4 <nil>" {
		t.Errorf("%d %q %v", code, text, err)
	}
	// Who asks for none of them is a stranger all the same.
	if code, text, err := f.call("/OTHER", strings.NewReader("four")); err != nil || code != http.StatusNotFound || f.count(unknownPath) != 1 {
		t.Errorf("%d %q %v, %v counted", code, text, err, f.count(unknownPath))
	}
}

// TestStrangers: more connections than places, with nothing sent, with half a handshake, with a header that does not end, and
// with bodies that stall. The API server is answered all the while, and memory stays. It runs alone, for the memory's sake.
func TestStrangers(t *testing.T) {
	f := start(t, nil)
	f.answers(t, "at first")
	before := heap()
	megabytes := bytes.Repeat([]byte("x"), 7<<20)
	stalled := func(path string) func(*tls.Conn) {
		return func(c *tls.Conn) {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", path, len(megabytes)+1)
			_, _ = c.Write(megabytes)
		}
	}
	for name, act := range map[string]func(*tls.Conn){
		"nothing sent": func(*tls.Conn) {}, "a header without end": func(c *tls.Conn) { _, _ = io.WriteString(c, "POST / HTTP/1.1\r\nX: ") },
		"a header of a megabyte": func(c *tls.Conn) { _, _ = c.Write(megabytes[:1<<20]) }, "a stalled body": stalled("/OTHER"),
	} {
		var all sync.WaitGroup
		for range 2 * strangers {
			all.Go(func() { act(f.dial(t)) })
			all.Go(func() { f.knock(t) })
		}
		f.answers(t, name)
		all.Wait()
		f.answers(t, name+", all of them")
	}
	if f.count(evicted) < strangers {
		t.Errorf("%v connections were closed because no place was free", f.count(evicted))
	}
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestStreams: a stranger opens streams over HTTP/2 and resets them at once, as many as it can.
func TestStreams(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			c := f.dial(t, "h2")
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.WriteString(c, http2.ClientPreface)
			framer := http2.NewFramer(c, c)
			_ = framer.WriteSettings()
			go func() { _, _ = io.Copy(io.Discard, c) }()
			var header bytes.Buffer
			encoder := hpack.NewEncoder(&header)
			for _, field := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "x"}, {":path", "/OTHER"}} {
				_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
			}
			for stream := uint32(1); stream < 40000; stream += 2 {
				if framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header.Bytes(), EndHeaders: true}) != nil ||
					framer.WriteRSTStream(stream, http2.ErrCodeCancel) != nil {
					return // closed
				}
			}
		})
	}
	f.answers(t, "meanwhile")
	all.Wait()
	f.answers(t, "after it")
	if n := f.count(unknownPath); n > 4*2*streamsBound { // of 80,000
		t.Errorf("%v of the streams were looked at", n)
	}
}

// TestBodies: more large bodies than there is room for wait for each other, and one that stalls is given up.
func TestBodies(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			code, text, err := f.call(token+hook, bytes.NewReader(make([]byte, 6<<20)))
			for deadline := time.Now().Add(time.Minute); code == http.StatusServiceUnavailable && time.Now().Before(deadline); { // a slow computer
				code, text, err = f.call(token+hook, bytes.NewReader(make([]byte, 6<<20)))
			}
			if err != nil || code != http.StatusOK || text != fmt.Sprint(6<<20, " <nil>") {
				t.Errorf("%d %q %v", code, text, err)
			}
		})
	}
	all.Wait()
	c := f.dial(t)
	_, err := fmt.Fprintf(c, "POST %s%s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", token, hook)
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(2*requestBound)))
	answer, err := io.ReadAll(c)
	if err != nil || !strings.Contains(string(answer), "timeout") {
		t.Errorf("%q, %v", answer, err)
	}
	// Each that does not say how long it is takes the room of the largest.
	var done []func()
	for range bodies / bodyBound {
		read, write := io.Pipe()
		sent := make(chan struct{})
		go func() { defer close(sent); _, _, _ = f.call(token+hook, read) }()
		done = append(done, func() { _ = write.Close(); <-sent })
	}
	NewWithT(t).Eventually(func() int {
		code, _, _ := f.call(token+hook, strings.NewReader("four"))
		return code
	}).WithTimeout(2 * time.Minute).Should(Equal(http.StatusServiceUnavailable))
	for _, end := range done {
		end()
	}
	f.answers(t, "after them")
}

// TestClientCertificate: where API servers have one, a client without is not answered.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	clients, err := pki.NewAuthority("clients")
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(clients.CertPEM())
	f := start(t, func(o *Options) { o.ClientCAs = func() (*x509.CertPool, error) { return roots, nil } })
	with := func(ca *pki.Authority) {
		transport := f.client.Transport.(*http.Transport).Clone()
		transport.TLSClientConfig = f.trust()
		if ca != nil {
			dir := t.TempDir()
			_, _, err := ca.IssueFiles(dir, "tls", pki.Leaf{CommonName: "kube-apiserver", Hosts: []string{"127.0.0.1"}})
			must(t, err)
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
			must(t, err)
			transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
		}
		f.client.Transport = transport
	}
	other, err := pki.NewAuthority("clients")
	must(t, err)
	for name, ca := range map[string]*pki.Authority{"none": nil, "another CA's": other} {
		with(ca)
		if code, text, err := f.call(token+hook, strings.NewReader("x")); err == nil {
			t.Errorf("%s: %d %q", name, code, text)
		}
	}
	with(clients)
	f.answers(t, "with its certificate")
	NewWithT(t).Eventually(func() float64 { return f.count(noHandshake) }).Should(BeNumerically(">=", 2))
}
