package observe

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Run runs the rounds of a reconciler until the context ends: at once, after each call of wake, and when a round asks for another. There is
// one thing to reconcile, whatever object changed. watch starts what wakes it, and returns at once.
func Run(ctx context.Context, name string, r reconcile.Reconciler, backoff workqueue.TypedRateLimiter[reconcile.Request], log logr.Logger, watch func(ctx context.Context, wake func())) error {
	c, err := controller.NewUnmanaged(name, controller.Options{
		Reconciler: r, RateLimiter: backoff, Logger: log,
		SkipNameValidation: new(true), // after the next election there is another controller of that name
	})
	if err == nil {
		err = c.Watch(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			wake := func() { q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}) }
			wake()
			watch(ctx, wake)
			return nil
		}))
	}
	if err != nil {
		return fmt.Errorf("set up controller %s: %w", name, err)
	}
	return c.Start(ctx)
}

// FollowControlPlane calls changed whenever a control-plane Machine or Node changes. api has no cache: workers' Machines and Nodes are
// not kept in memory. Each label that makes one needs its own watch: a selector cannot say "or".
func FollowControlPlane(ctx context.Context, api client.WithWatch, namespace string, changed func()) {
	for _, label := range [...]string{quorum.RoleLabel, quorum.TypeLabel} {
		go Follow(ctx, api, machinev1beta1.GroupVersion.WithKind("MachineList"), changed, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: ControlPlane(label)})
	}
	for _, label := range NodeLabels() {
		go Follow(ctx, api, corev1.SchemeGroupVersion.WithKind("NodeList"), changed, client.HasLabels{label})
	}
}
