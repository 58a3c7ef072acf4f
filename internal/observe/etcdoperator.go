package observe

import (
	"context"
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// EtcdOperator says what shows that cluster-etcd-operator is here, "" where nothing does: its Deployment, or
// without one its ClusterOperator. A Deployment that is scaled to 0 counts: the version operator scales it up
// again.
func EtcdOperator(ctx context.Context, api client.Reader) (string, error) {
	key := client.ObjectKey{Namespace: "openshift-etcd-operator", Name: "etcd-operator"}
	switch err := api.Get(ctx, key, &appsv1.Deployment{}); {
	case err == nil:
		return "Deployment " + key.String(), nil
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("see whether cluster-etcd-operator is here (Deployment %s): %w", key, err)
	}
	switch err := api.Get(ctx, client.ObjectKey{Name: "etcd"}, &configv1.ClusterOperator{}); {
	case err == nil:
		return "ClusterOperator etcd", nil
	case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return "", fmt.Errorf("see whether cluster-etcd-operator is here (ClusterOperator etcd): %w", err)
	}
	return "", nil
}
