package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// keepLedger writes the ledger if it is missing, cannot be read, or has entries that are not needed any more. wrote says whether it did.
// A ledger that cannot be read is deleted and created, and not overwritten: the object's age then shows that it may lack entries.
func (r *Reconciler) keepLedger(ctx context.Context, s *quorum.Snapshot, entries []quorum.Release) (wrote bool, err error) {
	if entries == nil || s.Ledger.Version != "" && s.Ledger.Why == "" && len(entries) == len(s.Ledger.Entries) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxWriteTimeout)
	defer cancel()
	cm := r.ledgerOf(s, entries)
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
	if err != nil {
		return false, fmt.Errorf("keep the release ledger in ConfigMap %s: %w", client.ObjectKeyFromObject(cm), err)
	}
	return true, nil
}

// record adds a release to the ledger that was read. If the ledger was changed since, it returns notYet: the release may be one too many.
func (r *Reconciler) record(ctx context.Context, s *quorum.Snapshot, release quorum.Release) error {
	cm := r.ledgerOf(s, append(slices.Clip(s.Ledger.Entries), release))
	err := r.Client.Update(ctx, cm)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return notYet{err}
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", client.ObjectKeyFromObject(cm), err)
	}
	return nil
}

// ledgerOf is the ledger as it was seen, with other entries.
func (r *Reconciler) ledgerOf(s *quorum.Snapshot, entries []quorum.Release) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{Data: map[string]string{}}
	cm.Namespace, cm.Name, cm.ResourceVersion = r.Observer.Namespace, machineapi.LedgerName, s.Ledger.Version
	maps.Copy(cm.Data, machineapi.FormatLedger(entries))
	return cm
}
