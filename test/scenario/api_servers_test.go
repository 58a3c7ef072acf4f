package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/tier"
)

// TestAPIServers: each host has an API server of its own, on its own member of etcd alone, behind one address. All hosts are replaced twice, all are
// drained and restarted in turn while one is replaced, and the control plane is scaled, while somebody writes through that address.
func TestAPIServers(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, sandbox.Options{Replicas: 3, APIServers: true})
	history := c.watch(t, 3)
	w := c.writeToAPI(t)
	c.learnersServeNothing(t)
	c.atRest(t)
	c.guardAtRest(t)

	t.Run("all hosts are replaced, one after the other, and once more", func(t *testing.T) {
		held := 0
		for i := range 6 {
			old, next := fmt.Sprintf([]string{"master-%d", "zeroth-%d"}[i/3], i%3), fmt.Sprintf([]string{"zeroth-%d", "first-%d"}[i/3], i%3)
			c.asks(t, "Machine "+old+" deleted", func(ctx context.Context) error { return c.remove(ctx, old) })
			c.asks(t, "Machine "+next+" created", func(ctx context.Context) error { return c.replacement(ctx, old, next) })
			eventually(t, quickly, "the budget to hold all drains, until "+next+" votes", func(ctx context.Context) error {
				g, err := c.quorumGuard(ctx)
				if err == nil && g.budget == 3 && g.allowed == 0 {
					held++
					return nil
				}
				if role, unread := c.role(ctx, next); unread != nil || role != "voter" {
					return errors.Join(fmt.Errorf("%+v, and %s is %q", g, next, role), err, unread)
				}
				return nil
			})
			c.gone(t, slowly, old)
			c.atRest(t)
			c.serve(t)
			w.goesOn(t)
		}
		if held == 0 {
			t.Error("no budget held the drains in six replacements")
		}
	})

	t.Run("all hosts are drained and restarted, and one is replaced meanwhile", func(t *testing.T) {
		c.guardAtRest(t)
		c.asks(t, "Machine first-0 deleted", func(ctx context.Context) error { return c.remove(ctx, "first-0") })
		c.asks(t, "Machine second-0 created", func(ctx context.Context) error { return c.replacement(ctx, "first-1", "second-0") })
		for _, node := range []string{"first-1", "first-2", "second-0"} {
			c.typed(t, "kubectl drain "+node+" --force --timeout=120s")
			c.off(t, node)
			w.goesOn(t)
			must(t, c.Power(node, true))
			c.nodeReady(t, node)
			c.serve(t, node) // OpenShift's API servers have a budget of their own, and are waited for as etcd is
			c.asks(t, "Node "+node+" uncordoned", func(context.Context) error {
				_, err := c.shell(t, "kubectl uncordon "+node)
				return err
			})
		}
		c.gone(t, drains, "first-0")
		c.atRest(t)
		c.guardAtRest(t)
		c.serve(t)
	})

	t.Run("3 to 5, and back", func(t *testing.T) {
		c.want(t, 5)
		for _, name := range []string{"third", "fourth"} {
			c.asks(t, "Machine "+name+" created", func(ctx context.Context) error { return c.replacement(ctx, "first-1", name) })
		}
		c.atRest(t)
		c.serve(t)
		history.atLeast(3)
		c.SetHoldfastArgs("--desired-replicas=3")
		c.desired.Store(3)
		must(t, c.Holdfast.Restart())
		must(t, c.WaitHoldfast(t.Context()))
		for _, name := range []string{"first-1", "first-2"} {
			c.asks(t, "Machine "+name+" deleted", func(ctx context.Context) error { return c.remove(ctx, name) })
		}
		c.gone(t, drains, "first-1")
		c.gone(t, drains, "first-2")
		c.atRest(t)
		c.serve(t)
		w.goesOn(t)
	})
}

// asks asks until it is granted, or was: a connection ends with the API server that it leads to.
func (c *cluster) asks(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	eventually(t, quickly, what, func(ctx context.Context) error {
		if err := ask(ctx); !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// serve waits until the API servers of these hosts are ready, or those of all hosts.
func (c *cluster) serve(t *testing.T, names ...string) {
	t.Helper()
	eventually(t, quickly, "an API server on each host", func(context.Context) error {
		var errs []error
		for _, host := range c.Hosts() {
			if !host.Serves && (len(names) == 0 || slices.Contains(names, host.Name)) {
				errs = append(errs, fmt.Errorf("that of %s does not serve", host.Name))
			}
		}
		return errors.Join(errs...)
	})
}

// learnersServeNothing wants no request to be led to the API server of a learner's host, to the end of the test.
func (c *cluster) learnersServeNothing(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	learners, wrong := map[uint64]bool{}, ""
	work.Go(func() {
		tick := time.NewTicker(glimpse)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			serves := map[string]bool{}
			for _, host := range c.Hosts() {
				serves[host.Name] = host.Serves
			}
			list, err := c.members(ctx) // after that, so who is a learner now was one then
			if err != nil {
				continue
			}
			for _, m := range list {
				if m.GetIsLearner() {
					learners[m.GetID()] = true
					if serves[m.GetName()] {
						wrong = m.GetName()
					}
				}
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
		if wrong != "" || len(learners) == 0 {
			t.Errorf("%d learners were seen; requests were led to the API server of learner %q", len(learners), wrong)
		}
	})
}

// apiWriter writes through the API's one address, one object after the other, each until it is acknowledged.
type apiWriter struct {
	mu      sync.Mutex
	acked   int
	failed  int
	last    error
	longest time.Duration
}

// writeToAPI begins to write, to the end of the test, which fails if an acknowledged write is lost.
func (c *cluster) writeToAPI(t *testing.T) *apiWriter {
	t.Helper()
	config := c.Config(sandbox.Admin)
	config.Timeout = attempt
	core, err := corev1client.NewForConfig(config)
	must(t, err)
	objects := core.ConfigMaps(metav1.NamespaceDefault)
	const label = "written"
	w := &apiWriter{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	work.Go(func() { w.run(ctx, objects, label) })
	t.Cleanup(func() {
		cancel()
		work.Wait()
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), quickly)
		defer cancel()
		list, err := objects.List(reading, metav1.ListOptions{LabelSelector: label})
		must(t, err)
		there := map[string]bool{}
		for i := range list.Items {
			there[list.Items[i].Name] = true
		}
		lost := 0
		for n := range w.acked {
			if !there[w.name(n)] {
				lost++
			}
		}
		if lost > 0 || w.acked == 0 {
			t.Errorf("%d of %d acknowledged writes through the API are lost", lost, w.acked)
		}
		t.Logf("%d writes through the API acknowledged, longest stall %s, %d attempts failed: %v", w.acked, w.longest.Round(time.Millisecond), w.failed, w.last)
	})
	return w
}

func (w *apiWriter) name(n int) string { return fmt.Sprintf("write-%06d", n) }

func (w *apiWriter) run(ctx context.Context, objects corev1client.ConfigMapInterface, label string) {
	tick := time.NewTicker(glimpse)
	defer tick.Stop()
	began := time.Now()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err := objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: w.name(n), Labels: map[string]string{label: ""}}}, metav1.CreateOptions{})
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.longest = max(w.longest, time.Since(began))
		if err == nil || apierrors.IsAlreadyExists(err) { // of an attempt whose answer was lost
			n++
			w.acked = n
			began = time.Now()
		} else {
			w.failed, w.last = w.failed+1, err
		}
		w.mu.Unlock()
	}
}

// goesOn waits for another write.
func (w *apiWriter) goesOn(t *testing.T) {
	t.Helper()
	acked := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.acked
	}
	before := acked()
	eventually(t, quickly, "another write through the API", func(context.Context) error {
		if acked() == before {
			return errors.New("none")
		}
		return nil
	})
}
