package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// decided is a kind of request that the guard decides.
type decided struct {
	name        string
	requestOnly bool // decided without a look at the cluster
	patched     bool // that is answered by a patch
	recorded    bool // no dry run, so that it is put on record; one in flight only: nothing may slip through
	request     func(with string) request
}

// while says which requests are sent while no Machine is deleting, and which while one is.
func while(deleting bool) []decided {
	if !deleting {
		return []decided{
			{name: "restore of a stripped hook", requestOnly: true, patched: true, request: strip},
			{name: "denial (keep-finalizer)", requestOnly: true, request: func(string) request {
				return request{as: denied, method: http.MethodPatch, path: machine("master-1") + dryRun, body: `{"metadata":{"finalizers":null}}`, refused: true}
			}},
			{name: "denial (keep-finalizer), on record", requestOnly: true, recorded: true, request: func(string) request {
				return request{as: denied, method: http.MethodPatch, path: machine("master-1"), body: `{"metadata":{"finalizers":null}}`, refused: true}
			}},
			{name: "delete of a worker Machine", request: func(string) request {
				return request{as: sandbox.Alice, method: http.MethodDelete, path: machine("worker-0") + dryRun}
			}},
			{name: "delete, allowed and held", request: func(string) request {
				return request{as: sandbox.Alice, method: http.MethodDelete, path: machine("master-1") + dryRun}
			}},
		}
	}
	return []decided{
		{name: "delete, denied (one-too-many)", request: func(with string) request {
			return request{as: denied, method: http.MethodDelete, path: machine("master-1") + dryRun, refused: with != withPolicy}
		}},
		{name: "release, put back (early-release)", request: func(with string) request {
			return request{as: sandbox.EtcdOperator, method: http.MethodPatch, path: machine("master-0") + dryRun, body: `{"spec":{"lifecycleHooks":{"preDrain":null}}}`, want: hooked(with == withGuard)}
		}},
	}
}

// guarded measures requests that the guard decides against a webhook that does nothing, in a process and
// a server of the same make, and against the policies alone. They are dry runs, so that they repeat, but for a denial, which does anyway.
func (b *bench) guarded(ctx context.Context) (err error) {
	c, err := b.start(ctx, "guarded", "guard")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.quiet(ctx); err != nil {
		return err
	}
	if err := c.admin.Create(ctx, node("worker-0")); err != nil {
		return err
	}
	if err := c.admin.Create(ctx, worker("worker-0")); err != nil {
		return err
	}
	linked := request{as: sandbox.MachineAPI, method: http.MethodPatch, path: machine("worker-0") + "/status", body: `{"status":{"nodeRef":{"kind":"Node","name":"worker-0"}}}`}
	if _, err := c.send(ctx, &linked); err != nil {
		return err
	}
	n, err := startNothing(b.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Stop(5*time.Second)) }()
	s, err := newSwitcher(ctx, c, n)
	if err != nil {
		return err
	}
	for _, deleting := range []bool{false, true} {
		if deleting {
			if err := s.to(ctx, withGuard); err != nil {
				return err
			}
			r := request{as: sandbox.Alice, method: http.MethodDelete, path: machine("master-0")}
			if _, err := c.send(ctx, &r); err != nil {
				return err
			}
		}
		for _, clients := range []int{1, 8, 64} {
			for _, kind := range while(deleting) {
				if kind.recorded && clients > 1 {
					continue
				}
				if err := b.compare(ctx, s, kind, clients); err != nil {
					return fmt.Errorf("%s: %w", kind.name, err)
				}
			}
		}
	}
	return nil
}

// compare measures one kind of request with each of the three in turn.
func (b *bench) compare(ctx context.Context, s *switcher, kind decided, clients int) error {
	variants := []string{withNothing, withGuard, withPolicy}
	if clients == 1 && kind.requestOnly && kind.patched {
		variants = append(variants, withSame)
	}
	took, over, used, calls, otherwise := map[string][]time.Duration{}, map[string]time.Duration{}, map[string]time.Duration{}, map[string]float64{}, map[string]int{}
	block := max(b.block, 2*clients)
	turns := (b.rounds*b.requests + block - 1) / block
	if clients > 1 {
		turns = (b.requests + block - 1) / block // no ratio is made of these
	}
	for turn := range turns {
		for i := range variants {
			with := variants[(i+turn)%len(variants)]
			if err := s.to(ctx, with); err != nil {
				return err
			}
			r := kind.request(with)
			if _, err := s.many(ctx, clients, 10+clients, &r); err != nil { // to warm up
				return err
			}
			pid := s.Holdfast.Process().PID()
			if with == withNothing || with == withSame {
				pid = s.nothing.PID()
			}
			called, err := s.webhookCalls(ctx)
			if err != nil {
				return err
			}
			before, err := cpu(pid)
			if err != nil {
				return err
			}
			got, err := s.many(ctx, clients, block, &r)
			if err != nil {
				return err
			}
			after, err := cpu(pid)
			if err != nil {
				return err
			}
			calling, err := s.webhookCalls(ctx)
			if err != nil {
				return err
			}
			took[with], over[with], used[with], calls[with] = append(took[with], got.took...), over[with]+got.over, used[with]+after-before, calls[with]+calling-called
			otherwise[with] += got.otherwise
		}
	}
	perRequest := func(with string) float64 { return ms(used[with]) / float64(len(took[with])) }
	for _, with := range variants {
		l := summary("guarded", kind.name, with, clients, took[with], over[with])
		l.Otherwise = otherwise[with]
		if with != withPolicy {
			l.CPU, l.Calls = perRequest(with), calls[with]/float64(len(took[with]))
		}
		if with == withGuard {
			l.Ratio = l.P50 / ms(quantile(took[withNothing], .5))
		}
		b.report.Latencies = append(b.report.Latencies, l)
		progress("guarded: %s, %s, %d clients: p50 %.2f ms, p99 %.2f ms, %.0f/s, CPU %.3f ms, %.2f calls", kind.name, with, clients, l.P50, l.P99, l.PerSecond, l.CPU, l.Calls)
	}
	if clients == 1 {
		if len(took[withSame]) > 0 {
			b.report.figure("guarded", kind.name+": p50 to that of a webhook that gives the same answer without deciding", ms(quantile(took[withGuard], .5))/ms(quantile(took[withSame], .5)), "x", 0)
		}
		if kind.requestOnly {
			b.report.figure("guarded", kind.name+": p50 to that of a webhook that does nothing", ms(quantile(took[withGuard], .5))/ms(quantile(took[withNothing], .5)), "x", 1.1)
			b.report.figure("guarded", kind.name+": CPU to that of a webhook that does nothing", perRequest(withGuard)/perRequest(withNothing), "x", .55/.45)
		}
		b.report.figure("guarded", kind.name+": CPU beside that of a webhook that does nothing", perRequest(withGuard)-perRequest(withNothing), "ms", 0)
	}
	return nil
}

// trusting is a client that trusts one CA.
func trusting(ca []byte) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
}
