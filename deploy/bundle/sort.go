package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// parts are an overlay's objects, by where they go.
type parts struct {
	deployment *unstructured.Unstructured
	namespace  *unstructured.Unstructured
	account    string // the service account of the Deployment, which OLM makes
	everywhere []any  // rules of what the account may do in every namespace and outside of them
	own        []any  // and in its own namespace
	manifests  []*unstructured.Unstructured
	beside     []*unstructured.Unstructured // what OLM does not take
}

// sortOut says where each object goes. It fails for an object of an unknown kind.
func sortOut(objects []*unstructured.Unstructured) (*parts, error) {
	p := &parts{}
	for _, o := range objects {
		switch o.GetKind() {
		case "Deployment":
			if p.deployment != nil {
				return nil, errors.New("several Deployments")
			}
			p.deployment = o
		case "Namespace":
			p.namespace = o
		}
	}
	if p.deployment == nil || p.namespace == nil || p.namespace.GetName() != p.deployment.GetNamespace() {
		return nil, errors.New("no Deployment and its Namespace")
	}
	var err error
	if p.account, _, err = unstructured.NestedString(p.deployment.Object, "spec", "template", "spec", "serviceAccountName"); err != nil || p.account == "" {
		return nil, errors.Join(errors.New("the Deployment names no service account"), err)
	}
	for _, o := range objects {
		if err := p.put(o); err != nil {
			return nil, err
		}
	}
	return p, p.grant(objects)
}

// put puts an object where it goes, unless it is about rights.
func (p *parts) put(o *unstructured.Unstructured) error {
	ours := o.GetNamespace() == p.namespace.GetName()
	switch kind := o.GetKind(); {
	case kind == "Deployment":
	case kind == "ServiceAccount" && ours && o.GetName() == p.account: // OLM makes it
	case slices.Contains([]string{"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}, kind):
	// OLM puts whatever is in a bundle into the namespace that it installs in.
	case slices.Contains([]string{"Service", "PodDisruptionBudget", "PrometheusRule", "ServiceMonitor"}, kind) && ours:
		p.manifests = append(p.manifests, o)
	// A bundle may have no Namespace. OLM before OpenShift 4.20 may not know NetworkPolicies, and then installs nothing of a
	// bundle that has one, and none takes a FlowSchema. The dashboard is a ConfigMap in a namespace of the console's.
	case kind == "Namespace", kind == "NetworkPolicy", kind == "FlowSchema", kind == "ConfigMap" && !ours:
		p.beside = append(p.beside, o)
	default:
		return fmt.Errorf("%s: nobody has said where such an object goes: into the bundle, or beside it", name(o))
	}
	return nil
}

// grant finds what the bindings allow. OLM makes no Roles in other namespaces: what the account may do in one of those, it
// may do everywhere.
func (p *parts) grant(objects []*unstructured.Unstructured) error {
	unbound := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		if o.GetKind() == "Role" || o.GetKind() == "ClusterRole" {
			unbound[name(o)] = o
		}
	}
	for _, binding := range objects {
		if !strings.HasSuffix(binding.GetKind(), "RoleBinding") {
			continue
		}
		kind, _, _ := unstructured.NestedString(binding.Object, "roleRef", "kind")
		of, _, _ := unstructured.NestedString(binding.Object, "roleRef", "name")
		role := &unstructured.Unstructured{}
		role.SetKind(kind)
		role.SetName(of)
		if kind == "Role" {
			role.SetNamespace(binding.GetNamespace())
		}
		bound, is := unbound[name(role)]
		if !is {
			return fmt.Errorf("%s: %s is not here, or bound by another binding, too", name(binding), name(role))
		}
		delete(unbound, name(role))
		if err := p.bind(binding, bound); err != nil {
			return fmt.Errorf("%s: %w", name(binding), err)
		}
	}
	for role := range unbound {
		return fmt.Errorf("%s is bound to nobody", role)
	}
	return nil
}

func (p *parts) bind(binding, role *unstructured.Unstructured) error {
	subjects, _, err := unstructured.NestedSlice(binding.Object, "subjects")
	if err != nil {
		return err
	}
	rules, _, err := unstructured.NestedSlice(role.Object, "rules")
	if err != nil {
		return err
	}
	ours := binding.GetNamespace() == p.namespace.GetName()
	account := map[string]any{"kind": "ServiceAccount", "name": p.account, "namespace": p.namespace.GetName()}
	mine := slices.ContainsFunc(subjects, func(s any) bool { return reflect.DeepEqual(s, account) })
	switch {
	case mine && len(subjects) > 1:
		return errors.New("it is for others than Holdfast, too")
	case mine && ours:
		p.own = append(p.own, rules...)
	case mine:
		for _, rule := range rules {
			if !slices.ContainsFunc(p.everywhere, func(have any) bool { return reflect.DeepEqual(have, rule) }) {
				p.everywhere = append(p.everywhere, rule)
			}
		}
	case ours: // cluster monitoring's
		p.manifests = append(p.manifests, role, binding)
	default:
		return errors.New("it is for others than Holdfast, in another namespace")
	}
	return nil
}

// name says which object it is.
func name(o *unstructured.Unstructured) string {
	return strings.Join([]string{o.GetKind(), o.GetNamespace(), o.GetName()}, "/")
}
