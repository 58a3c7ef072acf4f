package observe

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// BootstrapAnnotation on the ConfigMap of etcd's endpoints is the address of the bootstrap member, as OpenShift's installer writes it.
const BootstrapAnnotation = "alpha.installer.openshift.io/etcd-bootstrap"

// needed reads what a voter that is to go is still needed for: the installer's bootstrap member while the installation lasts, and any one
// while API servers may know of no other.
func (o *Observer) needed(ctx context.Context, s *quorum.Snapshot) (err error) {
	join := quorum.NewJoin(s)
	bootstrap := hosted(join, func(h *quorum.Host) bool { return len(h.Machines)+len(h.Nodes) == 0 }) // no other can be that member
	if bootstrap {
		if s.Bootstrap, err = o.bootstrap(ctx); err != nil {
			return err
		}
		join = quorum.NewJoin(s)
		bootstrap = hosted(join, func(h *quorum.Host) bool { return h.Bootstrap })
	}
	if o.Mode != quorum.ModeFull {
		return nil
	}
	if bootstrap {
		s.BootstrapWaits = o.bootstrapWaits(ctx)
	}
	if voters, _ := s.Ring.Voters(); bootstrap || voters > s.Desired && hosted(join, leaves) {
		s.APIServersWait = o.apiServersWait(ctx, join)
	}
	return nil
}

// leaves reports whether a member is to go from its host.
func leaves(h *quorum.Host) bool {
	m := h.Machine()
	return h.Bootstrap || h.Departed != nil || m != nil && m.Deleting()
}

// hosted reports whether a member has such a host.
func hosted(join *quorum.Join, is func(*quorum.Host) bool) bool {
	s := join.Snapshot()
	for k := range s.Ring.Members {
		if is(join.Host(&s.Ring.Members[k])) {
			return true
		}
	}
	return false
}

// bootstrap is the address that the endpoints object is marked with, the zero value without.
func (o *Observer) bootstrap(ctx context.Context) (netip.Addr, error) {
	if o.EtcdNamespace == "" {
		return netip.Addr{}, nil
	}
	key := client.ObjectKey{Namespace: o.EtcdNamespace, Name: hostenv.EndpointsName}
	var cm corev1.ConfigMap
	if err := o.API.Get(ctx, key, &cm); apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return netip.Addr{}, nil // nothing can be granted in a namespace that does not exist
	} else if err != nil {
		return netip.Addr{}, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	// A mark that is no address marks nothing: the member's host is then unknown, which holds.
	at, _ := netip.ParseAddr(cm.Annotations[BootstrapAnnotation])
	return at, nil
}

// bootstrapWaits says what the bootstrap member has to wait for, "" for nothing. If a fact cannot be read, the member waits.
func (o *Observer) bootstrapWaits(ctx context.Context) string {
	// OpenShift's installer makes it when the control plane runs without its bootstrap host: its status is "complete" then.
	key := client.ObjectKey{Namespace: "kube-system", Name: "bootstrap"}
	var cm corev1.ConfigMap
	err := o.API.Get(ctx, key, &cm)
	switch status := cm.Data["status"]; {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("ConfigMap %s does not exist, which the installer makes when it has finished; if it has: kubectl -n %s create configmap %s --from-literal=status=complete", key, key.Namespace, key.Name)
	case err != nil:
		return fmt.Sprintf("ConfigMap %s, which says whether the installer has finished, cannot be read: %v", key, err)
	case status != "complete":
		return fmt.Sprintf("the installer has not finished: ConfigMap %s has status %q, not \"complete\"", key, status)
	}
	return ""
}

// apiServersWait says which voter the platform's API servers do not know of yet, "" for none. Without a
// KubeAPIServer object there is nothing to wait for.
func (o *Observer) apiServersWait(ctx context.Context, join *quorum.Join) string {
	servers := &unstructured.Unstructured{}
	servers.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.openshift.io", Version: "v1", Kind: "KubeAPIServer"})
	err := o.API.Get(ctx, client.ObjectKey{Name: "cluster"}, servers)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return ""
	case err != nil:
		return fmt.Sprintf("KubeAPIServer cluster, which says which etcd members the API servers know of, cannot be read: %v", err)
	}
	urls, _, err := unstructured.NestedStringSlice(servers.Object, "spec", "observedConfig", "apiServerArguments", "etcd-servers")
	if err != nil {
		return fmt.Sprintf("KubeAPIServer cluster: %v", err)
	}
	var known []string
	for _, raw := range urls {
		if u, err := url.Parse(raw); err == nil {
			known = append(known, u.Hostname())
		}
	}
	s := join.Snapshot()
	for k := range s.Ring.Members {
		m := &s.Ring.Members[k]
		if m.Learner || leaves(join.Host(m)) {
			continue
		}
		if !slices.ContainsFunc(m.ClientURLs, func(raw string) bool {
			u, err := url.Parse(raw)
			return err == nil && slices.Contains(known, u.Hostname())
		}) {
			return fmt.Sprintf("the API servers do not know %s yet: KubeAPIServer cluster has etcd-servers %s", m, strings.Join(urls, ", "))
		}
	}
	return revisionsWait(servers, join)
}

// revisionsWait says which Node's API server does not run the latest configuration yet, "" for none. A Node that is on its way out
// may never run it.
func revisionsWait(servers *unstructured.Unstructured, join *quorum.Join) string {
	latest, _, err := unstructured.NestedInt64(servers.Object, "status", "latestAvailableRevision")
	if err != nil {
		return fmt.Sprintf("KubeAPIServer cluster: %v", err)
	}
	nodes, _, err := unstructured.NestedSlice(servers.Object, "status", "nodeStatuses")
	if err != nil {
		return fmt.Sprintf("KubeAPIServer cluster: %v", err)
	}
	if len(nodes) == 0 {
		return "KubeAPIServer cluster does not say yet which revision of its configuration each Node's API server runs"
	}
	for _, raw := range nodes {
		node, _ := raw.(map[string]any)
		name, _, _ := unstructured.NestedString(node, "nodeName")
		if n := join.Snapshot().Node(name); n != nil {
			if owner := join.Owner(n); owner != nil && owner.Deleting() {
				continue
			}
		}
		if at, _, err := unstructured.NestedInt64(node, "currentRevision"); err != nil || at != latest {
			return fmt.Sprintf("the API server of Node %s runs revision %d of its configuration, and the latest is %d", name, at, latest)
		}
	}
	return ""
}
