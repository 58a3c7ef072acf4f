package sandbox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/test/process"
)

// hostAPIServerSpec runs an API server on a host, which knows that host's member of etcd alone.
func (s *Sandbox) hostAPIServerSpec(h *host) (process.Spec, error) {
	return s.apiserverSpecOf("kube-apiserver-"+h.name, h.api(), "https://"+h.etcdHost().Clients)
}

// api is where the API server of a host serves.
func (h *host) api() string { return joinPort(h.at(), h.cloud.apiPort) }

// openAPI plays the load balancer before the API servers, where each host has one: a new connection leads to one of those that are ready,
// chosen at random, and ends when that one is no longer ready, or goes.
func (s *Sandbox) openAPI() error {
	if !s.options.APIServers {
		return nil
	}
	s.cloud.apiPort = int(netip.MustParseAddrPort(s.apiserverAddress).Port())
	s.cloud.apiClient = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.ca.Pool(), ServerName: "localhost"}, DisableKeepAlives: true,
	}}
	listener, err := (&net.ListenConfig{}).Listen(s.background, "tcp", s.apiserverAddress)
	if err != nil {
		return fmt.Errorf("the API servers' address: %w", err)
	}
	s.closers = append(s.closers, listener.Close)
	log := s.cloud.log.With("part", "api")
	go accept(listener, log, func(from net.Conn) {
		var ready []*host
		serves := map[*host]context.Context{}
		for _, h := range s.cloud.all() {
			if until := h.serving(); until != nil {
				ready, serves[h] = append(ready, h), until
			}
		}
		if len(ready) == 0 {
			_ = from.Close()
			return
		}
		h := ready[rand.IntN(len(ready))]
		join(serves[h], from, log, func() (string, bool) { return h.api(), true })
	})
	return nil
}

// waitAPIServers waits until each host's API server is ready.
func (s *Sandbox) waitAPIServers(ctx context.Context) error {
	return s.poll(ctx, func(context.Context) error {
		for _, h := range s.cloud.all() {
			if h.serving() == nil {
				return fmt.Errorf("the API server of %s is not ready (log: %s)", h.name, s.logFile("kube-apiserver-"+h.name))
			}
		}
		return nil
	})
}

// serving is a context that ends when the host's API server is no longer ready; nil while it is not.
func (h *host) serving() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.serves
}

// runAPIServer plays the kubelet and an API server's static pod. The API server is started once etcd runs on the host, learner or voter,
// and then stays, whatever becomes of etcd, while the host has power. One that ends is started again.
func (h *host) runAPIServer(ctx context.Context) {
	if h.cloud.apiServer == nil {
		return
	}
	again := time.NewTicker(restartDelay)
	defer again.Stop()
	for h.waitForPower(ctx) {
		if h.public().Etcd != nil {
			if err := h.serveAPI(ctx); err != nil && ctx.Err() == nil {
				h.log.Warn("kube-apiserver", "error", err, "again in", restartDelay)
			}
		}
		select {
		case <-ctx.Done():
		case <-again.C:
		}
	}
}

// serveAPI runs the API server until it ends by itself (an error), the power goes (none) or the host ends.
func (h *host) serveAPI(ctx context.Context) error {
	pod := h.podNow()
	spec, err := h.cloud.apiServer(h)
	if err != nil {
		return err
	}
	server, err := process.Start(spec)
	if err != nil {
		return err
	}
	h.change(func() { h.apiServer = server })
	h.log.Info("the API server runs", "pid", server.PID())
	probing, stop := context.WithCancel(ctx)
	var probes sync.WaitGroup
	probes.Go(func() { h.probeAPIServer(probing, "https://"+h.api()+"/readyz") })
	defer h.change(func() { h.apiServer = nil })
	defer probes.Wait()
	defer stop()
	return h.attend(ctx, pod, server, 0, nil)
}

// probeAPIServer is the load balancer's health check of one API server.
func (h *host) probeAPIServer(ctx context.Context, url string) {
	check := &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 2}
	cut := func() {}
	tell := func(wrong error) (enough bool) {
		ok := wrong == nil
		if ok == (h.serving() != nil) {
			return false
		}
		h.log.Info("the API server", "ready", ok, "why", wrong)
		cut()
		cut = func() {}
		h.change(func() {
			if h.serves = nil; ok {
				h.serves, cut = context.WithCancel(ctx)
			}
		})
		return false
	}
	_ = runProbe(ctx, readiness, check, func(ctx context.Context, p *corev1.Probe) error {
		return probeHTTP(ctx, h.cloud.apiClient, limitOf(p), url)
	}, tell)
	tell(errors.New("it ends"))
}
