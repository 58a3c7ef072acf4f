package argocd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	argodiff "github.com/argoproj/argo-cd/v3/util/argo/diff"
	"github.com/argoproj/argo-cd/v3/util/argo/normalizers"
	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/tracing"
	jsonpatch "github.com/evanphx/json-patch"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/util/openapi"

	"github.com/holdfast-dev/holdfast/test/gitops"
)

// manager is the field manager of Argo CD's server-side apply.
const manager = "argocd-controller"

func TestArgoCD(t *testing.T) {
	c := gitops.Start(t)
	e := newEngine(t, c.Config(t, gitops.GitOps))
	// The engine's kubectl prints Holdfast's Warnings through client-go's default handler.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	gitops.Run(t, c,
		e.tool(settings{}, gitops.Tool{
			Name:      "Argo CD",
			Manifests: gitops.Manifests(),
			// It takes a list as one value.
			Drifts: []gitops.Manifest{gitops.OwnHook, gitops.Voter},
		}),
		e.tool(settings{serverSideApply: true}, gitops.Tool{
			Name:      "Argo CD, ServerSideApply=true",
			Manifests: gitops.Manifests(),
		}),
		e.tool(settings{replace: true}, gitops.Tool{
			Name:      "Argo CD, Replace=true",
			Manifests: gitops.Replaced(),
			// It takes the finalizer out where Git has none, and that is refused.
			Refused: []gitops.Manifest{gitops.NoHooks, gitops.OwnHook},
			Drifts:  []gitops.Manifest{gitops.WithFinalizer, gitops.Voter},
		}),
		e.tool(settings{force: true}, gitops.Tool{
			Name:      "Argo CD, Force=true",
			Manifests: []gitops.Manifest{gitops.OtherRole},
			Refused:   []gitops.Manifest{gitops.OtherRole},
		}),

		// What quiets it.
		e.tool(settings{ignores: ignores()}, gitops.Tool{
			Name:      "Argo CD, ignoreDifferences",
			Manifests: []gitops.Manifest{gitops.NoHooks, gitops.OwnHook, gitops.OlderRevision, gitops.Voter},
		}),
		e.tool(settings{replace: true, ignores: ignores()}, gitops.Tool{
			Name:      "Argo CD, Replace=true, ignoreDifferences",
			Manifests: []gitops.Manifest{gitops.WithFinalizer},
		}),
		e.tool(settings{serverSideApply: true, serverSideDiff: true}, gitops.Tool{
			Name:      "Argo CD, ServerSideApply=true, ServerSideDiff=true",
			Manifests: []gitops.Manifest{gitops.OwnHook},
		}),

		// What makes it worse: the live list takes the place of the one in Git, as a whole.
		e.tool(settings{ignores: ignores(), respectIgnores: true}, gitops.Tool{
			Name:      "Argo CD, ignoreDifferences, RespectIgnoreDifferences=true",
			Manifests: []gitops.Manifest{gitops.NoHooks, gitops.OwnHook},
			Drifts:    []gitops.Manifest{gitops.NoHooks, gitops.OwnHook},
			Withheld:  []gitops.Manifest{gitops.OwnHook},
		}),
	)
}

// ignores are the ignoreDifferences that docs/gitops.md gives.
func ignores() []v1alpha1.ResourceIgnoreDifferences {
	return []v1alpha1.ResourceIgnoreDifferences{{
		Group: "machine.openshift.io",
		Kind:  "Machine",
		JQPathExpressions: []string{
			`.spec.lifecycleHooks.preDrain[]? | select(.name == "EtcdQuorumOperator")`,
			`.spec.lifecycleHooks.preTerminate[]? | select(.name == "EtcdQuorumLatch")`,
		},
	}}
}

// settings are an Application's.
type settings struct {
	replace, serverSideApply, force bool // sync options
	serverSideDiff                  bool // compare option
	ignores                         []v1alpha1.ResourceIgnoreDifferences
	respectIgnores                  bool // sync option
}

// engine syncs one Machine as Argo CD's application controller does.
type engine struct {
	config   *rest.Config
	kubectl  kube.Kubectl
	schema   openapi.Resources
	parser   *managedfields.GvkParser
	dryRun   diff.ServerSideDryRunner
	machines dynamic.ResourceInterface
}

func newEngine(t *testing.T, config *rest.Config) *engine {
	t.Helper()
	e := &engine{config: config, kubectl: &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}}
	var err error
	if e.schema, e.parser, err = e.kubectl.LoadOpenAPISchema(config); err != nil {
		t.Fatal(err)
	}
	applier, cleanup, err := kube.ManageServerSideDiffDryRuns(config, e.schema, tracing.NopTracer{}, logr.Discard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cleanup)
	e.dryRun = diff.NewK8sServerSideDryRunner(applier)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	e.machines = client.Resource(schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}).Namespace("openshift-machine-api")
	return e
}

// tool completes a Tool with an Application's settings.
func (e *engine) tool(s settings, tool gitops.Tool) gitops.Tool {
	tool.Sync = func(ctx context.Context, m *unstructured.Unstructured) error { return e.sync(ctx, m, s) }
	tool.Drifted = func(ctx context.Context, m *unstructured.Unstructured) (bool, error) {
		live, err := e.machines.Get(ctx, m.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		config, err := e.diffConfig(s)
		if err != nil {
			return false, err
		}
		result, err := argodiff.StateDiff(live, track(m), config)
		return result.Modified, err
	}
	return tool
}

// track is what Argo CD adds to each object by default.
func track(m *unstructured.Unstructured) *unstructured.Unstructured {
	m = m.DeepCopy()
	annotations := m.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations["argocd.argoproj.io/tracking-id"] = "control-plane:machine.openshift.io/Machine:" + m.GetNamespace() + "/" + m.GetName()
	m.SetAnnotations(annotations)
	return m
}

func (e *engine) diffConfig(s settings) (argodiff.DiffConfig, error) {
	ignores := slices.Clone(s.ignores)
	if ignores == nil {
		ignores = []v1alpha1.ResourceIgnoreDifferences{}
	}
	return argodiff.NewDiffConfigBuilder().
		WithDiffSettings(ignores, map[string]v1alpha1.ResourceOverride{}, false, normalizers.IgnoreNormalizerOpts{}).
		WithTracking("", string(v1alpha1.TrackingMethodAnnotation)).
		WithNoCache().
		WithLogger(logr.Discard()).
		WithGVKParser(e.parser).
		WithManager(manager).
		WithStructuredMergeDiff(s.serverSideApply).
		WithServerSideDiff(s.serverSideDiff).
		WithServerSideDryRunner(e.dryRun).
		Build()
}

// sync is one sync operation, with the options that Argo CD's controller gives the engine. It is made
// whether the Machine is OutOfSync or not, which self-heal would ask first.
func (e *engine) sync(ctx context.Context, m *unstructured.Unstructured, s settings) error {
	live, err := e.machines.Get(ctx, m.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	target := track(m)
	if s.respectIgnores {
		if target, err = e.respect(live, target, s); err != nil {
			return err
		}
	}
	return e.operate([]*unstructured.Unstructured{live}, []*unstructured.Unstructured{target}, m.GetNamespace(), s)
}

// operate is one sync operation of an Application.
func (e *engine) operate(lives, targets []*unstructured.Unstructured, namespace string, s settings) error {
	operation, cleanup, err := sync.NewSyncContext(
		"a-revision", sync.ReconciliationResult{Live: lives, Target: targets},
		e.config, e.config, e.kubectl, namespace, e.schema,
		sync.WithLogr(logr.Discard()),
		sync.WithOperationSettings(false, false, s.force, false),
		sync.WithManifestValidation(true),
		sync.WithReplace(s.replace),
		sync.WithServerSideApply(s.serverSideApply),
		sync.WithServerSideApplyManager(manager),
		sync.WithClientSideApplyMigration(true, common.DefaultClientSideApplyMigrationManager),
	)
	if err != nil {
		return err
	}
	defer cleanup()
	for range 2 + 4*len(targets) { // it takes two or more: those that apply, wave after wave, and one that finds everything applied
		operation.Sync()
		phase, message, results := operation.GetState()
		if phase.Failed() {
			for _, r := range results {
				message += "\n" + r.ResourceKey.String() + ": " + r.Message
			}
			return fmt.Errorf("sync: %s: %s", phase, message)
		}
		if phase.Completed() {
			return nil
		}
	}
	return errors.New("the sync does not come to an end")
}

// respect is what RespectIgnoreDifferences=true does to a manifest before the sync: what is ignored
// takes the live value. That function of Argo CD's controller is not exported; the normalization in
// it is.
func (e *engine) respect(live, target *unstructured.Unstructured, s settings) (*unstructured.Unstructured, error) {
	config, err := e.diffConfig(s)
	if err != nil {
		return nil, err
	}
	normalized, err := argodiff.Normalize([]*unstructured.Unstructured{live}, []*unstructured.Unstructured{target}, config)
	if err != nil {
		return nil, err
	}
	var texts [3][]byte
	for i, m := range []*unstructured.Unstructured{normalized.Lives[0], live, normalized.Targets[0]} {
		if texts[i], err = m.MarshalJSON(); err != nil {
			return nil, err
		}
	}
	ignored, err := jsonpatch.CreateMergePatch(texts[0], texts[1])
	if err != nil {
		return nil, err
	}
	merged, err := jsonpatch.MergePatch(texts[2], ignored)
	if err != nil {
		return nil, err
	}
	result := &unstructured.Unstructured{}
	return result, result.UnmarshalJSON(merged)
}
