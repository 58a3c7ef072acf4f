package flux_test

import (
	"context"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/gitops"
)

// TestInstall installs Holdfast as the Kustomization of deploy/examples/flux says.
func TestInstall(t *testing.T) {
	kustomization := gitops.Example(t, "flux/holdfast.yaml")["Kustomization"]
	if prune, found, err := unstructured.NestedBool(kustomization.Object, "spec", "prune"); prune || !found || err != nil {
		t.Fatalf("the Kustomization prunes: %t, %v", prune, err)
	}
	images, _, err := unstructured.NestedSlice(kustomization.Object, "spec", "images")
	if err != nil || len(images) != 1 {
		t.Fatalf("the Kustomization's images are %v, %v", images, err)
	}
	image := &unstructured.Unstructured{Object: images[0].(map[string]any)}

	c := gitops.StartBare(t)
	kube, err := client.New(c.Config(t, gitops.GitOps), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	poller := polling.NewStatusPoller(kube, kube.RESTMapper(), polling.Options{})
	resources := ssa.NewResourceManager(kube, poller, ssa.Owner{Field: "kustomize-controller", Group: "kustomize.toolkit.fluxcd.io"})
	owned := func(objects []*unstructured.Unstructured) (out []*unstructured.Unstructured) {
		for _, o := range objects {
			out = append(out, o.DeepCopy())
		}
		resources.SetOwnerLabels(out, kustomization.GetName(), kustomization.GetNamespace())
		return out
	}
	gitops.Install(t, c, gitops.Installer{
		Path:  strings.TrimPrefix(gitops.Field(t, kustomization, "spec", "path"), "./"),
		Image: gitops.Field(t, image, "newName") + ":" + gitops.Field(t, image, "newTag"),
		Sync: func(ctx context.Context, objects []*unstructured.Unstructured) error {
			_, err := resources.ApplyAllStaged(ctx, owned(objects), ssa.DefaultApplyOptions())
			return err
		},
		Drifted: func(ctx context.Context, objects []*unstructured.Unstructured) (drifted []string, err error) {
			for _, o := range owned(objects) {
				change, _, _, err := resources.Diff(ctx, o, ssa.DiffOptions{})
				if err != nil {
					return nil, err
				}
				if change.Action != ssa.UnchangedAction {
					drifted = append(drifted, o.GetKind()+" "+o.GetName())
				}
			}
			return drifted, nil
		},
	})
}
