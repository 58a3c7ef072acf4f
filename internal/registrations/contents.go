package registrations

import (
	"fmt"
	"maps"
	"net/url"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fill completes the wanted object with the fields that depend on the live one: the CAs, the path, and whether a webhook that is to
// fail closed may do so yet. It returns false if they are not known.
func (k *Registrar) fill(o *object) bool {
	bundles := map[string][]byte{}
	closed := map[string]string{} // the place of each webhook that fails closed now
	switch live := o.live.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range live.Webhooks {
			bundles[live.Webhooks[i].Name] = live.Webhooks[i].ClientConfig.CABundle
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range live.Webhooks {
			w := &live.Webhooks[i]
			bundles[w.Name] = w.ClientConfig.CABundle
			if w.FailurePolicy != nil && *w.FailurePolicy == admissionregistrationv1.Fail && len(w.ClientConfig.CABundle) > 0 {
				closed[w.Name] = place(w.ClientConfig)
			}
		}
	default:
		return true
	}
	token := ""
	if k.Shared != nil {
		if token = k.Shared.Token(); token == "" {
			return false
		}
	}
	bundle := func(name string) []byte {
		if k.Trust != nil {
			return k.Trust.Bundle()
		}
		return bundles[name] // written by the injector
	}
	switch want := o.want.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range want.Webhooks {
			want.Webhooks[i].ClientConfig = withToken(want.Webhooks[i].ClientConfig, token)
			want.Webhooks[i].ClientConfig.CABundle = bundle(want.Webhooks[i].Name)
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		k.empty = false
		for i := range want.Webhooks {
			w := &want.Webhooks[i]
			w.ClientConfig = withToken(w.ClientConfig, token)
			w.ClientConfig.CABundle = bundle(w.Name)
			if *w.FailurePolicy != admissionregistrationv1.Fail {
				continue
			}
			if closed[w.Name] == place(w.ClientConfig) {
				k.proven[w.Name] = true // an earlier replica or version had proof for this very place
			}
			if k.Trust == nil && len(w.ClientConfig.CABundle) == 0 {
				k.empty = true
				delete(k.proven, w.Name) // without a CA no call succeeds until the injector has written one
			}
			if !k.proven[w.Name] {
				w.FailurePolicy = new(admissionregistrationv1.Ignore)
			}
		}
	}
	return k.Trust == nil || k.Trust.Bundle() != nil
}

// place is where a webhook is called, without the path.
func place(c admissionregistrationv1.WebhookClientConfig) string {
	switch {
	case c.Service != nil:
		return fmt.Sprintf("%s/%s:%d", c.Service.Namespace, c.Service.Name, ptr.Deref(c.Service.Port, 443))
	case c.URL != nil:
		if u, err := url.Parse(*c.URL); err == nil {
			return u.Scheme + "://" + u.Host
		}
	}
	return "nowhere"
}

// annotated says whether an object has the annotations that it is to have.
func (k *Registrar) annotated(o client.Object) bool {
	return maps.Equal(o.GetAnnotations(), k.annotations(o))
}

// annotations are an object's own and, on a webhook configuration, those that ask for an injector: this
// one's, and no other's. Two who fill in caBundle would fight over it.
func (k *Registrar) annotations(o client.Object) map[string]string {
	out := maps.Clone(o.GetAnnotations())
	switch o.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration, *admissionregistrationv1.ValidatingWebhookConfiguration:
	default:
		return out
	}
	for _, key := range [...]string{
		"service.beta.openshift.io/inject-cabundle",
		"cert-manager.io/inject-ca-from", "cert-manager.io/inject-ca-from-secret", "cert-manager.io/inject-apiserver-ca",
	} {
		delete(out, key)
	}
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, k.Annotations)
	return out
}

// contents are what Holdfast decides about an object, as the API server stores it.
func contents(o client.Object) any {
	switch o := o.DeepCopyObject().(type) {
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

// bare are contents without what changes while Holdfast runs.
func bare(contents any) any {
	switch c := contents.(type) {
	case []admissionregistrationv1.MutatingWebhook:
		out := slices.Clone(c)
		for i := range out {
			out[i].ClientConfig = withToken(out[i].ClientConfig, "")
			out[i].ClientConfig.CABundle = nil
		}
		return out
	case []admissionregistrationv1.ValidatingWebhook:
		out := slices.Clone(c)
		for i := range out {
			out[i].ClientConfig = withToken(out[i].ClientConfig, "")
			out[i].ClientConfig.CABundle, out[i].FailurePolicy = nil, nil
		}
		return out
	}
	return contents
}

// next is what to write: what is wanted, and of what is there the rest, its resourceVersion too, so that
// the write fails if the object has changed since it was read.
func (k *Registrar) next(o *object, there bool) client.Object {
	out := o.want
	if there {
		out = o.live.DeepCopyObject().(client.Object)
		switch out := out.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			out.Webhooks = o.want.(*admissionregistrationv1.MutatingWebhookConfiguration).Webhooks
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			out.Webhooks = o.want.(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			out.Spec = o.want.(*admissionregistrationv1.ValidatingAdmissionPolicy).Spec
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			out.Spec = o.want.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec
		}
	}
	out.SetAnnotations(k.annotations(out))
	return out
}
