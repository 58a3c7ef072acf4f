package setcontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	machinev1 "github.com/openshift/api/machine/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// How soon to look again. Changes of the set, its Machines and its Nodes wake the controller besides, and what the reconciler sees of etcd.
const (
	requeueNow  = time.Millisecond // something was just done
	requeueSoon = time.Second      // something is under way
	requeueIdle = 10 * time.Second // at rest, or there is no set
	retryFirst  = 200 * time.Millisecond
	retryMost   = 30 * time.Second

	// roundTimeout is for how long what was seen may be acted on: a replica that slept in the middle of a round does nothing more in it.
	// A round begins at most 10 s after the Lease was renewed last, and 15 s after that another replica may be elected.
	roundTimeout = 5 * time.Second
)

// Controller runs rounds. Make one with its fields set, for one Run: what it remembers is of that time.
type Controller struct {
	Client   client.Client
	Observer *observe.Observer
	Events   events.EventRecorder
	Metrics  *Metrics
	Log      logr.Logger
	// News has the controller look at once: etcd's members cannot be watched, and another reader of etcd has seen a change.
	News <-chan struct{}

	memory    observe.Memory
	creations creations
	notes     map[machineset.Note]bool // those in force, which have been reported
}

// Run runs rounds until the context ends. Only the elected replica calls it. api is without a cache.
func (c *Controller) Run(ctx context.Context, api client.WithWatch) error {
	defer c.Metrics.forget()
	backoff := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryMost)
	return observe.Run(ctx, "controlplanemachineset", c, backoff, c.Log, func(ctx context.Context, changed func()) { c.watch(ctx, api, changed) })
}

// watch reports what may change the plan, until the context ends.
func (c *Controller) watch(ctx context.Context, api client.WithWatch, changed func()) {
	go observe.Follow(ctx, api, machinev1.GroupVersion.WithKind("ControlPlaneMachineSetList"), changed, client.InNamespace(c.Observer.Namespace))
	observe.FollowControlPlane(ctx, api, c.Observer.Namespace, changed)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.News:
				changed()
			}
		}
	}()
}

// Reconcile runs one round: look, decide, report, act.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	within, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	again, err := c.round(within, time.Now())
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) { // somebody was quicker: look again
		c.Log.V(1).Info("not yet", "reason", err.Error())
		return reconcile.Result{RequeueAfter: requeueSoon}, nil
	}
	if err != nil && ctx.Err() == nil { // not while shutting down, when every call fails
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// late reports whether a round that began then may not act any more. It goes by the wall clock: the clock that ends the context stands still
// while the computer sleeps.
func late(began, now time.Time) bool {
	return now.Round(0).Sub(began.Round(0)).Abs() > roundTimeout
}

func (c *Controller) round(ctx context.Context, began time.Time) (again time.Duration, err error) {
	s, set, err := c.Observer.SnapshotWithSet(ctx)
	if err != nil {
		return 0, fmt.Errorf("the control plane's set could not be read, so nothing is done: %w", err)
	}
	if set == nil {
		c.notes = nil
		c.Metrics.forget()
		return requeueIdle, nil
	}
	c.memory.Recall(s)
	c.creations.recall(s, set.Facts, set.Object.Generation)
	if set.Facts.Reconciled() {
		machineset.Want(s, set.Facts)
	}
	plan := machineset.Decide(s, set.Facts)
	c.Metrics.observe(set.Facts, &plan)
	c.report(set.Object, plan.Notes)
	if err := c.writeStatus(ctx, set, &plan, s.Now); err != nil {
		return 0, err
	}
	failed := errors.Join(c.keepHealthCheck(ctx, s, set), c.act(ctx, set, plan.Actions, began))
	switch {
	case failed != nil:
		return 0, failed
	case len(plan.Actions) > 0:
		return requeueNow, nil
	case set.Facts.Reconciled() && !plan.AtRest(set.Facts):
		return requeueSoon, nil
	}
	return requeueIdle, nil
}

// act applies what the plan of a round that began then says.
func (c *Controller) act(ctx context.Context, set *observe.Set, actions []machineset.Action, began time.Time) (failed error) {
	for _, a := range actions {
		if late(began, time.Now()) {
			return errors.Join(failed, fmt.Errorf("the round took more than %s, so nothing more is done in it", roundTimeout))
		}
		err := c.apply(ctx, set, a)
		c.count(set.Object, a, err)
		failed = errors.Join(failed, err)
	}
	return failed
}

// count records an action in the metrics, the log and an Event on the set.
func (c *Controller) count(set *machinev1.ControlPlaneMachineSet, a machineset.Action, err error) {
	if err != nil {
		c.Metrics.actions.WithLabelValues(a.Name(), "failed").Inc()
		if !apierrors.IsConflict(err) {
			c.event(set, corev1.EventTypeWarning, "SetActionFailed", a.Name(), fmt.Sprintf("Holdfast could not %s: %v", a.Describe(), err))
		}
		return
	}
	c.Metrics.actions.WithLabelValues(a.Name(), "done").Inc()
	c.Log.Info(a.Describe(), "why", a.Why)
	c.event(set, corev1.EventTypeNormal, "SetAction", a.Name(), fmt.Sprintf("Holdfast: %s: %s", a.Describe(), a.Why))
}

// event makes an Event on the set. The API server refuses one whose note is longer than 1024 bytes.
func (c *Controller) event(set *machinev1.ControlPlaneMachineSet, kind, reason, action, note string) {
	c.Events.Eventf(set, nil, kind, reason, action, "%s", quorum.Clip(note, 1000))
}

// report logs each note when it first occurs, when it changes and when it clears, and makes it an Event on the set.
func (c *Controller) report(set *machinev1.ControlPlaneMachineSet, notes []machineset.Note) {
	now := map[machineset.Note]bool{}
	for _, n := range notes {
		if now[n] = true; c.notes[n] {
			continue
		}
		c.Log.Info(n.Message, "reason", n.Reason)
		kind := corev1.EventTypeNormal
		if n.Reason.Degrades() {
			kind = corev1.EventTypeWarning
		}
		c.event(set, kind, string(n.Reason), "observe", "Holdfast: "+n.Message)
	}
	for n := range c.notes {
		if !now[n] {
			c.Log.Info("no longer: "+n.Message, "reason", n.Reason)
		}
	}
	c.notes = now
}
