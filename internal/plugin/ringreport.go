package plugin

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/snapshotfile"
)

const (
	// holdfastNamespace is where deploy/base installs Holdfast.
	holdfastNamespace = "holdfast-system"
	// oldest is how old what Holdfast published may be: it does so every 30 s, and after each change.
	oldest = time.Minute
	// bound is how long one read of a ConfigMap may take.
	bound = 10 * time.Second
)

// given is a Ring that was read before.
type given quorum.Ring

func (g given) Read(context.Context) quorum.Ring { return quorum.Ring(g) }

// ringReport is what Holdfast says of the ring in ConfigMap holdfast-ring, and how far that can be trusted.
type ringReport struct {
	// ring is nil where nothing was published that can be read. Its mode and limits hold however old it is.
	ring *snapshotfile.Ring
	// why the ring cannot be trusted; "" if it can.
	why string
	// quiet: nothing was published, or it is older than what a running Holdfast publishes. What could not be read is not quiet.
	quiet bool
	// mend is what to do about that, a sentence without its full stop.
	mend string
}

// readRingReport reads it. It does not fail: what cannot be read is not known, and why says why.
func (c *cluster) readRingReport(ctx context.Context) ringReport {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	key := client.ObjectKey{Namespace: c.holdfast, Name: snapshotfile.RingName}
	running := fmt.Sprintf("Is Holdfast running? kubectl -n %s get pods", c.holdfast)
	var cm corev1.ConfigMap
	switch err := c.Get(ctx, key, &cm); {
	case apierrors.IsNotFound(err):
		return ringReport{why: fmt.Sprintf("ConfigMap %s does not exist: Holdfast has not reported on etcd", key), mend: running, quiet: true}
	case apierrors.IsForbidden(err):
		return ringReport{why: fmt.Sprintf("you may not read ConfigMap %s, in which Holdfast reports on etcd", key), mend: "Ask for the right to get it"}
	case err != nil:
		return ringReport{why: fmt.Sprintf("ConfigMap %s, in which Holdfast reports on etcd, could not be read: %s", key, oneLine(err)), mend: "Try again"}
	}
	ring, err := snapshotfile.ParseRing(cm.Data)
	if err != nil {
		return ringReport{why: fmt.Sprintf("ConfigMap %s, in which Holdfast reports on etcd, cannot be understood: %s", key, oneLine(err)), mend: "A running Holdfast of this plugin's version writes it anew within 30 s: kubectl -n " + c.holdfast + " get pods"}
	}
	switch age := c.clock.Since(ring.Snapshot.Now); {
	case age > oldest:
		return ringReport{ring: ring, why: fmt.Sprintf("Holdfast's last report, ConfigMap %s, is %s old", key, ago(age)), mend: running + ". If it is, does etcd take writes? etcdctl alarm list", quiet: true}
	case age < -oldest:
		return ringReport{ring: ring, why: fmt.Sprintf("ConfigMap %s has a timestamp %s in the future", key, ago(-age)), mend: "See whether the clocks of the cluster's hosts are right"}
	}
	return ringReport{ring: ring}
}

// oneLine is an error as part of a sentence.
func oneLine(err error) string {
	return strings.TrimRight(strings.Join(strings.Fields(err.Error()), " "), ".")
}

// ago is an age in words.
func ago(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// look takes a Snapshot of the cluster. etcd is asked, if the command has its endpoints; else it is as
// Holdfast saw it. Holdfast's flags are as it published them, unless this command's flags say otherwise.
func (c *cluster) look(ctx context.Context) (*view, error) {
	v, err := c.lookOnce(ctx)
	// What Holdfast published last may be older than its records: a promotion in between is no contradiction, and it publishes within a second.
	for range 3 {
		if err != nil || c.ring != nil || v.Mislisted() == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
		v, err = c.lookOnce(ctx)
	}
	return v, err
}

func (c *cluster) lookOnce(ctx context.Context) (*view, error) {
	heard := c.readRingReport(ctx)
	mode, err := c.modeOf(ctx, heard)
	if err != nil {
		return nil, err
	}
	o := c.observer
	o.Limits = quorum.DefaultLimits()
	if heard.ring != nil {
		o.Limits = heard.ring.Snapshot.Limits
	}
	published := &quorum.Snapshot{Ring: quorum.Ring{Why: heard.why}}
	fresh := heard.why == ""
	if fresh {
		published = heard.ring.Snapshot
	}
	o.Mode, o.Desired, o.Etcd = mode, cmp.Or(c.desired, published.Desired), given(published.Ring)
	v := &view{namespace: c.namespace, user: c.user}
	switch {
	case c.ring != nil:
		o.Etcd = c.ring
		v.source = fmt.Sprintf("Etcd itself was asked, at %s (--endpoints, or ETCDCTL_ENDPOINTS).", strings.Join(c.etcd.Endpoints, ", "))
		if heard.quiet {
			v.idle = heard.why + ". " + heard.mend
		}
	case fresh:
		v.source = fmt.Sprintf("Etcd is as Holdfast saw it %s ago (%s).", ago(c.clock.Since(published.Now)), orNobody(heard.ring.By))
	default:
		v.silent = true
		v.source = heard.mend + ". To ask etcd without Holdfast: --endpoints, --cacert, --cert and --key, as for etcdctl."
	}
	s, err := v.read(ctx, o)
	if err != nil {
		return nil, err
	}
	switch {
	case c.ring != nil && fresh && !s.Ring.Known && published.Ring.Known:
		v.source = fmt.Sprintf("Etcd did not answer at %s (--endpoints, or ETCDCTL_ENDPOINTS). It is as Holdfast saw it %s ago (%s).", strings.Join(c.etcd.Endpoints, ", "), ago(c.clock.Since(published.Now)), orNobody(heard.ring.By))
		s.Ring = published.Ring
	case c.ring != nil:
		c.memory.Recall(s)
	case fresh: // Holdfast published since when each member is as it is
		s.Ring = published.Ring
	}
	if fresh {
		s.OtherDriver, s.Lock, s.Failures = published.OtherDriver, published.Lock, published.Failures
		s.BootstrapWaits, s.APIServersWait = published.BootstrapWaits, published.APIServersWait
	}
	if fresh && c.desired == 0 {
		s.Desired, s.DesiredWhy, s.Replicas, s.Surge = published.Desired, published.DesiredWhy, published.Replicas, published.Surge
	}
	v.decide(s)
	v.guard = cmp.Or(c.seen(ctx).verdict(), "webhooks and policies are registered; kubectl holdfast check tries them")
	v.operator = c.etcdOperatorSays(ctx)
	if v.reports, err = c.enforcement(ctx); err == nil && v.reports != admission.Enforce { // what cannot be read the guard's line says
		v.plan.Actions = nil
	}
	return v, nil
}

func orNobody(by string) string { return cmp.Or(by, "it does not say which process") }
