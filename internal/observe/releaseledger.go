package observe

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Ledger reads the release ledger. One that may not be read, or cannot be written, holds like one that is garbled.
func (o *Observer) Ledger(ctx context.Context) (quorum.Ledger, error) {
	key := client.ObjectKey{Namespace: o.Namespace, Name: machineapi.LedgerName}
	var cm corev1.ConfigMap
	if err := o.API.Get(ctx, key, &cm); apierrors.IsNotFound(err) {
		return quorum.Ledger{}, nil
	} else if apierrors.IsForbidden(err) {
		return quorum.Ledger{Why: err.Error()}, nil
	} else if err != nil {
		return quorum.Ledger{}, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	l := quorum.Ledger{Version: cm.ResourceVersion, CreatedAt: cm.CreationTimestamp.Time}
	var err error
	if l.Entries, err = machineapi.ParseLedger(cm.Data); err != nil {
		l.Why = strings.ReplaceAll(fmt.Sprintf("ConfigMap %s: %v", key, err), "\n", "; ")
	} else if cm.Immutable != nil && *cm.Immutable {
		l.Why = fmt.Sprintf("ConfigMap %s is immutable", key)
	}
	return l, nil
}

// LedgerOf is the ledger as it was read, with other entries.
func LedgerOf(namespace string, l *quorum.Ledger, entries []quorum.Release) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{Data: machineapi.FormatLedger(entries)}
	cm.Namespace, cm.Name, cm.ResourceVersion = namespace, machineapi.LedgerName, l.Version
	return cm
}

// Record adds an entry to the ledger, one that can be read. If it was changed since, the error is a conflict.
func Record(ctx context.Context, w client.Writer, namespace string, l *quorum.Ledger, entry quorum.Release) error {
	if err := w.Update(ctx, LedgerOf(namespace, l, append(slices.Clip(l.Entries), entry))); err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", namespace, machineapi.LedgerName, err)
	}
	return nil
}
