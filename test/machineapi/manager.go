package main

import (
	"context"
	"fmt"
	"time"

	"github.com/openshift/api/features"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/openshift/machine-api-operator/pkg/controller/machine"
	"github.com/openshift/machine-api-operator/pkg/controller/machinehealthcheck"
	"github.com/openshift/machine-api-operator/pkg/controller/nodelink"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/featuregate"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// soonest is the longest that the machine controller waits until it looks
// again at a Machine that waits for its instance or its Node. The library
// says 30 s, in constants made for clouds.
const soonest = 500 * time.Millisecond

// run starts all controllers and returns when the context ends, or with the
// first error that ends them earlier.
func run(ctx context.Context, opts options) error {
	config, err := clientcmd.BuildConfigFromFlags("", opts.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // a client that throttles itself would be measured with the controllers
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return fmt.Errorf("registering the Kubernetes types: %w", err)
	}
	if err := machinev1beta1.Install(scheme); err != nil {
		return fmt.Errorf("registering the Machine types: %w", err)
	}
	managerOptions := manager.Options{
		Scheme:                  scheme,
		Cache:                   cache.Options{SyncPeriod: &opts.resync, DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics:                 server.Options{BindAddress: "0"},
		GracefulShutdownTimeout: new(5 * time.Second),
	}
	if opts.webhooks.host != "" {
		managerOptions.WebhookServer = opts.webhooks.server()
	}
	mgr, err := manager.New(config, managerOptions)
	if err != nil {
		return fmt.Errorf("setting up the controllers: %w", err)
	}

	// The machine controller and the webhooks ask for these gates and panic if one is unknown. Off, as in
	// a cluster by default: the controller does not look at status.authoritativeAPI.
	gate := featuregate.NewFeatureGate()
	if err := gate.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		featuregate.Feature(features.FeatureGateMachineAPIMigration):     {PreRelease: featuregate.Alpha},
		featuregate.Feature(features.FeatureGateVSphereHostVMGroupZonal): {PreRelease: featuregate.Alpha},
		featuregate.Feature(features.FeatureGateVSphereMultiDisk):        {PreRelease: featuregate.Alpha},
	}); err != nil {
		return fmt.Errorf("setting up the feature gate: %w", err)
	}
	provider := &actuator{
		cloud:  newCloud(opts.cloudSocket),
		client: mgr.GetClient(),
		events: mgr.GetEventRecorderFor("process-provider"),
	}
	if err := machine.AddWithActuatorOpts(mgr, provider, quickly(), gate); err != nil {
		return fmt.Errorf("setting up the machine and drain controllers: %w", err)
	}
	if err := nodelink.Add(mgr, managerOptions); err != nil {
		return fmt.Errorf("setting up the nodelink controller: %w", err)
	}
	if err := machinehealthcheck.Add(mgr, managerOptions); err != nil {
		return fmt.Errorf("setting up the MachineHealthCheck controller: %w", err)
	}
	if opts.webhooks.host != "" {
		if err := addWebhooks(mgr, config, gate, opts); err != nil {
			return fmt.Errorf("setting up the webhooks: %w", err)
		}
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the controllers: %w", err)
	}
	return nil
}

// quickly are the machine controller's options that make it retry soon. The
// drain controller takes none: its own back-off starts at 5 s and grows, and is
// cut short by the manager's resync.
func quickly() controller.Options {
	return controller.Options{
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, soonest),
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return quickQueue{workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
				workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name})}
		},
	}
}

// quickQueue is a work queue that shortens each wished delay to soonest.
type quickQueue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// AddAfter adds the request after the delay or after soonest, whichever is shorter.
func (q quickQueue) AddAfter(request reconcile.Request, delay time.Duration) {
	q.TypedRateLimitingInterface.AddAfter(request, min(delay, soonest))
}
