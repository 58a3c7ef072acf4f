package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
)

// OperatorCondition says to OLM by condition Upgradeable whether it may change Holdfast's version now: not while a member is on its way.
// Whatever else is wrong must not hold up a version that may mend it. OLM makes the object (operators.coreos.com/v2) and gives the
// right to write it. Set the exported fields.
type OperatorCondition struct {
	Namespace, Name string // of the object
	Client          client.Client

	settled []membership.Condition // what was written last, nil before
	again   time.Time              // when to write what has not changed, or could not be written
}

// report writes the condition when its status changes, and otherwise at intervals.
func (o *OperatorCondition) report(ctx context.Context, now []membership.Condition, at time.Time) error {
	if o == nil {
		return nil
	}
	settled := membership.Settle(o.settled, now, at)
	changed := !sameStatus(o.settled, settled)
	if o.settled = settled; !changed && at.Before(o.again) {
		return nil
	}
	o.again = at.Add(reviewEvery)
	ctx, cancel := context.WithTimeout(ctx, observe.APITimeout)
	defer cancel()
	for _, c := range settled {
		if c.Type != membership.ConditionProgressing {
			continue
		}
		upgradeable := membership.StatusTrue
		if c.Status == membership.StatusTrue {
			upgradeable = membership.StatusFalse
		}
		if err := o.write(ctx, upgradeable, c); err != nil {
			return fmt.Errorf("OperatorCondition %s: %w", o.Name, err)
		}
		o.again = at.Add(rewordEvery)
	}
	return nil
}

func (o *OperatorCondition) write(ctx context.Context, upgradeable membership.Status, why membership.Condition) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "operators.coreos.com/v2", "kind": "OperatorCondition",
		"metadata": map[string]any{"namespace": o.Namespace, "name": o.Name},
		"spec": map[string]any{"conditions": []any{map[string]any{
			"type": "Upgradeable", "status": string(upgradeable), "reason": why.Reason, "message": why.Message,
			"lastTransitionTime": why.Since.UTC().Format(time.RFC3339),
		}}},
	}}
	// OLM makes this object. Where it is gone, OLM does not read it either.
	return client.IgnoreNotFound(o.Client.Patch(ctx, object, client.Merge))
}
