package registrations

import (
	"maps"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// webhook is what webhooks of both kinds have, in their configuration.
type webhook struct {
	client *admissionregistrationv1.WebhookClientConfig
	policy **admissionregistrationv1.FailurePolicyType
}

func (w webhook) failsClosed() bool { return ptr.Deref(*w.policy, "") == admissionregistrationv1.Fail }

// entries are a configuration's webhooks, by their names. A policy has none.
func entries(o client.Object) map[string]webhook {
	out := map[string]webhook{}
	switch o := o.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			w := &o.Webhooks[i]
			out[w.Name] = webhook{&w.ClientConfig, &w.FailurePolicy}
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			w := &o.Webhooks[i]
			out[w.Name] = webhook{&w.ClientConfig, &w.FailurePolicy}
		}
	}
	return out
}

// mergeLive adds to the wanted object what depends on the live one: other people's metadata, an injector's CAs, and whether a
// webhook that is to fail closed may do so yet. The resourceVersion has a write fail if the object has changed since it was read.
func (k *Registrar) mergeLive(o *object, there bool) {
	if there {
		*metadata(o.want) = *metadata(o.live).DeepCopy()
	}
	if !o.called() {
		return
	}
	o.want.SetAnnotations(k.Writing.annotations(o.want.GetAnnotations()))
	injected, calls := k.Writing.Trust == nil, &k.calls
	calls.mu.Lock()
	defer calls.mu.Unlock()
	if o.key() == validatingKey {
		calls.unproven, calls.noCA = nil, false
	}
	live := entries(o.live)
	for name, want := range entries(o.want) {
		is, registered := live[name]
		if injected && registered {
			want.client.CABundle = is.client.CABundle
		}
		if !want.failsClosed() {
			continue
		}
		if registered && is.failsClosed() && len(is.client.CABundle) > 0 && place(is.client) == place(want.client) {
			calls.proven[name] = true // an earlier replica or version had proof for this very place
		}
		if injected && len(want.client.CABundle) == 0 {
			calls.noCA = true
			delete(calls.proven, name) // without a CA no call succeeds until the injector has written one
		}
		if !calls.proven[name] {
			*want.policy = new(admissionregistrationv1.Ignore)
			calls.unproven = append(calls.unproven, name)
		}
	}
}

func metadata(o client.Object) *metav1.ObjectMeta {
	return o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
}

// annotations are other people's, and those that ask for an injector: this one's, and no other's. Two who fill in caBundle
// would fight over it.
func (w *Writing) annotations(live map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, live)
	for _, key := range [...]string{
		"service.beta.openshift.io/inject-cabundle",
		"cert-manager.io/inject-ca-from", "cert-manager.io/inject-ca-from-secret", "cert-manager.io/inject-apiserver-ca",
	} {
		delete(out, key)
	}
	maps.Copy(out, w.Annotations)
	return out
}

// contents are what Holdfast decides about an object, as the API server stores it. A caBundle that an injector fills in is no
// part of it.
func (w *Writing) contents(o client.Object) any {
	o = o.DeepCopyObject().(client.Object)
	if w.Trust == nil {
		for _, entry := range entries(o) {
			entry.client.CABundle = nil
		}
	}
	switch o := o.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return o.Webhooks
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		return o.Webhooks
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return o.Spec
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		return o.Spec
	}
	return nil
}
