package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// routine measures requests that touch nothing guarded, with and without the guard registered. They are
// real writes, sent one at a time and in turn, and among them are some that no webhook could see: what
// differs for those is the noise of this run.
func (b *bench) routine(ctx context.Context) (err error) {
	c, err := b.start(ctx, "routine", sandbox.Options{Mode: "guard"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.quiet(ctx); err != nil {
		return err
	}
	if err := c.admin.Create(ctx, worker("worker-0")); err != nil {
		return err
	}
	control := &corev1.ConfigMap{}
	control.Namespace, control.Name = "default", "control"
	if err := c.admin.Create(ctx, control); err != nil {
		return err
	}
	s, err := newSwitcher(ctx, c, nil)
	if err != nil {
		return err
	}
	kinds := routineKinds()
	took := map[string][][]time.Duration{withNone: make([][]time.Duration, len(kinds)), withGuard: make([][]time.Duration, len(kinds))}
	calls, n, spent := 0.0, 0, time.Duration(0)
	pid := c.Holdfast.Process().PID()
	turns := (b.rounds*b.requests + b.block - 1) / b.block
	for turn := range turns {
		order := []string{withNone, withGuard}
		if turn%2 == 1 {
			order = []string{withGuard, withNone}
		}
		for _, with := range order {
			if err := s.to(ctx, with); err != nil {
				return err
			}
			costs, err := c.cost(ctx, pid, func() error { return c.write(ctx, kinds, b.block, &n, took[with]) })
			if err != nil {
				return err
			}
			if spent += costs.cpu; with == withGuard {
				calls += costs.calls
			}
		}
		progress("routine: turn %d of %d", turn+1, turns)
	}
	for k, kind := range kinds {
		for _, with := range []string{withNone, withGuard} {
			l := summary("routine", kind.name, with, 1, took[with][k], 0)
			if with == withGuard {
				l.Ratio = l.P50 / ms(quantile(took[withNone][k], .5))
			}
			b.report.Latencies = append(b.report.Latencies, l)
		}
	}
	b.report.figure("routine", "webhook calls of requests that touch nothing guarded", calls, "calls", 0)
	b.report.figure("routine", "the manager's CPU for each write of a Machine", ms(spent)/float64(2*turns*(b.block+10)*3), "ms", 0)
	return nil
}

// write sends a block of patches of each kind, and adds what each took. n counts the patches, so that each writes another value.
func (c *cluster) write(ctx context.Context, kinds []routineKind, block int, n *int, took [][]time.Duration) error {
	for i := range block + 10 { // the first ones warm up
		for k, kind := range kinds {
			*n++
			r := request{as: sandbox.MachineAPI, method: http.MethodPatch, path: kind.path, body: fmt.Sprintf(kind.body, *n)}
			d, err := c.send(ctx, &r)
			if err != nil {
				return err
			}
			if i >= 10 {
				took[k] = append(took[k], d)
			}
		}
	}
	return nil
}

// routineKind is a kind of patch that touches nothing guarded.
type routineKind struct{ name, path, body string }

func routineKinds() []routineKind {
	return []routineKind{
		{"control, a ConfigMap", "/api/v1/namespaces/default/configmaps/control", `{"data":{"n":"%d"}}`},
		{"Machine, an annotation", machine("master-1"), `{"metadata":{"annotations":{"bench":"%d"}}}`},
		{"Machine status", machine("master-1") + "/status", `{"status":{"errorMessage":"%d"}}`},
		{"worker Machine's provider ID", machine("worker-0"), `{"spec":{"providerID":"process:///worker-%d"}}`},
		{"worker Machine", machine("worker-0"), `{"metadata":{"annotations":{"bench":"%d"}}}`},
	}
}

// summary puts samples of one kind together. With more than one client, over is how long all took.
func summary(section, name, with string, clients int, took []time.Duration, over time.Duration) latency {
	if over == 0 {
		for _, d := range took {
			over += d
		}
	}
	return latency{
		Section: section, Request: name, With: with, Clients: clients, Count: len(took),
		P50: ms(quantile(took, .5)), P99: ms(quantile(took, .99)), PerSecond: float64(len(took)) / over.Seconds(),
	}
}
