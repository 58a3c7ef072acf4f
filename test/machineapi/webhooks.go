package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	mapiwebhooks "github.com/openshift/machine-api-operator/pkg/webhooks"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/featuregate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// webhookOptions say where machine-api-operator's own webhooks are served.
type webhookOptions struct {
	host    string
	port    int
	certDir string // tls.crt, tls.key, and ca.crt, by which the API server trusts them
}

func (o webhookOptions) server() webhook.Server {
	return webhook.NewServer(webhook.Options{Host: o.host, Port: o.port, CertDir: o.certDir})
}

// addWebhooks serves machine-api-operator's defaulters and validators for Machines and MachineSets,
// and has them registered when the manager runs. They read the cluster's Infrastructure and DNS once,
// here: on a platform that they do not know (None) nothing is asked of the providerSpec.
func addWebhooks(mgr manager.Manager, config *rest.Config, gate featuregate.MutableFeatureGate, opts options) error {
	// The library finds the API server in the environment only.
	if err := os.Setenv("KUBECONFIG", opts.kubeconfig); err != nil {
		return err
	}
	machineDefaulter, err := mapiwebhooks.NewMachineDefaulter()
	if err != nil {
		return fmt.Errorf("machine-api-operator's Machine defaulter: %w", err)
	}
	machineValidator, err := mapiwebhooks.NewMachineValidator(mgr.GetClient(), gate)
	if err != nil {
		return fmt.Errorf("machine-api-operator's Machine validator: %w", err)
	}
	setDefaulter, err := mapiwebhooks.NewMachineSetDefaulter()
	if err != nil {
		return fmt.Errorf("machine-api-operator's MachineSet defaulter: %w", err)
	}
	setValidator, err := mapiwebhooks.NewMachineSetValidator(mgr.GetClient(), gate)
	if err != nil {
		return fmt.Errorf("machine-api-operator's MachineSet validator: %w", err)
	}
	for path, handler := range map[string]*admission.Webhook{
		mapiwebhooks.DefaultMachineMutatingHookPath:      machineDefaulter,
		mapiwebhooks.DefaultMachineValidatingHookPath:    machineValidator,
		mapiwebhooks.DefaultMachineSetMutatingHookPath:   setDefaulter,
		mapiwebhooks.DefaultMachineSetValidatingHookPath: setValidator,
	} {
		mgr.GetWebhookServer().Register(path, handler)
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		return register(ctx, config, opts.webhooks)
	}))
}

// register applies the registrations that machine-api-operator applies, names, failure policy and
// all, with a URL in place of the Service that there is none of here.
func register(ctx context.Context, config *rest.Config, o webhookOptions) error {
	ca, err := os.ReadFile(filepath.Join(o.certDir, "ca.crt"))
	if err != nil {
		return fmt.Errorf("the CA of the webhooks' certificate: %w", err)
	}
	at := func(in *admissionregistrationv1.WebhookClientConfig) {
		url := "https://" + net.JoinHostPort(o.host, strconv.Itoa(o.port)) + *in.Service.Path
		*in = admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca}
	}
	mutating := mapiwebhooks.NewMachineMutatingWebhookConfiguration()
	for i := range mutating.Webhooks {
		at(&mutating.Webhooks[i].ClientConfig)
	}
	validating := mapiwebhooks.NewMachineValidatingWebhookConfiguration()
	for i := range validating.Webhooks {
		at(&validating.Webhooks[i].ClientConfig)
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("registering the webhooks: %w", err)
	}
	for _, object := range []client.Object{mutating, validating} {
		if err := c.Patch(ctx, object, client.Apply, client.FieldOwner("machine-api-operator"), client.ForceOwnership); err != nil {
			return fmt.Errorf("registering the webhooks: %w", err)
		}
	}
	return nil
}
