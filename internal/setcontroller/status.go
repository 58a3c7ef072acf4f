package setcontroller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/observe"
)

// maxMessage is how long the API lets a condition's message be, in bytes.
const maxMessage = 32768

// writeStatus writes the set's status, if the set is still the one that was read, and keeps what the API server stored. The set of another
// operator is left as it is.
func (c *Controller) writeStatus(ctx context.Context, set *observe.Set, p *machineset.Plan, now time.Time) error {
	if set.Facts.OtherOperator != "" || set.Facts.OperatorWhy != "" {
		return nil
	}
	changed := set.Object.DeepCopy()
	out := &changed.Status
	out.ObservedGeneration = set.Object.Generation
	out.Replicas, out.ReadyReplicas = int32(p.Counts.Replicas), int32(p.Counts.Ready)
	out.UpdatedReplicas, out.UnavailableReplicas = int32(p.Counts.Updated), int32(p.Counts.Unavailable)
	for _, condition := range machineset.Conditions(set.Facts, p) {
		truth := metav1.ConditionFalse
		if condition.True {
			truth = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{
			Type: string(condition.Type), Status: truth, Reason: condition.Reason, Message: condition.Message[:min(len(condition.Message), maxMessage)],
			ObservedGeneration: set.Object.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	}
	patch := client.MergeFromWithOptions(set.Object, client.MergeFromWithOptimisticLock{})
	if err := c.Client.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("write the set's status: %w", err)
	}
	set.Object = changed
	return nil
}
