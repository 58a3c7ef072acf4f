package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/metrics"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// What stands between a request and its object.
const (
	withNone    = "none"
	withGuard   = "holdfast"
	withNothing = "nothing" // a webhook that does nothing, registered as Holdfast is
	withSame    = "same"    // a webhook that gives Holdfast's answers without deciding, and the policies, registered as Holdfast is
	withPolicy  = "policy"  // the ValidatingAdmissionPolicies alone
)

// switcher registers one thing or the other.
type switcher struct {
	*cluster
	nothing *nothing
	objects map[string][]client.Object // to be there, by what is registered
	now     string
}

// newSwitcher takes Holdfast's registrations as the sandbox has applied them.
func newSwitcher(ctx context.Context, c *cluster, n *nothing) (*switcher, error) {
	s := &switcher{cluster: c, nothing: n, objects: map[string][]client.Object{}, now: withGuard}
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	hooks := []client.Object{&mutating, &validating}
	var policies []client.Object
	for _, name := range registrations.PolicyNames() {
		p, b := &admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		p.Name, b.Name = name, name
		policies = append(policies, p, b)
	}
	mutating.Name, validating.Name = registrations.Name, registrations.Name
	for _, o := range append(policies, hooks...) {
		if err := c.admin.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return nil, err
		}
		name := o.GetName()
		o.SetResourceVersion("")
		o.SetUID("")
		o.SetManagedFields(nil)
		o.SetName(name)
	}
	s.objects[withGuard] = slices.Concat(policies, hooks)
	s.objects[withPolicy] = policies
	if n != nil {
		m, v := n.registrations("/", &mutating, &validating)
		for i := range v.Webhooks {
			// What Holdfast repairs is as it was, so the validating webhook is not asked about it. Of what is not
			// repaired it would be.
			w := &v.Webhooks[i]
			for k := range w.Rules {
				w.Rules[k].Operations = slices.DeleteFunc(w.Rules[k].Operations, func(o admissionregistrationv1.OperationType) bool {
					return o == admissionregistrationv1.Update
				})
			}
			w.Rules = slices.DeleteFunc(w.Rules, func(r admissionregistrationv1.RuleWithOperations) bool { return len(r.Operations) == 0 })
		}
		s.objects[withNothing] = []client.Object{m, v}
		m, v = n.registrations(samePath, &mutating, &validating)
		s.objects[withSame] = append(slices.Clone(policies), m, v)
	}
	return s, nil
}

// registrations are Holdfast's, but for where the webhooks are.
func (n *nothing) registrations(path string, mutating *admissionregistrationv1.MutatingWebhookConfiguration, validating *admissionregistrationv1.ValidatingWebhookConfiguration) (*admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration) {
	at := admissionregistrationv1.WebhookClientConfig{URL: new(n.url + path), CABundle: n.ca}
	m, v := mutating.DeepCopy(), validating.DeepCopy()
	for i := range m.Webhooks {
		m.Webhooks[i].ClientConfig = at
	}
	for i := range v.Webhooks {
		v.Webhooks[i].ClientConfig = at
	}
	return m, v
}

// to registers what is named, and returns when the API server acts by it.
func (s *switcher) to(ctx context.Context, with string) error {
	if s.now == with {
		return nil
	}
	for _, o := range s.objects[s.now] {
		if err := s.admin.Delete(ctx, o.DeepCopyObject().(client.Object)); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, o := range s.objects[with] {
		if err := s.admin.Create(ctx, o.DeepCopyObject().(client.Object)); err != nil {
			return err
		}
	}
	s.now = with
	status := request{as: sandbox.Alice, method: http.MethodPatch, path: machine("master-1") + "/status" + dryRun, body: `{"status":{"addresses":[]}}`, refused: with != withNone && with != withNothing}
	strip := strip(with)
	return until(ctx, "the API server to act with "+with, func(ctx context.Context) error {
		before, err := s.calls(ctx)
		if err != nil {
			return err
		}
		for range 3 { // nothing is half in place
			if _, err := s.send(ctx, &strip); err != nil {
				return err
			}
			if _, err := s.send(ctx, &status); err != nil {
				return err
			}
		}
		after, err := s.calls(ctx)
		if calls := after - before; err == nil && (with == withNothing || with == withSame) != (calls == 3) {
			err = fmt.Errorf("the webhook that decides nothing had %.0f calls", calls)
		}
		return err
	})
}

func (s *switcher) calls(ctx context.Context) (float64, error) {
	if s.nothing == nil {
		return 0, nil
	}
	raw, err := metrics.Read(ctx, trusting(s.nothing.ca), s.nothing.url+"/calls")
	return raw["calls"], err
}

// strip takes hook and latch off a live Machine.
func strip(with string) request {
	r := request{as: sandbox.Alice, method: http.MethodPatch, path: machine("master-1") + dryRun, body: `{"spec":{"lifecycleHooks":null}}`}
	switch with {
	case withPolicy:
		r.refused = true
	default:
		r.want = hooked(with == withGuard || with == withSame)
	}
	return r
}

// webhookCalls is how often the API server has called Holdfast.
func (c *cluster) webhookCalls(ctx context.Context) (float64, error) {
	m, err := metrics.Read(ctx, c.http[sandbox.Admin], c.Server()+"/metrics")
	if err != nil {
		return 0, err
	}
	const name = "apiserver_admission_webhook_admission_duration_seconds_count"
	if m.Sum(name) == 0 {
		return 0, errors.New("the API server does not count webhook calls")
	}
	return m.Sum(name, `machines.holdfast.dev"`), nil
}

// cost is what requests cost: calls of webhooks, and the CPU of the process that answers them.
type cost struct {
	calls float64
	cpu   time.Duration
}

// cost measures what some work costs.
func (c *cluster) cost(ctx context.Context, pid int, work func() error) (cost, error) {
	calls, err := c.webhookCalls(ctx)
	if err != nil {
		return cost{}, err
	}
	used, err := cpu(pid)
	if err != nil {
		return cost{}, err
	}
	if err := work(); err != nil {
		return cost{}, err
	}
	now, err := cpu(pid)
	if err != nil {
		return cost{}, err
	}
	after, err := c.webhookCalls(ctx)
	return cost{after - calls, now - used}, err
}
