package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/assets"
	"github.com/holdfast-dev/holdfast/test/metrics"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// ceiling is what the manager may have resident, in MiB.
const ceiling = 50

// heartbeat is how often a kubelet writes its Node's status when nothing changes.
const heartbeat = 5 * time.Minute

// footprint measures the manager's process: at rest, after requests, and in a large cluster.
func (b *bench) footprint(ctx context.Context) (err error) {
	path, err := assets.Path("holdfast")
	if err != nil {
		return err
	}
	file, err := os.Stat(path)
	if err != nil {
		return err
	}
	b.report.figure("footprint", "the binary", float64(file.Size())/(1<<20), "MiB", 0)
	c, err := b.start(ctx, "footprint", sandbox.Options{Mode: "full"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.quiet(ctx); err != nil {
		return err
	}
	if err := b.restart(ctx, c, "start to ready"); err != nil {
		return err
	}
	if err := b.rest(ctx, c, "at rest", nil); err != nil {
		return err
	}

	load := strip(withGuard)
	if _, err := c.many(ctx, 8, b.requests, &load); err != nil {
		return err
	}
	if err := b.resident(c, fmt.Sprintf("resident after %d requests of 8 clients", b.requests)); err != nil {
		return err
	}

	progress("footprint: creating %d Nodes and %d worker Machines", b.nodes, b.machines)
	if err := c.grow(ctx, b.nodes, b.machines); err != nil {
		return err
	}
	if err := b.resident(c, fmt.Sprintf("resident after %d Nodes and %d worker Machines were created", b.nodes, b.machines)); err != nil {
		return err
	}
	large := fmt.Sprintf("with %d Nodes and %d worker Machines", b.nodes, b.machines)
	if err := b.restart(ctx, c, "start to ready "+large); err != nil {
		return err
	}
	if err := b.rest(ctx, c, large, nil); err != nil {
		return err
	}
	return b.rest(ctx, c, large+", whose kubelets report", func(ctx context.Context) error { return c.beat(ctx, b.nodes) })
}

// resident reports how much memory the manager has.
func (b *bench) resident(c *cluster, what string) error {
	is, err := memory(c.Holdfast.Process().PID(), "VmRSS")
	if err == nil {
		b.report.figure("footprint", what, is, "MiB", ceiling)
	}
	return err
}

// restart starts the manager anew and reports how long it takes to be ready.
func (b *bench) restart(ctx context.Context, c *cluster, what string) error {
	var took []time.Duration
	for range 3 {
		if err := c.Holdfast.Stop(); err != nil {
			return err
		}
		began := time.Now()
		if err := c.Holdfast.Start(); err != nil {
			return err
		}
		if err := until(ctx, "Holdfast", func(ctx context.Context) error {
			_, err := metrics.Read(ctx, c.plain, c.ReadyURL())
			return err
		}); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	b.report.figure("footprint", what, ms(quantile(took, .5)), "ms", 0)
	return nil
}

// counts are what the manager has counted, and the CPU that it had.
type counts struct {
	api, rounds float64
	cpu         time.Duration
}

func (c *cluster) counts(ctx context.Context) (n counts, err error) {
	own, err := metrics.Read(ctx, c.plain, c.MetricsURL())
	if err != nil {
		return n, err
	}
	n.api = own.Sum("rest_client_requests_total")
	n.rounds = own.Sum("controller_runtime_reconcile_total")
	n.cpu, err = cpu(c.Holdfast.Process().PID())
	return n, err
}

// rest watches the manager for a while in which nothing is done, or just what is given.
func (b *bench) rest(ctx context.Context, c *cluster, what string, doing func(context.Context) error) error {
	if err := settle(ctx, c); err != nil {
		return err
	}
	before, err := c.counts(ctx)
	if err != nil {
		return err
	}
	idle, stop := context.WithTimeout(ctx, b.idle)
	defer stop()
	if doing != nil {
		if err := doing(idle); err != nil {
			return err
		}
	}
	<-idle.Done()
	after, err := c.counts(ctx)
	if err != nil {
		return err
	}
	minute := b.idle.Minutes()
	b.report.figure("footprint", "CPU "+what, float64(after.cpu-before.cpu)/float64(b.idle)*1000, "millicores", 0)
	b.report.figure("footprint", "looks "+what, (after.rounds-before.rounds)/minute, "per minute", 0)
	b.report.figure("footprint", "API requests "+what, (after.api-before.api)/minute, "per minute", 0)
	if err := b.resident(c, "resident "+what); err != nil {
		return err
	}
	most, err := memory(c.Holdfast.Process().PID(), "VmHWM")
	if err != nil {
		return err
	}
	b.report.figure("footprint", "resident at most "+what, most, "MiB", 0)
	return nil
}

// settle waits until the manager has made its first looks.
func settle(ctx context.Context, c *cluster) error {
	return until(ctx, "the manager's first looks", func(ctx context.Context) error {
		m, err := metrics.Read(ctx, c.plain, c.MetricsURL())
		if err == nil && m.Sum("controller_runtime_reconcile_total") < 2 {
			err = errors.New("it has not looked yet")
		}
		return err
	})
}

// grow creates worker Nodes and worker Machines.
func (c *cluster) grow(ctx context.Context, nodes, machines int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	create := func(o client.Object) {
		group.Go(func() error {
			if err := c.admin.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
	for i := range nodes {
		create(node(workerName(i)))
	}
	for i := range machines {
		create(worker(workerName(i)))
	}
	return group.Wait()
}

func workerName(i int) string { return fmt.Sprintf("worker-%05d", i) }

// beat writes the Nodes' status as their kubelets do, until the context ends.
func (c *cluster) beat(ctx context.Context, nodes int) error {
	pace := rate.NewLimiter(rate.Limit(float64(nodes)/heartbeat.Seconds()), 1)
	for i := 0; pace.Wait(ctx) == nil; i++ {
		r := request{as: sandbox.Admin, method: http.MethodPatch, path: "/api/v1/nodes/" + workerName(i%nodes) + "/status"}
		r.body = `{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"` + time.Now().UTC().Format(time.RFC3339) + `"}]}}`
		if _, err := c.send(ctx, &r); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
