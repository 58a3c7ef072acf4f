package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/holdfast-dev/holdfast/internal/cli"
)

// startRetry is how soon the API server is asked again at the start.
const startRetry = 2 * time.Second

// startup asks for what Holdfast needs before it can start, again and again where the API server does not say: it may
// be down because etcd is, and a process that ends would be started later and later. Meanwhile the probes are answered:
// it is alive, and not ready for the reason that it waits.
type startup struct {
	probeAddr string
	log       logr.Logger

	mu     sync.Mutex
	reason string
}

// await returns when prepare has succeeded or found that this cluster or these flags will not do, or with ctx.
func (s *startup) await(ctx context.Context, prepare func(context.Context) error) error {
	var probes *http.Server
	defer func() {
		if probes != nil {
			_ = probes.Close() // the manager listens there next
		}
	}()
	return wait.PollUntilContextCancel(ctx, startRetry, true, func(ctx context.Context) (done bool, err error) {
		err = prepare(ctx)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err == nil, errors.As(err, new(cli.UsageError)), meta.IsNoMatchError(err):
			return true, err
		}
		s.waitsFor(err)
		if probes == nil {
			if probes, err = s.serve(ctx); err != nil {
				return false, err
			}
		}
		return false, nil
	})
}

func (s *startup) waitsFor(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text := err.Error(); text != s.reason {
		s.reason = text
		s.log.Error(err, "waiting for the API server; trying again")
	}
}

// serve answers probes.
func (s *startup) serve(ctx context.Context) (*http.Server, error) {
	if s.probeAddr == "" || s.probeAddr == "0" {
		return nil, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.probeAddr)
	if err != nil {
		return nil, fmt.Errorf("answer probes: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "ok") })
	unready := func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		http.Error(w, "waiting for the API server: "+s.reason, http.StatusServiceUnavailable)
	}
	mux.HandleFunc("/readyz", unready)
	mux.HandleFunc("/readyz/", unready) // of one check
	server := &http.Server{Handler: mux, ReadHeaderTimeout: startRetry}
	go func() { _ = server.Serve(listener) }()
	return server, nil
}
