package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// keepLedger writes the ledger if it is missing, cannot be read, or has entries that are not needed any more. wrote reports whether it did.
// If somebody else changed the ledger meanwhile, it returns notYet. A ledger that cannot be read is deleted and created, and not overwritten:
// the object's age then shows that it may lack entries.
func (r *Reconciler) keepLedger(ctx context.Context, s *quorum.Snapshot, entries []quorum.Release) (wrote bool, err error) {
	if entries == nil || s.Ledger.Version != "" && s.Ledger.Why == "" && len(entries) == len(s.Ledger.Entries) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxWriteTimeout)
	defer cancel()
	cm := observe.LedgerOf(r.Observer.Namespace, &s.Ledger, entries)
	switch {
	case s.Ledger.Version == "":
		err = r.Client.Create(ctx, cm)
	case s.Ledger.Why != "":
		r.Log.Info("the release ledger is made anew", "reason", s.Ledger.Why)
		if err = r.Client.Delete(ctx, cm, client.Preconditions{ResourceVersion: &s.Ledger.Version}); err == nil {
			cm.ResourceVersion = ""
			err = r.Client.Create(ctx, cm)
		}
	default:
		err = r.Client.Update(ctx, cm)
	}
	err = written(err, fmt.Sprintf("keep the release ledger in ConfigMap %s", client.ObjectKeyFromObject(cm)))
	return err == nil, err
}

// record adds a release to the ledger that was read. If the ledger was changed since, it returns notYet: the release may be one too many.
func (r *Reconciler) record(ctx context.Context, s *quorum.Snapshot, release quorum.Release) error {
	err := observe.Record(ctx, r.Client, r.Observer.Namespace, &s.Ledger, release)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return notYet{err}
	}
	return err
}
