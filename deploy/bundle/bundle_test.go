package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// validators are all of operator-framework/api's but that for several architectures, which asks docker for the image.
func validators() interfaces.Validators {
	return interfaces.Validators{
		validation.PackageManifestValidator, validation.ClusterServiceVersionValidator, validation.CustomResourceDefinitionValidator,
		validation.BundleValidator, validation.OperatorHubV2Validator, validation.StandardCategoriesValidator,
		validation.StandardCapabilitiesValidator, validation.ObjectValidator, validation.OperatorGroupValidator,
		validation.CommunityOperatorValidator, validation.AlphaDeprecatedAPIsValidator, validation.GoodPracticesValidator,
	}
}

// explained are the warnings that stay, by a pattern of each, and why.
func explained() map[string]string {
	return map[string]string{
		`channel\(s\) \["alpha"\] are not following the recommended naming convention`: "candidate, fast and stable would be said of releases; there is none",
		`csv\.Spec\.Icon not specified`: "Holdfast has no icon",
		// The validator prints a map, in any order.
		`Migrate the API\(s\) for ((events|poddisruptionbudgets): \(\["ClusterServiceVersion[.\w]+\.ClusterPermissions\[0\]\.Rules\[\d+\]"\]\),?){2}$`: "" +
			"a right names no version: the validator takes any for one to v1beta1, which is gone, and Holdfast uses v1",
	}
}

// taken are the kinds that OLM has taken out of bundles since before OpenShift 4.18. Of rights there are only those of others
// than Holdfast.
func taken() []string {
	return []string{"ClusterServiceVersion", "Service", "PodDisruptionBudget", "PrometheusRule", "ServiceMonitor", "Role", "RoleBinding"}
}

// fixture is a bundle, and the manifests that it was made of.
type fixture struct {
	options
	rendered []*unstructured.Unstructured
}

// rendered are the manifests of all overlays, as make manifests makes them.
func rendered(t *testing.T) string {
	t.Helper()
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	if _, err := os.Stat(kubectl); os.Getenv("KUBEBUILDER_ASSETS") == "" || err != nil {
		kubectl = filepath.Join("..", "..", "bin", "kubectl")
	}
	if _, err := os.Stat(kubectl); err != nil {
		t.Fatalf("no kubectl: make binaries builds it: %v", err)
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "../render.sh", kubectl, dir, "registry.example.com/holdfast", "v1.2.3").CombinedOutput(); err != nil {
		t.Fatalf("render.sh: %v\n%s", err, out)
	}
	return dir
}

func newFixture(t *testing.T, dir, overlay string) *fixture {
	t.Helper()
	out := t.TempDir()
	f := &fixture{options: options{
		from: ".", manifests: filepath.Join(dir, "holdfast-"+overlay+".yaml"), tag: "v1.2.3",
		out: filepath.Join(out, "bundle"), beside: filepath.Join(out, "beside.yaml"),
	}}
	if err := build(f.options); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.rendered, err = load(f.manifests); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestBundle: OLM's own validators have nothing against the bundle, and it has all that the overlay has, no more and no less.
func TestBundle(t *testing.T) {
	dir := rendered(t)
	for _, overlay := range []string{"openshift", "self-signed"} {
		t.Run(overlay, func(t *testing.T) {
			for _, problem := range newFixture(t, dir, overlay).problems(t) {
				t.Error(problem)
			}
		})
	}
}

// TestPlantedFaults: what is wrong with a bundle is found.
func TestPlantedFaults(t *testing.T) {
	dir := rendered(t)
	for what, plant := range map[string]func(csv map[string]any){
		"a right is missing":        func(csv map[string]any) { dropRule(csv, "clusterPermissions") },
		"one of its namespace's is": func(csv map[string]any) { dropRule(csv, "permissions") },
		"a right too many": func(csv map[string]any) {
			rules(csv, "permissions")[0].(map[string]any)["verbs"] = []any{"*"}
		},
		"no install mode": func(csv map[string]any) {
			modes, _, _ := unstructured.NestedSlice(csv, "spec", "installModes")
			modes[0].(map[string]any)["supported"] = false
			set(csv, modes, "spec", "installModes")
		},
		"rights of a namespace become everybody's": func(csv map[string]any) {
			modes, _, _ := unstructured.NestedSlice(csv, "spec", "installModes")
			modes[3].(map[string]any)["supported"] = true
			set(csv, modes, "spec", "installModes")
		},
		"a webhook of OLM's": func(csv map[string]any) {
			set(csv, []any{map[string]any{"type": "ValidatingAdmissionWebhook"}}, "spec", "webhookdefinitions")
		},
		"another Deployment":       func(csv map[string]any) { set(deployments(csv)[0].(map[string]any), int64(1), "spec", "replicas") },
		"no version of Kubernetes": func(csv map[string]any) { unstructured.RemoveNestedField(csv, "spec", "minKubeVersion") },
		"an unknown category":      func(csv map[string]any) { set(csv, "Guards", "metadata", "annotations", "categories") },
		"no provider":              func(csv map[string]any) { unstructured.RemoveNestedField(csv, "spec", "provider") },
		"another image":            func(csv map[string]any) { set(csv, []any{}, "spec", "relatedImages") },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, dir, "openshift")
			f.change(t, plant)
			if len(f.problems(t)) == 0 {
				t.Error("nothing was found")
			}
		})
	}
	t.Run("a file is missing", func(t *testing.T) {
		f := newFixture(t, dir, "openshift")
		if err := os.Remove(filepath.Join(f.out, "manifests", "holdfast.poddisruptionbudget.yaml")); err != nil {
			t.Fatal(err)
		}
		if len(f.problems(t)) == 0 {
			t.Error("nothing was found")
		}
	})
}

// TestUndecided: the overlay with objects that nobody has thought about makes no bundle.
func TestUndecided(t *testing.T) {
	dir, out := rendered(t), t.TempDir()
	for overlay, why := range map[string]string{
		"cert-manager": "Issuers and Certificates are not OLM's", "openshift-full-mode": "it makes objects in openshift-etcd",
	} {
		err := build(options{from: ".", manifests: filepath.Join(dir, "holdfast-"+overlay+".yaml"), tag: "v1", out: filepath.Join(out, "bundle"), beside: filepath.Join(out, "beside.yaml")})
		if err == nil {
			t.Errorf("%s makes a bundle (%s)", overlay, why)
		}
	}
}

func TestVersion(t *testing.T) {
	for tag, want := range map[string]string{
		"v1": "1.0.0", "v1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3-rc.1", "v1.2.3-4-gabc1234": "1.2.3-4-gabc1234", "v1.2.3+b": "1.2.3",
		"1234567": "0.0.0-g1234567", "0123456-dirty": "0.0.0-g0123456-dirty", "feature_x/y": "0.0.0-gfeature-x-y",
	} {
		if is := version(tag); is != want {
			t.Errorf("%s: %s, want %s", tag, is, want)
		}
	}
}

// problems are what is wrong with a bundle.
func (f *fixture) problems(t *testing.T) []string {
	t.Helper()
	bundle, err := manifests.GetBundleFromDir(f.out)
	if err != nil {
		return []string{err.Error()}
	}
	why, used := explained(), map[string]bool{}
	var out []string
	for _, result := range validators().Validate(bundle.ObjectsToValidate()...) {
		for _, e := range result.Errors {
			out = append(out, e.Error())
		}
	next:
		for _, e := range result.Warnings {
			for part := range why {
				if regexp.MustCompile(part).MatchString(e.Detail) {
					used[part] = true
					continue next
				}
			}
			out = append(out, "warning: "+e.Error())
		}
	}
	for part, reason := range why {
		if !used[part] {
			out = append(out, fmt.Sprintf("nothing warns of %q any more (%s)", part, reason))
		}
	}
	return slices.Concat(out, f.wrongCSV(bundle.CSV), f.wrongRights(t, bundle.CSV), f.wrongObjects(t, bundle))
}

// wrongCSV compares the ClusterServiceVersion with the overlay's Deployment.
func (f *fixture) wrongCSV(csv *operatorsv1alpha1.ClusterServiceVersion) (out []string) {
	spec := csv.Spec.InstallStrategy.StrategySpec
	deployment := f.find("Deployment/holdfast-system/holdfast")
	template, _, err := unstructured.NestedMap(deployment.Object, "spec")
	if err != nil {
		return []string{err.Error()}
	}
	raw, err := load(filepath.Join(f.out, csvFile))
	if err != nil {
		return []string{err.Error()}
	}
	installs := deployments(raw[0].Object)
	if len(installs) != 1 || installs[0].(map[string]any)["name"] != "holdfast" || !reflect.DeepEqual(installs[0].(map[string]any)["spec"], any(template)) {
		out = append(out, "the Deployment differs from the overlay's")
	}
	image := spec.DeploymentSpecs[0].Spec.Template.Spec.Containers[0].Image
	if image != "registry.example.com/holdfast:v1.2.3" || csv.Annotations["containerImage"] != image ||
		len(csv.Spec.RelatedImages) != 1 || csv.Spec.RelatedImages[0].Image != image {
		out = append(out, "not the same image everywhere")
	}
	if csv.Name != "holdfast.v1.2.3" || csv.Spec.Version.String() != "1.2.3" {
		out = append(out, "the version is "+csv.Name+" "+csv.Spec.Version.String())
	}
	if len(csv.Spec.WebhookDefinitions) > 0 {
		out = append(out, "Holdfast keeps its registrations itself, and OLM would put others beside them")
	}
	for _, mode := range csv.Spec.InstallModes {
		if mode.Supported != (mode.Type == operatorsv1alpha1.InstallModeTypeOwnNamespace) {
			out = append(out, fmt.Sprintf("install mode %s: %t", mode.Type, mode.Supported))
		}
	}
	var namespace map[string]any
	if err := json.Unmarshal([]byte(csv.Annotations["operatorframework.io/suggested-namespace-template"]), &namespace); err != nil {
		return append(out, err.Error())
	}
	if !reflect.DeepEqual(namespace, f.find("Namespace//holdfast-system").Object) {
		out = append(out, "the console would make another namespace than the overlay's")
	}
	return out
}

// wrongRights compares who may do what. What the overlay allows in namespaces of others the bundle allows everywhere.
func (f *fixture) wrongRights(t *testing.T, csv *operatorsv1alpha1.ClusterServiceVersion) (out []string) {
	t.Helper()
	want, is := map[string]bool{}, map[string]bool{}
	for _, o := range f.rendered {
		if !strings.HasSuffix(o.GetKind(), "RoleBinding") {
			continue
		}
		var binding rbacv1.RoleBinding // a ClusterRoleBinding has the same fields
		typed(t, o, &binding)
		if !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Name == "holdfast" }) {
			continue
		}
		var role rbacv1.ClusterRole
		typed(t, f.find(binding.RoleRef.Kind+"/"+binding.Namespace+"/"+binding.RoleRef.Name), &role)
		where := "everywhere"
		if binding.Namespace == "holdfast-system" {
			where = "own namespace"
		}
		each(role.Rules, where, want)
	}
	for where, permissions := range map[string][]operatorsv1alpha1.StrategyDeploymentPermissions{
		"everywhere":    csv.Spec.InstallStrategy.StrategySpec.ClusterPermissions,
		"own namespace": csv.Spec.InstallStrategy.StrategySpec.Permissions,
	} {
		for _, p := range permissions {
			if p.ServiceAccountName != "holdfast" {
				out = append(out, "rights for "+p.ServiceAccountName)
			}
			each(p.Rules, where, is)
		}
	}
	for _, right := range slices.Sorted(maps.Keys(want)) {
		if !is[right] {
			out = append(out, "missing: "+right)
		}
	}
	for _, right := range slices.Sorted(maps.Keys(is)) {
		if !want[right] {
			out = append(out, "too many: "+right)
		}
	}
	return out
}

// each takes rules apart.
func each(rules []rbacv1.PolicyRule, where string, into map[string]bool) {
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{"any"}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						into[strings.Join([]string{where, verb, resource + "." + group, name}, " ")] = true
					}
				}
			}
		}
	}
}

// wrongObjects looks for what the overlay has and neither the bundle nor the file beside it, and for kinds that OLM does not take.
func (f *fixture) wrongObjects(t *testing.T, bundle *manifests.Bundle) (out []string) {
	t.Helper()
	here := map[string]*unstructured.Unstructured{}
	for _, o := range bundle.Objects {
		if !slices.Contains(taken(), o.GetKind()) {
			out = append(out, "OLM takes no "+o.GetKind())
		}
		o.SetNamespace("holdfast-system")
		here[name(o)] = o
	}
	beside, err := load(f.beside)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range beside {
		here[name(o)] = o
	}
	for _, o := range f.rendered {
		of := name(o)
		rights := strings.HasSuffix(o.GetKind(), "RoleBinding") || strings.HasSuffix(o.GetKind(), "Role")
		if rights && o.GetName() == "holdfast" || rights && o.GetName() == "holdfast-webhook-ca" || o.GetKind() == "Deployment" || o.GetKind() == "ServiceAccount" {
			continue // they are in the ClusterServiceVersion
		}
		if there := here[of]; there == nil || !reflect.DeepEqual(there.Object, o.Object) {
			out = append(out, of+" is missing or differs")
		}
		delete(here, of)
	}
	delete(here, "ClusterServiceVersion/holdfast-system/"+bundle.CSV.Name)
	for of := range here {
		out = append(out, of+" is not the overlay's")
	}
	recipe, err := os.ReadFile(filepath.Join(f.out, "Containerfile"))
	if err != nil {
		t.Fatal(err)
	}
	if bundle.Package != "holdfast" || bundle.DefaultChannel != "alpha" || !strings.Contains(string(recipe), `LABEL operators.operatorframework.io.bundle.channels.v1="alpha"`) {
		out = append(out, "not package holdfast, channel alpha")
	}
	return out
}

func (f *fixture) find(of string) *unstructured.Unstructured {
	k := slices.IndexFunc(f.rendered, func(o *unstructured.Unstructured) bool { return name(o) == of })
	if k < 0 {
		return &unstructured.Unstructured{}
	}
	return f.rendered[k]
}

func typed(t *testing.T, o *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
		t.Fatal(err)
	}
}

// change changes the bundle's ClusterServiceVersion.
func (f *fixture) change(t *testing.T, how func(csv map[string]any)) {
	t.Helper()
	path := filepath.Join(f.out, csvFile)
	objects, err := load(path)
	if err != nil {
		t.Fatal(err)
	}
	how(objects[0].Object)
	text, err := json.Marshal(objects[0].Object)
	if err = errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
}

func deployments(csv map[string]any) []any {
	return csv["spec"].(map[string]any)["install"].(map[string]any)["spec"].(map[string]any)["deployments"].([]any)
}

func rules(csv map[string]any, which string) []any {
	install := csv["spec"].(map[string]any)["install"].(map[string]any)["spec"].(map[string]any)
	return install[which].([]any)[0].(map[string]any)["rules"].([]any)
}

func dropRule(csv map[string]any, which string) {
	install := csv["spec"].(map[string]any)["install"].(map[string]any)["spec"].(map[string]any)
	install[which].([]any)[0].(map[string]any)["rules"] = rules(csv, which)[1:]
}

func set(in map[string]any, value any, fields ...string) {
	if err := unstructured.SetNestedField(in, value, fields...); err != nil {
		panic(err)
	}
}
