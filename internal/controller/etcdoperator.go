package controller

import (
	"context"

	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// otherDriver is EtcdOperator for a Snapshot. Where it cannot be read, somebody else may be at work.
func (r *Reconciler) otherDriver(ctx context.Context) string {
	if r.Observer.Mode != quorum.ModeFull || !r.StandDown {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, observe.APITimeout)
	defer cancel()
	sign, err := observe.EtcdOperator(ctx, r.Observer.API)
	if err != nil {
		return err.Error()
	}
	return sign
}
