package flux_test

import (
	"context"
	"testing"

	"github.com/fluxcd/pkg/ssa"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/gitops"
)

func TestFlux(t *testing.T) {
	c := gitops.Start(t)
	kube, err := client.New(c.Config(t, gitops.GitOps), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const manager = "kustomize-controller"
	resources := ssa.NewResourceManager(kube, nil, ssa.Owner{Field: manager, Group: "kustomize.toolkit.fluxcd.io"})

	// As kustomize-controller sets them for `force: true`: other managers' fields are taken over.
	apply := ssa.DefaultApplyOptions()
	apply.Force = true
	apply.Cleanup = ssa.ApplyCleanupOptions{
		Annotations: []string{"kubectl.kubernetes.io/last-applied-configuration"},
		FieldManagers: []ssa.FieldManager{
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationApply},
			{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: "before-first-apply", OperationType: metav1.ManagedFieldsOperationUpdate},
			{Name: manager, OperationType: metav1.ManagedFieldsOperationUpdate},
		},
	}
	owned := func(m *unstructured.Unstructured) []*unstructured.Unstructured {
		objects := []*unstructured.Unstructured{m}
		resources.SetOwnerLabels(objects, "control-plane", "flux-system")
		return objects
	}
	flux := gitops.Tool{
		Name:      "Flux with force",
		Manifests: append(gitops.Manifests(), gitops.OtherRole),
		Sync: func(ctx context.Context, m *unstructured.Unstructured) error {
			_, err := resources.ApplyAll(ctx, owned(m), apply)
			return err
		},
		Drifted: func(ctx context.Context, m *unstructured.Unstructured) (bool, error) {
			change, _, _, err := resources.Diff(ctx, owned(m)[0], ssa.DiffOptions{})
			if err != nil {
				return false, err
			}
			return change.Action != ssa.UnchangedAction, nil
		},
		Refused: []gitops.Manifest{gitops.OtherRole},
	}
	gitops.Run(t, c, flux)
}
