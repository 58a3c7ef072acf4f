package plugin

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

// TestCheck: what check says of a guard that is in force, and of each thing that it needs and lacks.
func TestCheck(t *testing.T) {
	t.Setenv("KUBECONFIG", "testdata/kubeconfig.yaml")
	now := noon().Add(time.Minute)
	answers := func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
		return apierrors.NewForbidden(machinev1beta1.Resource("machines"), "master-0", errors.New(`admission webhook "x" denied the request: Refused (one-too-many): it is one too many.`))
	}
	silent := func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return nil }
	hooked := func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		if m := machineapi.Machine(o.(*machinev1beta1.Machine)); m.Hook == quorum.EntryAbsent {
			return nil // there is nothing to say of it
		}
		return answers(ctx, c, o, options...)
	}
	mayNot := func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
		return apierrors.NewForbidden(machinev1beta1.Resource("machines"), "master-0", errors.New("alice may not"))
	}
	fails := func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
		return apierrors.NewInternalError(errors.New(`failed calling webhook "guard-closed.machines.holdfast.dev": connection refused`))
	}
	without := func(kind, name string) interceptor.Funcs {
		return interceptor.Funcs{Delete: answers, Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if gvk, err := c.GroupVersionKindFor(o); err == nil && gvk.Kind == kind && key.Name == name {
				return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: strings.ToLower(kind) + "s"}, name)
			}
			return c.Get(ctx, key, o, options...)
		}}
	}
	unreadable := interceptor.Funcs{Delete: answers, Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
		if _, ok := o.(*admissionregistrationv1.MutatingWebhookConfiguration); ok {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "mutatingwebhookconfigurations"}, key.Name, errors.New("no"))
		}
		return c.Get(ctx, key, o, options...)
	}}
	deployment := func(ready int32) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast-system", Name: "holdfast", Labels: map[string]string{"app.kubernetes.io/name": "holdfast"}}}
		d.Spec.Replicas, d.Status.ReadyReplicas = ptr.To[int32](2), ready
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "manager", Image: "registry.example.com/holdfast:v1"}}
		return d
	}
	switchedOff := func() client.Object {
		d := deployment(0)
		d.Spec.Replicas = new(int32)
		return d
	}
	open, noCA := registered()[1].(*admissionregistrationv1.ValidatingWebhookConfiguration), registered()[0].(*admissionregistrationv1.MutatingWebhookConfiguration)
	open.Webhooks[0].FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	noCA.Webhooks[0].ClientConfig.CABundle = nil
	noCert, ended := registered()[0].(*admissionregistrationv1.MutatingWebhookConfiguration), registered()[0].(*admissionregistrationv1.MutatingWebhookConfiguration)
	noCert.Webhooks[0].ClientConfig.CABundle, ended.Webhooks[0].ClientConfig.CABundle = []byte("none"), caUntil(noon())
	narrowed := func(change func(*admissionregistrationv1.ValidatingWebhook)) client.Object {
		o := registered()[1].(*admissionregistrationv1.ValidatingWebhookConfiguration)
		change(&o.Webhooks[1])
		return o
	}
	byCondition := narrowed(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.MatchConditions = append(w.MatchConditions, admissionregistrationv1.MatchCondition{Name: "not-by-us", Expression: "false"})
	})
	byNamespace := narrowed(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"guard": "on"}}
	})
	byObject := narrowed(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"guard": "on"}}
	})
	byRule := narrowed(func(w *admissionregistrationv1.ValidatingWebhook) {
		w.Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Delete}
	})
	weak := map[string]client.Object{}
	for _, o := range registered() {
		switch o := o.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			o.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}
			if o.Name == registrations.MachinePolicy {
				o.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny, admissionregistrationv1.Audit}
				o.Spec.MatchResources = &admissionregistrationv1.MatchResources{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"guard": "on"}}}
			}
			weak["binding "+o.Name] = o
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			o.Spec.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
			if o.Name == registrations.StatusPolicy {
				o.Spec.FailurePolicy, o.Spec.Validations = ptr.To(admissionregistrationv1.Fail), o.Spec.Validations[1:]
			}
			weak["policy "+o.Name] = o
		}
	}
	failed := &machinev1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: "master-1-copy", UID: "uid-copy", Labels: controlPlane()[0].GetLabels()},
		Status:     machinev1beta1.MachineStatus{Phase: ptr.To(machinev1beta1.PhaseFailed)},
	}
	for name, c := range map[string]struct {
		args    string
		objects []client.Object
		funcs   interceptor.Funcs
		bare    bool
		old     bool
		status  int
	}{
		"check":              {args: "check", objects: []client.Object{deployment(2)}, funcs: interceptor.Funcs{Delete: answers}},
		"check-elsewhere":    {args: "check", funcs: interceptor.Funcs{Delete: answers}},
		"check-unregistered": {args: "check", funcs: without("ValidatingWebhookConfiguration", "holdfast"), status: 1},
		"check-unreadable":   {args: "check", funcs: unreadable, status: 1},
		"check-open":         {args: "check", objects: []client.Object{open}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-no-ca":        {args: "check", objects: []client.Object{noCA}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-no-cert":      {args: "check", objects: []client.Object{noCert}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-ca-ended":     {args: "check", objects: []client.Object{ended}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-condition":    {args: "check", objects: []client.Object{byCondition}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-namespace":    {args: "check", objects: []client.Object{byNamespace}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-object":       {args: "check", objects: []client.Object{byObject}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-rule":         {args: "check", objects: []client.Object{byRule}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-policy":       {args: "check", funcs: without("ValidatingAdmissionPolicyBinding", "holdfast-machines"), status: 1},
		"check-binding":      {args: "check", objects: []client.Object{weak["binding "+registrations.StatusPolicy]}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-bound":        {args: "check", objects: []client.Object{weak["binding "+registrations.MachinePolicy]}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-policy-open":  {args: "check", objects: []client.Object{weak["policy "+registrations.RecordsPolicy]}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-policy-less":  {args: "check", objects: []client.Object{weak["policy "+registrations.StatusPolicy]}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"check-warn":         {args: "check", objects: registeredTo(admission.Warn), funcs: interceptor.Funcs{Delete: silent}, status: 1},
		"check-audit":        {args: "check", objects: registeredTo(admission.Audit), funcs: interceptor.Funcs{Delete: silent}, status: 1},
		"check-audit-wait":   {args: "check --wait --timeout 1ms", objects: registeredTo(admission.Audit), funcs: interceptor.Funcs{Delete: silent}, status: 1},
		"explain-audit":      {args: "explain master-0", objects: registeredTo(admission.Audit)},
		"guard-audit":        {args: "status", objects: registeredTo(admission.Audit)},
		"check-replica":      {args: "check", objects: []client.Object{deployment(1)}, funcs: interceptor.Funcs{Delete: answers}},
		"check-none-ready":   {args: "check", objects: []client.Object{deployment(0)}, funcs: interceptor.Funcs{Delete: answers}, status: 1},
		"guard-off":          {args: "status", objects: []client.Object{switchedOff()}, funcs: without("ValidatingWebhookConfiguration", "holdfast")},
		"check-none-elected": {args: "check", funcs: interceptor.Funcs{Delete: answers}, old: true, status: 1},
		"check-bare":         {args: "check", funcs: interceptor.Funcs{Delete: hooked}, bare: true, status: 1},
		"check-failed":       {args: "check", objects: []client.Object{failed}, funcs: interceptor.Funcs{Delete: answers}},
		"check-silent":       {args: "check", funcs: interceptor.Funcs{Delete: silent}, status: 1},
		"check-may-not":      {args: "check", funcs: interceptor.Funcs{Delete: mayNot}, status: 1},
		"check-unreached":    {args: "check", funcs: interceptor.Funcs{Delete: fails}, status: 1},
		"check-wait":         {args: "check --wait --timeout 1ms", funcs: interceptor.Funcs{Delete: silent}, status: 1},
		"guard-status":       {args: "status", funcs: without("ValidatingWebhookConfiguration", "holdfast")},
		"guard-explain":      {args: "explain master-0", funcs: without("ValidatingWebhookConfiguration", "holdfast")},
	} {
		t.Run(name, func(t *testing.T) {
			objects := controlPlane()
			if c.bare {
				m := objects[0].(*machinev1beta1.Machine)
				m.Spec.LifecycleHooks, m.Finalizers = machinev1beta1.LifecycleHooks{}, nil
			}
			reported := now.Add(-3 * time.Second)
			if c.old {
				reported = now.Add(-time.Hour)
			}
			api := memory(t, "alice", c.funcs, append(append(objects, c.objects...), reportOf(t, "waiting", reported, nil))...)
			var out, errs bytes.Buffer
			status := execute(t.Context(), strings.Fields(c.args), terminal{strings.NewReader(""), &out, &errs, func() time.Time { return now }, fakes{api, ""}})
			if status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			text := strings.ReplaceAll(out.String(), "kubectl-holdfast "+cli.Version(), "kubectl-holdfast VERSION")
			golden(t, name+".txt", "$ kubectl holdfast "+c.args+"\n"+text+errs.String())
		})
	}
}

// caUntil is a certificate, PEM, that is valid until then.
func caUntil(ends time.Time) []byte {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: ends.AddDate(-1, 0, 0), NotAfter: ends, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
