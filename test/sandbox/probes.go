package sandbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The kinds of probes.
const (
	startup   = "startup"
	readiness = "readiness"
	liveness  = "liveness"
)

// runProbes plays the kubelet's part for one run of a container, with its probes and their numbers: until the startup probe has
// succeeded no other is run; the readiness probe tells what is wrong, nil while the container is ready. It returns an error once the
// kubelet would restart the container, because it did not start or is not alive; nil if the context ends first.
func runProbes(ctx context.Context, c *corev1.Container, ask func(context.Context, *corev1.Probe) error, tell func(wrong error)) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	if c.StartupProbe != nil {
		if err := runProbe(ctx, startup, c.StartupProbe, ask, func(error) (enough bool) { return true }); err != nil {
			return err
		}
	}
	if c.ReadinessProbe == nil {
		tell(nil)
	}
	work.Go(func() {
		_ = runProbe(ctx, readiness, c.ReadinessProbe, ask, func(wrong error) (enough bool) {
			tell(wrong)
			return false
		})
	})
	return runProbe(ctx, liveness, c.LivenessProbe, ask, func(wrong error) (enough bool) { return wrong != nil })
}

// runProbe asks again and again, and tells each success, and what is wrong by each failure that is one too many in a row, until that is
// enough. It returns an error if that was a failure; nil if it was a success, and when the context ends. Without a probe it waits for
// that. Until a container is ready it is asked for its readiness more often than its probe says, as kubelets do.
func runProbe(ctx context.Context, kind string, p *corev1.Probe, ask func(context.Context, *corev1.Probe) error, tell func(wrong error) (enough bool)) error {
	if p == nil {
		<-ctx.Done()
		return nil
	}
	const moment = 200 * time.Millisecond // in which nothing that was just started serves
	if !pauseFor(ctx, time.Duration(p.InitialDelaySeconds)*time.Second+moment) {
		return nil
	}
	period := time.Duration(max(p.PeriodSeconds, 1)) * time.Second
	soon := period
	if kind == readiness {
		soon = min(period, 500*time.Millisecond)
	}
	// A probe that takes longer than the period is followed by the next at once, as by a kubelet's.
	tick, every := time.NewTicker(soon), soon
	defer tick.Stop()
	pace := func(d time.Duration) {
		if every != d {
			every = d
			tick.Reset(d)
		}
	}
	for failed := int32(0); ; {
		wrong := ask(ctx, p)
		switch {
		case ctx.Err() != nil:
			return nil
		case wrong == nil:
			failed = 0
			pace(period)
			if tell(nil) {
				return nil
			}
		default:
			if failed++; failed < max(p.FailureThreshold, 1) {
				break
			}
			pace(soon)
			if tell(wrong) {
				return fmt.Errorf("the %s probe failed %d times in a row: %w", kind, failed, wrong)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// limitOf is how long a probe waits for its answer.
func limitOf(p *corev1.Probe) time.Duration {
	return time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
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
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s answers %s: %.200s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return err
}
