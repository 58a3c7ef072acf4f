// Package webhookserver serves the webhooks over TLS: to whoever knows the path, and with bounds on what
// anybody else can take. Its answers have consequences (records, Events, metrics, and what they say about
// etcd), and its port is open to the whole cluster.
package webhookserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/semaphore"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

const (
	// strangers is how many connections stand that have not sent a request to a known path yet.
	strangers = 64
	// handshakeBound is how long a connection has for TLS, and for the header of a request.
	handshakeBound = 5 * time.Second
	// requestBound is how long a request has until all of it is here, and answerBound until it is answered: longer
	// than an API server waits for a webhook.
	requestBound = 10 * time.Second
	answerBound  = 15 * time.Second
	// idleBound is longer than the 90 s of client-go: closed from this end, a connection may have a request on its way.
	idleBound = 3 * time.Minute
	// headerBound is the size of a request's header, in bytes.
	headerBound = 16 << 10
	// bodies is the size of all bodies that are worked on at a time, in bytes: four of the largest. Decoded,
	// a body takes several times its size.
	bodies = 4 * bodyBound
	// bodyBound is what a body takes of it that does not say how long it is, and what the webhooks read of one at most.
	bodyBound = 7 << 20
	// turnBound is how long a request waits for room.
	turnBound = 2 * time.Second
	// streamsBound and bufferBound are for HTTP/2: requests at a time on a connection, and bytes of each that are not
	// read yet. All of them fit, or one that waits for room would keep those from being read that have it.
	streamsBound = 100
	bufferBound  = 256 << 10
)

// Options are what a server depends on.
type Options struct {
	Host string // address to listen on, all if empty
	Port int

	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCAs are who signs the certificates that clients must have; nil asks for none.
	ClientCAs func() (*x509.CertPool, error)
	// Known returns the path of a webhook for the path of a request, and false for a path that only a stranger asks for. Nil
	// knows each path.
	Known func(path string) (string, bool)

	Registry prometheus.Registerer // of its metric
	Log      logr.Logger
}

// Server is a webhook.Server for a manager. Make it with New.
type Server struct {
	webhook.Server // what is registered, with its metrics; it does not serve
	options        Options
	count          *prometheus.CounterVec // of what strangers do
	room           *semaphore.Weighted
	started        atomic.Bool
}

// What strangers do.
const (
	unknownPath = "unknown path"
	noHandshake = "no handshake"
	evicted     = "evicted"
)

// New does not listen yet.
func New(o Options) *Server {
	if o.Known == nil {
		o.Known = func(path string) (string, bool) { return path, true }
	}
	count := promauto.With(o.Registry).NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_webhook_strangers_total",
		Help: "What the webhook server refused without an answer: a request to an unknown path, a TLS handshake that failed, a connection closed because too many had sent no request to a known path (evicted).",
	}, []string{"what"})
	for _, what := range [...]string{unknownPath, noHandshake, evicted} {
		count.WithLabelValues(what)
	}
	return &Server{Server: webhook.NewServer(webhook.Options{}), options: o, count: count, room: semaphore.NewWeighted(bodies)}
}

// Start serves until the context ends, and then until the requests under way are answered.
func (s *Server) Start(ctx context.Context) error {
	at := net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
	l, err := net.Listen("tcp", at)
	if err != nil {
		return fmt.Errorf("listen for the webhooks' callers on %s: %w", at, err)
	}
	return s.serve(ctx, l)
}

func (s *Server) serve(ctx context.Context, l net.Listener) error {
	bounded := &listener{Listener: l, bound: strangers, evicted: s.count.WithLabelValues(evicted).Inc}
	server := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return logr.NewContext(context.WithoutCancel(ctx), s.options.Log) },
		ConnContext:       withConn,
		ReadHeaderTimeout: handshakeBound,
		ReadTimeout:       requestBound,
		WriteTimeout:      answerBound,
		IdleTimeout:       idleBound,
		MaxHeaderBytes:    headerBound,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: streamsBound, MaxReceiveBufferPerConnection: streamsBound * bufferBound, MaxReceiveBufferPerStream: bufferBound},
		ErrorLog:          stdlog.New(&complaints{handshake: s.count.WithLabelValues(noHandshake).Inc, log: s.options.Log}, "", 0),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		stopped <- server.Shutdown(ctx)
	})
	s.options.Log.Info("serving the webhooks", "address", l.Addr().String())
	s.started.Store(true)
	err := server.Serve(tls.NewListener(bounded, s.tls()))
	if !errors.Is(err, http.ErrServerClosed) {
		stop()
		return errors.Join(fmt.Errorf("serve the webhooks: %w", err), server.Close())
	}
	if err := <-stopped; err != nil {
		return fmt.Errorf("stop serving the webhooks: %w", err)
	}
	return nil
}

func (s *Server) tls() *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: s.options.Certificate}
	if s.options.ClientCAs == nil {
		return c
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := s.options.ClientCAs()
		if err != nil {
			return nil, err
		}
		asking := c.Clone()
		asking.GetConfigForClient, asking.ClientCAs, asking.ClientAuth = nil, pool, tls.RequireAndVerifyClientCert
		return asking, nil
	}
	return c
}

// StartedChecker reports whether it listens. It does not call itself: among many strangers its own call would be one.
func (s *Server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if !s.started.Load() {
			return errors.New("the webhook server does not listen yet")
		}
		return nil
	}
}

// ServeHTTP passes on what comes by a known path, and answers nothing else.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	inner, at := *r, *r.URL
	inner.URL = &at
	path, ok := s.options.Known(r.URL.Path)
	at.Path, at.RawPath = path, ""
	hook, pattern := s.WebhookMux().Handler(&inner)
	if !ok || pattern == "" {
		s.count.WithLabelValues(unknownPath).Inc()
		w.Header().Set("Connection", "close") // its body is not read
		http.NotFound(w, r)
		return
	}
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		c.known()
	}
	// The API server says how long it waits. What is decided later is recorded as abandoned, also where it hangs up unnoticed.
	if patience, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		inner = *inner.WithContext(ctx)
	}
	weight := min(r.ContentLength, bodyBound)
	if weight < 0 {
		weight = bodyBound
	}
	if err := s.turn(inner.Context(), weight); err != nil {
		http.Error(w, "Holdfast works on as many requests as it has memory for: try again", http.StatusServiceUnavailable)
		return
	}
	defer s.room.Release(weight)
	hook.ServeHTTP(w, &inner)
}

// turn waits until there is room for a body.
func (s *Server) turn(ctx context.Context, weight int64) error {
	if s.room.TryAcquire(weight) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, turnBound)
	defer cancel()
	return s.room.Acquire(ctx, weight)
}

// complaints are what an http.Server logs. What anybody can cause is logged only in detail.
type complaints struct {
	handshake func()
	log       logr.Logger
}

func (c *complaints) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	switch {
	case strings.Contains(text, "panic serving"):
		c.log.Error(errors.New(text), "a webhook panicked")
	case strings.Contains(text, "TLS handshake error"):
		c.handshake()
		fallthrough
	default:
		c.log.V(1).Info("a connection failed", "why", text)
	}
	return len(line), nil
}
