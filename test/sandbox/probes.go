package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ProbeURL is where a probe of etcd's static pod asks on this host.
func (h EtcdHost) ProbeURL(p *corev1.Probe) (string, error) {
	if p.HTTPGet == nil {
		return "", fmt.Errorf("a probe that is no httpGet is not run here: %+v", p)
	}
	if at := net.JoinHostPort(p.HTTPGet.Host, p.HTTPGet.Port.String()); at != ownHost {
		return "", fmt.Errorf("a probe asks %s, and etcd answers probes at %s", at, ownHost)
	}
	return "http://" + h.Loopback + p.HTTPGet.Path, nil
}

// runProbes plays the kubelet's part for one run of etcd's container, with the probes of the static pod and their numbers: until the
// startup probe has succeeded no other is run; the readiness probe says whether the container is ready. It returns an error once the
// kubelet would restart the container, because it did not start or is not alive; nil if the context ends first.
func (h *host) runProbes(ctx context.Context, c *corev1.Container) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	if c.StartupProbe != nil {
		if err := h.runProbe(ctx, "startup", c.StartupProbe, func(bool) (enough bool) { return true }); err != nil {
			return err
		}
	}
	ready := func(ok bool) (enough bool) {
		if h.public().Ready != ok && ctx.Err() == nil {
			h.change(func() { h.ready = ok })
			h.log.Info("etcd", "ready", ok)
		}
		return false
	}
	if c.ReadinessProbe == nil {
		ready(true)
	}
	unread := make(chan error, 1)
	work.Go(func() { unread <- h.runProbe(ctx, "readiness", c.ReadinessProbe, ready) })
	if err := h.runProbe(ctx, "liveness", c.LivenessProbe, func(ok bool) (enough bool) { return !ok }); err != nil {
		return err
	}
	return <-unread
}

// runProbe asks again and again, and tells each success, and each failure that is one too many in a row, until that is enough. It returns
// an error if that was a failure; nil if it was a success, and when the context ends. Without a probe it waits for that.
func (h *host) runProbe(ctx context.Context, kind string, p *corev1.Probe, tell func(ok bool) (enough bool)) error {
	if p == nil {
		<-ctx.Done()
		return nil
	}
	url, err := h.etcdHost().ProbeURL(p)
	if err != nil {
		return err
	}
	if !pauseFor(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) {
		return nil
	}
	// A probe that takes longer than the period is followed by the next at once, as by a kubelet's.
	tick := time.NewTicker(time.Duration(max(p.PeriodSeconds, 1)) * time.Second)
	defer tick.Stop()
	for failed := int32(0); ; {
		err := probeHTTP(ctx, http.DefaultClient, time.Duration(max(p.TimeoutSeconds, 1))*time.Second, url)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failed = 0
			if tell(true) {
				return nil
			}
		default:
			if failed++; failed >= max(p.FailureThreshold, 1) && tell(false) {
				return fmt.Errorf("the %s probe failed %d times in a row: %w", kind, failed, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// pauseFor says whether the time has passed, and not the context ended.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// probeHTTP asks as a kubelet does.
func probeHTTP(ctx context.Context, client *http.Client, limit time.Duration, url string) error {
	_, err := get(ctx, client, limit, url)
	return err
}

// get reads what is served at a URL. Its error says why it is not served.
func get(ctx context.Context, client *http.Client, limit time.Duration, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode >= http.StatusBadRequest {
		return "", fmt.Errorf("%s answers %s: %.200s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}
