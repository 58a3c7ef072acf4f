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
	c, err := b.start(ctx, "guarded", sandbox.Options{Mode: "guard"})
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

// measured is what one kind of request took and cost, with one variant of what answers it.
type measured struct {
	burst
	cost
}

func (m *measured) p50() float64           { return ms(quantile(m.took, .5)) }
func (m *measured) cpuPerRequest() float64 { return ms(m.cpu) / float64(len(m.took)) }

// compare measures one kind of request with each of the three in turn.
func (b *bench) compare(ctx context.Context, s *switcher, kind decided, clients int) error {
	variants := []string{withNothing, withGuard, withPolicy}
	if clients == 1 && kind.requestOnly && kind.patched {
		variants = append(variants, withSame)
	}
	all := map[string]*measured{}
	for _, with := range variants {
		all[with] = &measured{}
	}
	block := max(b.block, 2*clients)
	turns := (b.rounds*b.requests + block - 1) / block
	if clients > 1 {
		turns = (b.requests + block - 1) / block // no ratio is made of these
	}
	for turn := range turns {
		for i := range variants {
			with := variants[(i+turn)%len(variants)]
			if err := s.measure(ctx, kind, with, clients, block, all[with]); err != nil {
				return err
			}
		}
	}
	for _, with := range variants {
		b.compared(kind, with, clients, all)
	}
	if clients == 1 {
		b.ratios(kind, all)
	}
	return nil
}

// measure sends a block of requests with one variant, and adds what they took and cost.
func (s *switcher) measure(ctx context.Context, kind decided, with string, clients, block int, to *measured) error {
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
	var got burst
	spent, err := s.cost(ctx, pid, func() (err error) {
		got, err = s.many(ctx, clients, block, &r)
		return err
	})
	to.took, to.over, to.otherwise = append(to.took, got.took...), to.over+got.over, to.otherwise+got.otherwise
	to.calls, to.cpu = to.calls+spent.calls, to.cpu+spent.cpu
	return err
}

// compared reports what one kind of request took with one variant.
func (b *bench) compared(kind decided, with string, clients int, all map[string]*measured) {
	m := all[with]
	l := summary("guarded", kind.name, with, clients, m.took, m.over)
	l.Otherwise = m.otherwise
	if with != withPolicy {
		l.CPU, l.Calls = m.cpuPerRequest(), m.calls/float64(len(m.took))
	}
	if with == withGuard {
		l.Ratio = l.P50 / all[withNothing].p50()
	}
	b.report.Latencies = append(b.report.Latencies, l)
	progress("guarded: %s, %s, %d clients: p50 %.2f ms, p99 %.2f ms, %.0f/s, CPU %.3f ms, %.2f calls", kind.name, with, clients, l.P50, l.P99, l.PerSecond, l.CPU, l.Calls)
}

// ratios reports what the guard takes and costs beside the others, for one client.
func (b *bench) ratios(kind decided, all map[string]*measured) {
	guard, nothing := all[withGuard], all[withNothing]
	bar := answerRatio
	if same, ok := all[withSame]; ok {
		b.report.figure("guarded", kind.name+": p50 to that of a webhook that gives the same answer without deciding", guard.p50()/same.p50(), "x", bar)
		bar = 0 // the webhook that does nothing gives another answer
	}
	ratio, cpu := guard.p50()/nothing.p50(), guard.cpuPerRequest()-nothing.cpuPerRequest()
	if kind.requestOnly {
		b.report.figure("guarded", kind.name+": p50 to that of a webhook that does nothing", ratio, "x", bar)
		b.report.figure("guarded", kind.name+": CPU to that of a webhook that does nothing", guard.cpuPerRequest()/nothing.cpuPerRequest(), "x", .55/.45)
		b.report.figure("guarded", kind.name+": CPU beside that of a webhook that does nothing", cpu, "ms", 0)
	} else {
		b.report.figure("guarded", kind.name+": p50 to that of a webhook that does nothing", ratio, "x", readsRatio)
		b.report.figure("guarded", kind.name+": CPU beside that of a webhook that does nothing", cpu, "ms", readsCPU)
	}
}

// Bars: of a decision by the request alone, to a webhook that gives the same answer, and of one that reads the cluster, to a webhook that does nothing.
const (
	answerRatio = 1.1
	readsRatio  = 2.5
	readsCPU    = 4.4 // ms
)

// trusting is a client that trusts one CA.
func trusting(ca []byte) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
}
