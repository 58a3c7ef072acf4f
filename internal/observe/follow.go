package observe

import (
	"context"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Wake has whoever waits on a channel of one place go on, once for any number of calls.
func Wake(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default: // it is woken already
	}
}

// Follow calls changed for each change, and when a watch begins, until the context ends: a new watch says nothing of an object
// that was deleted before it. Why there is no watch is logged once, to the context's log.
func Follow(ctx context.Context, api client.WithWatch, kind schema.GroupVersionKind, changed func(), which ...client.ListOption) {
	again := time.NewTicker(2 * time.Second)
	defer again.Stop()
	said := ""
	for {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if watcher, err := api.Watch(ctx, list, which...); err == nil {
			said = ""
			changed()
			for range watcher.ResultChan() {
				changed()
			}
			watcher.Stop()
		} else if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			which := (&client.ListOptions{}).ApplyOptions(which)
			logr.FromContextOrDiscard(ctx).Info("it cannot be watched, and is only looked at every few seconds",
				"kind", strings.TrimSuffix(kind.Kind, "List"), "fields", which.FieldSelector, "reason", text)
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}
