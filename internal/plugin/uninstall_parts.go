package plugin

import (
	"context"
	"fmt"
	"slices"

	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

// part is an object of an installation. Its name is NAMESPACE/NAME if it is in a namespace.
type part struct {
	kind schema.GroupVersionKind
	name string
}

func (p part) String() string { return p.kind.Kind + " " + p.name }

func (p part) object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(p.kind)
	namespace, name, _ := cache.SplitMetaNamespaceKey(p.name) // a name with more slashes is none of ours
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

func parts(version schema.GroupVersion, kind string, names ...string) (out []part) {
	for _, name := range names {
		out = append(out, part{version.WithKind(kind), name})
	}
	return out
}

func webhookConfigurations() []part {
	return append(
		parts(admissionregistrationv1.SchemeGroupVersion, "ValidatingWebhookConfiguration", registrations.Name),
		parts(admissionregistrationv1.SchemeGroupVersion, "MutatingWebhookConfiguration", registrations.Name)...)
}

// policies are the bindings before what they bind.
func policies() []part {
	return append(
		parts(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicyBinding", registrations.PolicyNames()...),
		parts(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicy", registrations.PolicyNames()...)...)
}

// healthCheck is the one that Holdfast keeps for its set.
func healthCheck(machines string) []part {
	return parts(machinev1beta1.GroupVersion, "MachineHealthCheck", machines+"/"+cpms.HealthCheckName)
}

// others are what Holdfast and its manifests made besides: first what it keeps elsewhere, then its rights, with the bindings before what they
// bind, then its namespace.
func others(machines, holdfast string) []part {
	const own, full = "holdfast", "holdfast-full-mode"
	rights := []string{
		machines + "/" + own, "kube-system/" + own, metav1.NamespaceDefault + "/" + own, etcdNamespace + "/" + own,
		machines + "/" + full, "kube-system/" + full, etcdNamespace + "/holdfast-membership", etcdNamespace + "/" + machineapi.GuardName,
	}
	return slices.Concat(
		parts(policyv1.SchemeGroupVersion, "PodDisruptionBudget", etcdNamespace+"/"+machineapi.GuardName),
		parts(corev1.SchemeGroupVersion, "ServiceAccount", etcdNamespace+"/"+machineapi.GuardName),
		parts(corev1.SchemeGroupVersion, "ConfigMap", machines+"/"+machineapi.RecordsName, machines+"/"+machineapi.LedgerName, "openshift-config-managed/dashboard-holdfast"),
		parts(configv1.SchemeGroupVersion, "ClusterOperator", "holdfast"),
		parts(flowcontrolv1.SchemeGroupVersion, "FlowSchema", "holdfast"),
		parts(rbacv1.SchemeGroupVersion, "RoleBinding", append(rights, etcdNamespace+"/"+machineapi.GuardName+"-network")...),
		parts(rbacv1.SchemeGroupVersion, "Role", rights...),
		parts(rbacv1.SchemeGroupVersion, "ClusterRoleBinding", own, full),
		parts(rbacv1.SchemeGroupVersion, "ClusterRole", own, full),
		parts(corev1.SchemeGroupVersion, "Namespace", holdfast),
	)
}

// standing are those of the parts that exist. Kinds that the cluster does not have do not.
func standing(ctx context.Context, api client.Client, all []part) ([]part, error) {
	var out []part
	for _, p := range all {
		o := p.object()
		switch err := api.Get(ctx, client.ObjectKeyFromObject(o), o); {
		case err == nil:
			out = append(out, p)
		case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
			return nil, fmt.Errorf("read %s: %w", p, err)
		}
	}
	return out, nil
}
