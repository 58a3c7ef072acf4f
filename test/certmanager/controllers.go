package certmanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	requestca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	requestselfsigned "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"         // makes the type of issuer known
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned" // the same
	"github.com/cert-manager/cert-manager/pkg/util"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Controllers runs cert-manager's controllers for Issuers, Certificates and CertificateRequests until the
// context ends: what its binary runs by default, without ClusterIssuers, ACME, Vault, CyberArk and the shims
// for Ingresses and Gateways. The CRDs must be there.
func Controllers(ctx context.Context, kubeconfig string, log logr.Logger) error {
	work, ctx := errgroup.WithContext(logr.NewContext(ctx, log))
	const workers = 5 // of each; the binary's default
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:    kubeconfig,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: "kube-system"},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return fmt.Errorf("cert-manager's controllers: %w", err)
	}
	known := controller.Known()
	for _, name := range []string{
		issuers.ControllerName,
		trigger.ControllerName, keymanager.ControllerName, requestmanager.ControllerName,
		issuing.ControllerName, readiness.ControllerName, revisionmanager.ControllerName,
		approver.ControllerName, requestselfsigned.CRControllerName, requestca.CRControllerName,
	} {
		one, err := known[name](factory)
		if err != nil {
			return fmt.Errorf("cert-manager's controller %s: %w", name, err)
		}
		work.Go(func() error {
			if err := one.Run(workers, ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("cert-manager's controller %s: %w", name, err)
			}
			return nil
		})
	}
	// All contexts of a factory share its informers, which start when they are all asked for.
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("cert-manager's controllers: %w", err)
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return work.Wait()
}

// Injector runs cert-manager's CA injector until the context ends: as its binary does by default, for
// webhook configurations alone.
func Injector(ctx context.Context, kubeconfig string, log logr.Logger) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("the CA injector: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), cmapi.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("the CA injector: %w", err)
	}
	mgr, err := ctrl.NewManager(util.RestConfigWithUserAgent(config, "cainjector"), ctrl.Options{
		Scheme:  scheme,
		Logger:  log,
		Metrics: metricsserver.Options{BindAddress: "0"},
		// One that was stopped and its successor share the name.
		Controller: controllerconfig.Controller{SkipNameValidation: new(true)},
		Cache:      cache.Options{ReaderFailOnMissingInformer: true},
		Client:     client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return fmt.Errorf("the CA injector: %w", err)
	}
	err = cainjector.RegisterAllInjectors(ctx, mgr, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
		},
	})
	if err != nil {
		return fmt.Errorf("the CA injector: %w", err)
	}
	return mgr.Start(ctx)
}
