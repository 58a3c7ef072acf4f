package controller

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/serving"
)

// registrationsEvery is how often the registrations are looked for.
const registrationsEvery = 5 * time.Second

// Registrations tells, as a metric, which of the guard's registrations the API server has: neither a
// webhook nor a policy sees its own removal. The manager runs it on the elected replica.
type Registrations struct {
	API     client.Reader // without a cache
	Metrics *Metrics
	Log     logr.Logger
}

// Start looks until the context ends.
func (r *Registrations) Start(ctx context.Context) error {
	tick := time.NewTicker(registrationsEvery)
	defer tick.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.Log.V(1).Info("the registrations could not be read", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look reads each registration. One that could not be read stays as it was seen last.
func (r *Registrations) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiBound)
	defer cancel()
	tell := func(kind, name string, there bool) { r.Metrics.registered.WithLabelValues(kind, name).Set(one(there)) }

	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	if _, err := r.read(ctx, serving.Name, &mutating); err != nil {
		return err
	}
	tell("webhook", serving.RepairWebhook, slices.ContainsFunc(mutating.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == serving.RepairWebhook }))

	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	if _, err := r.read(ctx, serving.Name, &validating); err != nil {
		return err
	}
	for _, name := range [...]string{serving.ClosedWebhook, serving.OpenWebhook, serving.HomeWebhook, serving.KeeperWebhook} {
		tell("webhook", name, slices.ContainsFunc(validating.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == name }))
	}
	for _, name := range [...]string{serving.MachinePolicy, serving.StatusPolicy} {
		for kind, object := range map[string]client.Object{
			"policy": &admissionregistrationv1.ValidatingAdmissionPolicy{}, "binding": &admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
		} {
			there, err := r.read(ctx, name, object)
			if err != nil {
				return err
			}
			tell(kind, name, there)
		}
	}
	return nil
}

func (r *Registrations) read(ctx context.Context, name string, into client.Object) (there bool, err error) {
	err = r.API.Get(ctx, client.ObjectKey{Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
