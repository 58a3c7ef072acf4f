package observe

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// EtcdOperator says what shows that cluster-etcd-operator is here, "" where nothing does: its Deployment, or
// without one its ClusterOperator. A Deployment that is scaled to 0 counts: the version operator scales it up
// again.
func EtcdOperator(ctx context.Context, api client.Reader) (string, error) {
	return sign(ctx, api, "cluster-etcd-operator", client.ObjectKey{Namespace: "openshift-etcd-operator", Name: "etcd-operator"}, "etcd")
}
