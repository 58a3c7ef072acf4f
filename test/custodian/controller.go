package custodian

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controller is one of the operator's, none of which waits for another.
type controller struct {
	sync func(context.Context) error
	// watched is what has it look when it changes, besides resync; nil has it look all the time.
	watched func(context.Context) (map[string]string, error)
	resync  time.Duration
}

// After an error a controller looks again, each time later.
const firstPause, longestPause = 5 * time.Millisecond, 10 * time.Second

// controllers are those of hooks, endpoints, additions and removals, and with Options.GuardPort of the quorum guard. No event tells the operator that a member has come, gone or is well
// again, so hooks and removals wait for another one.
func (o *Operator) controllers() []controller {
	all := []controller{
		{o.hooks, o.versions, o.options.Resync},
		{o.publish, nil, 0},
		{o.grow, nil, 0},
		{o.shrink, o.published, 33 * time.Minute},
	}
	if o.options.GuardPort != 0 {
		all = append(all, controller{o.guard, o.guarded, 10 * time.Minute})
	}
	return all
}

// run looks when it has to, until the context ends, and returns its last look's error before that.
func (c *controller) run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var (
		last  error
		seen  map[string]string
		due   time.Time
		pause = firstPause
	)
	for {
		now, err := map[string]string(nil), error(nil)
		if c.watched != nil {
			now, err = c.watched(ctx)
		}
		if err != nil || c.watched == nil || !maps.Equal(now, seen) || !time.Now().Before(due) {
			if err == nil {
				err = c.sync(ctx)
			}
			if ctx.Err() == nil {
				last = err
			}
			if seen, due = now, time.Now().Add(c.resync); err == nil {
				pause = firstPause
			} else {
				due, pause = time.Now().Add(pause), min(2*pause, longestPause)
			}
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}

// versions are those of the Machines.
func (o *Operator) versions(ctx context.Context) (map[string]string, error) {
	machines, err := o.machines(ctx)
	out := map[string]string{}
	for _, m := range machines {
		out[m.Name] = m.ResourceVersion
	}
	return out, err
}

// published are the versions of the Machines, which Nodes are ready, and the endpoints, with whether their revision is done.
func (o *Operator) published(ctx context.Context) (map[string]string, error) {
	out, err := o.versions(ctx)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := o.client.List(ctx, &nodes, client.HasLabels{nodeLabel}); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	for i := range nodes.Items {
		out["Node "+nodes.Items[i].Name] = strconv.FormatBool(nodeReady(&nodes.Items[i]))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	out["endpoints"] = fmt.Sprint(o.endpoints, o.stable())
	return out, nil
}
