package observe

import (
	"context"
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Set is the control plane's ControlPlaneMachineSet, as it was read with a Snapshot.
type Set struct {
	Object         *machinev1.ControlPlaneMachineSet
	Infrastructure *configv1.Infrastructure // nil without one
	Trial          cpms.Trial
	Facts          *machineset.Set
	// MachineVersions are the resourceVersions of the Machines that it was compared with, by UID.
	MachineVersions map[types.UID]string
}

// SnapshotWithSet reads a Snapshot and the ControlPlaneMachineSet beside it, which is nil where there is none. The set is read first: what
// is decided by it is written only if it is still the one that was read.
func (o *Observer) SnapshotWithSet(ctx context.Context) (*quorum.Snapshot, *Set, error) {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	set := &Set{Object: &machinev1.ControlPlaneMachineSet{}}
	switch err := o.API.Get(ctx, o.setKey(), set.Object); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read ControlPlaneMachineSet %s: %w", o.setKey(), err)
	}
	var infra configv1.Infrastructure
	switch err := o.API.Get(ctx, client.ObjectKey{Name: "cluster"}, &infra); {
	case err == nil:
		set.Infrastructure = &infra
	case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return nil, nil, fmt.Errorf("read Infrastructure cluster: %w", err)
	}
	s, objects, err := o.snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	operator, why := o.SetOperator(ctx)
	set.Trial = o.try(whole, set)
	set.Facts = cpms.Read(set.Object, objects, set.Infrastructure, set.Trial)
	set.MachineVersions = make(map[types.UID]string, len(objects))
	for i := range objects {
		set.MachineVersions[objects[i].UID] = objects[i].ResourceVersion
	}
	if set.Facts.OtherOperator = operator; why != nil {
		set.Facts.OperatorWhy = why.Error()
	}
	return s, set, nil
}

// try finds out what the API server makes of the Machines that a set would create: webhooks fill in what the template leaves out. A set that
// cannot be read has none. A webhook that is slow or gone delays nothing but the trial.
func (o *Observer) try(ctx context.Context, set *Set) cpms.Trial {
	machines, err := cpms.Trials(set.Object, set.Infrastructure)
	if err != nil {
		return cpms.Trial{}
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range machines {
		group.Go(func() error { return o.Tries.Create(ctx, m, client.DryRunAll) })
	}
	if err := group.Wait(); err != nil {
		return cpms.Trial{Why: fmt.Sprintf("a Machine of the set's template was refused in a trial: %v", err)}
	}
	return cpms.Trial{Machines: machines}
}

func (o *Observer) setKey() client.ObjectKey {
	return client.ObjectKey{Namespace: o.Namespace, Name: cpms.Name}
}

// SetOperator says what shows that the platform's control plane machine set operator is here, "" where nothing does: its Deployment, or
// without one its ClusterOperator. A Deployment that is scaled to 0 counts: the version operator scales it up again.
func (o *Observer) SetOperator(ctx context.Context) (string, error) {
	const name = "control-plane-machine-set"
	return sign(ctx, o.API, "the control plane machine set operator", client.ObjectKey{Namespace: o.Namespace, Name: name + "-operator"}, name)
}

// EtcdOperator says what shows that cluster-etcd-operator is here, "" where nothing does: its Deployment, or
// without one its ClusterOperator. A Deployment that is scaled to 0 counts: the version operator scales it up
// again.
func EtcdOperator(ctx context.Context, api client.Reader) (string, error) {
	return sign(ctx, api, "cluster-etcd-operator", client.ObjectKey{Namespace: "openshift-etcd-operator", Name: "etcd-operator"}, "etcd")
}

// sign is what shows that an operator of the platform's is here: its Deployment, or without one its ClusterOperator. name is for people.
func sign(ctx context.Context, api client.Reader, name string, deployment client.ObjectKey, operator string) (string, error) {
	switch err := api.Get(ctx, deployment, &appsv1.Deployment{}); {
	case err == nil:
		return "Deployment " + deployment.String(), nil
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("see whether %s is here (Deployment %s): %w", name, deployment, err)
	}
	switch err := api.Get(ctx, client.ObjectKey{Name: operator}, &configv1.ClusterOperator{}); {
	case err == nil:
		return "ClusterOperator " + operator, nil
	case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
		return "", fmt.Errorf("see whether %s is here (ClusterOperator %s): %w", name, operator, err)
	}
	return "", nil
}

// wantedBySet is what the set that Holdfast reconciles wants, nil where there is none. An error holds the membership as it is.
func (o *Observer) wantedBySet(ctx context.Context) (*machineset.Set, error) {
	var object machinev1.ControlPlaneMachineSet
	switch err := o.API.Get(ctx, o.setKey(), &object); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read ControlPlaneMachineSet %s: %w", o.setKey(), err)
	}
	set, err := cpms.Wanted(&object)
	if err != nil {
		return nil, fmt.Errorf("ControlPlaneMachineSet %s: %w", o.setKey(), err)
	}
	return set, nil
}
