package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

const (
	// rewordEvery is the shortest time between two writes that change only the message, which may be another at each look.
	rewordEvery = 30 * time.Second
	// reviewEvery is how soon the object is read again, and how soon a write that failed is tried again.
	reviewEvery = 10 * time.Second
	// missEvery is how soon a cluster that lacks the API is asked for it again.
	missEvery = time.Minute
)

var errNoAPI = errors.New("this cluster has no ClusterOperators (config.openshift.io)")

// ClusterOperator publishes the conditions on a ClusterOperator object, where a cluster has that API. Its
// exported fields must be set.
type ClusterOperator struct {
	Name    string // of the object, which no other operator may have
	Version string // Holdfast's
	Related []configv1.ObjectReference
	Client  client.Client
	Log     logr.Logger

	settled  []membership.Condition // nil until they are read back after a start
	reworded time.Time              // when the status was written last
	review   time.Time              // when to read the object again at the latest
	missing  bool                   // the cluster has no such API, and that was logged
	attempts attempts               // to write the object
}

// report brings the object up to date with the conditions of a look. It writes only what has changed.
func (o *ClusterOperator) report(ctx context.Context, now []membership.Condition, at time.Time) error {
	if o == nil {
		return nil
	}
	due := !at.Before(o.review) || at.Before(o.review.Add(-missEvery)) // the clock was put back
	if o.settled != nil {
		settled := membership.Settle(o.settled, now, at)
		due = due || !o.missing && !sameStatus(o.settled, settled)
		o.settled = settled
	}
	if !due {
		return nil
	}
	o.review = at.Add(reviewEvery)
	ctx, cancel := context.WithTimeout(ctx, observe.APITimeout)
	defer cancel()
	err := o.write(ctx, now, at)
	var failed error
	switch {
	case err == nil:
		o.missing = false
	case errors.Is(err, errNoAPI):
		if !o.missing {
			o.Log.Info("the conditions are only in the log and the metrics", "reason", err.Error())
		}
		o.missing, o.review = true, at.Add(missEvery)
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		o.review = at // somebody was quicker
	default:
		failed = err
	}
	o.attempts.after(quorum.Failure{Reason: string(membership.ReasonConditionsNotTold), What: "tell the conditions"}, at, failed, false)
	if failed != nil {
		return fmt.Errorf("the conditions are not told: %w", failed)
	}
	return nil
}

// failures are the conditions that could not be published.
func (o *ClusterOperator) failures() []quorum.Failure {
	if o == nil {
		return nil
	}
	return o.attempts.failures()
}

// write reads the object, and writes its status if it is not what it should be.
func (o *ClusterOperator) write(ctx context.Context, now []membership.Condition, at time.Time) error {
	var object configv1.ClusterOperator
	err := o.Client.Get(ctx, client.ObjectKey{Name: o.Name}, &object)
	if apierrors.IsNotFound(err) {
		object = configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
		err = o.Client.Create(ctx, &object)
	}
	switch {
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err): // not even to be created
		return errNoAPI
	case err != nil:
		return fmt.Errorf("ClusterOperator %s: %w", o.Name, err)
	}
	if o.settled == nil {
		o.settled = membership.Settle(readConditions(object.Status.Conditions), now, at)
	}
	want := object.Status.DeepCopy()
	statusChanged := false
	for _, c := range o.settled {
		fresh := configv1.ClusterOperatorStatusCondition{
			Type: configv1.ClusterStatusConditionType(c.Type), Status: configv1.ConditionStatus(c.Status),
			Reason: c.Reason, Message: c.Message, LastTransitionTime: metav1.NewTime(c.Since.Truncate(time.Second)),
		}
		k := slices.IndexFunc(want.Conditions, func(have configv1.ClusterOperatorStatusCondition) bool { return have.Type == fresh.Type })
		switch {
		case k < 0:
			want.Conditions, statusChanged = append(want.Conditions, fresh), true
		case want.Conditions[k].Status != fresh.Status:
			want.Conditions[k], statusChanged = fresh, true
		default:
			fresh.LastTransitionTime = want.Conditions[k].LastTransitionTime
			want.Conditions[k] = fresh
		}
	}
	want.Versions = []configv1.OperandVersion{{Name: "operator", Version: cmp.Or(o.Version, "unknown")}}
	want.RelatedObjects = o.Related
	if equality.Semantic.DeepEqual(want, &object.Status) || !statusChanged && at.Sub(o.reworded) < rewordEvery && !at.Before(o.reworded) {
		return nil
	}
	object.Status = *want
	// An update, not a patch: with the resourceVersion that was read, two Holdfasts for a moment do not mix.
	if err := o.Client.Status().Update(ctx, &object); err != nil {
		return fmt.Errorf("status of ClusterOperator %s: %w", o.Name, err)
	}
	o.reworded = at
	return nil
}

// readConditions are the conditions as they were published, by this process or by one before it.
func readConditions(published []configv1.ClusterOperatorStatusCondition) []membership.Condition {
	out := make([]membership.Condition, 0, len(published))
	for _, c := range published {
		out = append(out, membership.Condition{
			Type: membership.ConditionType(c.Type), Status: membership.Status(c.Status),
			Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time,
		})
	}
	return out
}

func sameStatus(a, b []membership.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b membership.Condition) bool { return a.Type == b.Type && a.Status == b.Status })
}
