package main

import (
	"context"
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// besideEtcdOperator says what shows that cluster-etcd-operator is at work, "" where nothing does: its
// Deployment, unless that is scaled to 0, or without one its ClusterOperator.
func besideEtcdOperator(ctx context.Context, api client.Reader) (string, error) {
	key := client.ObjectKey{Namespace: "openshift-etcd-operator", Name: "etcd-operator"}
	var d appsv1.Deployment
	switch err := api.Get(ctx, key, &d); {
	case err == nil && d.Spec.Replicas != nil && *d.Spec.Replicas == 0:
		return "", nil
	case err == nil:
		return "Deployment " + key.String(), nil
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("see whether cluster-etcd-operator runs (Deployment %s): %w", key, err)
	}
	switch err := api.Get(ctx, client.ObjectKey{Name: "etcd"}, &configv1.ClusterOperator{}); {
	case err == nil:
		return "ClusterOperator etcd", nil
	case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return "", fmt.Errorf("see whether cluster-etcd-operator runs (ClusterOperator etcd): %w", err)
	}
	return "", nil
}
