package argocd_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	argodiff "github.com/argoproj/argo-cd/v3/util/argo/diff"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/holdfast-dev/holdfast/test/gitops"
)

// TestInstall installs Holdfast as the Application of deploy/examples/argocd says.
func TestInstall(t *testing.T) {
	application := &v1alpha1.Application{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(gitops.Example(t, "argocd/application.yaml")["Application"].Object, application, true); err != nil {
		t.Fatal(err)
	}
	spec := application.Spec
	if len(spec.Source.Kustomize.Images) != 1 || spec.SyncPolicy.Automated.Prune {
		t.Fatalf("the Application has the images %v and prunes: %t", spec.Source.Kustomize.Images, spec.SyncPolicy.Automated.Prune)
	}
	image := strings.TrimPrefix(string(spec.Source.Kustomize.Images[0]), "holdfast=")
	s := settings{serverSideApply: slices.Contains(spec.SyncPolicy.SyncOptions, "ServerSideApply=true")}

	c := gitops.StartBare(t)
	e := newEngine(t, c.Config(t, gitops.GitOps))
	gitops.Install(t, c, gitops.Installer{
		Path: spec.Source.Path, Image: image,
		Sync: func(ctx context.Context, objects []*unstructured.Unstructured) error {
			return e.syncAll(ctx, objects, spec.Destination.Namespace, s)
		},
		Drifted: func(ctx context.Context, objects []*unstructured.Unstructured) (drifted []string, err error) {
			config, err := e.diffConfig(s)
			if err != nil {
				return nil, err
			}
			lives, err := e.live(ctx, objects)
			if err != nil {
				return nil, err
			}
			for i, o := range objects {
				result, err := argodiff.StateDiff(lives[i], track(o), config)
				if err != nil {
					return nil, err
				}
				if result.Modified {
					drifted = append(drifted, o.GetKind()+" "+o.GetName())
				}
			}
			return drifted, nil
		},
	})
}

// live are the objects as they are in the cluster, nil for what is not there.
func (e *engine) live(ctx context.Context, objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	lives := make([]*unstructured.Unstructured, len(objects))
	for i, o := range objects {
		live, err := e.kubectl.GetResource(ctx, e.config, o.GroupVersionKind(), o.GetName(), o.GetNamespace())
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err == nil {
			lives[i] = live
		}
	}
	return lives, nil
}

// syncAll is one sync operation of an Application with these objects.
func (e *engine) syncAll(ctx context.Context, objects []*unstructured.Unstructured, namespace string, s settings) error {
	lives, err := e.live(ctx, objects)
	if err != nil {
		return err
	}
	targets := make([]*unstructured.Unstructured, len(objects))
	for i, o := range objects {
		targets[i] = track(o)
	}
	return e.operate(lives, targets, namespace, s)
}
