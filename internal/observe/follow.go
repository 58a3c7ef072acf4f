package observe

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Follow calls changed for each change until the context ends. Whatever it misses between two watches,
// the next one's beginning or the next round finds.
func Follow(ctx context.Context, api client.WithWatch, kind schema.GroupVersionKind, changed func(), which ...client.ListOption) {
	again := time.NewTicker(2 * time.Second)
	defer again.Stop()
	for {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if watcher, err := api.Watch(ctx, list, which...); err == nil {
			for range watcher.ResultChan() {
				changed()
			}
			watcher.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}
