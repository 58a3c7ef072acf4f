package machineapi

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestLosesHooks begins with the real Machine CRD, which keeps hooks, and takes away what it takes to
// lose them.
func TestLosesHooks(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/openshift/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "machine", "v1beta1", "zz_generated.crd-manifests", "0000_10_machine-api_01_machines-Default.crd.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	type schema = apiextensionsv1.JSONSchemaProps
	spec := func(crd *apiextensionsv1.CustomResourceDefinition, change func(spec *schema)) {
		root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		s := root.Properties["spec"]
		change(&s)
		root.Properties["spec"] = s
	}
	hooks := func(crd *apiextensionsv1.CustomResourceDefinition, change func(hooks *schema)) {
		spec(crd, func(s *schema) {
			h := s.Properties["lifecycleHooks"]
			change(&h)
			s.Properties["lifecycleHooks"] = h
		})
	}
	list := func(crd *apiextensionsv1.CustomResourceDefinition, name string, change func(list *schema)) {
		hooks(crd, func(h *schema) {
			l := h.Properties[name]
			change(&l)
			h.Properties[name] = l
		})
	}
	field := func(crd *apiextensionsv1.CustomResourceDefinition, in, name string, change func(field *schema)) {
		list(crd, in, func(l *schema) {
			f := l.Items.Schema.Properties[name]
			change(&f)
			l.Items.Schema.Properties[name] = f
		})
	}
	yes := true
	for name, c := range map[string]struct {
		change func(*apiextensionsv1.CustomResourceDefinition)
		want   bool
	}{
		"as it is": {func(*apiextensionsv1.CustomResourceDefinition) {}, false},
		"without hooks": {func(d *apiextensionsv1.CustomResourceDefinition) {
			spec(d, func(s *schema) { delete(s.Properties, "lifecycleHooks") })
		}, true},
		"without preDrain": {func(d *apiextensionsv1.CustomResourceDefinition) {
			hooks(d, func(h *schema) { delete(h.Properties, "preDrain") })
		}, true},
		"without preTerminate": {func(d *apiextensionsv1.CustomResourceDefinition) {
			hooks(d, func(h *schema) { delete(h.Properties, "preTerminate") })
		}, true},
		"without owners": {func(d *apiextensionsv1.CustomResourceDefinition) {
			hooks(d, func(h *schema) { delete(h.Properties["preDrain"].Items.Schema.Properties, "owner") })
		}, true},
		"hooks as they come": {func(d *apiextensionsv1.CustomResourceDefinition) {
			hooks(d, func(h *schema) { *h = schema{Type: "object", XPreserveUnknownFields: &yes} })
		}, false},
		"a second version without a schema": {func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Versions = append(d.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: "v2"})
		}, true},
		"no status subresource": {func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Versions[0].Subresources = nil }, true},
		"one hook": {func(d *apiextensionsv1.CustomResourceDefinition) {
			list(d, "preDrain", func(l *schema) { l.MaxItems = new(int64(1)) })
		}, true},
		"two hooks": {func(d *apiextensionsv1.CustomResourceDefinition) {
			list(d, "preDrain", func(l *schema) { l.MaxItems = new(int64(2)) })
		}, false},
		"no latch": {func(d *apiextensionsv1.CustomResourceDefinition) {
			list(d, "preTerminate", func(l *schema) { l.MaxItems = new(int64(0)) })
		}, true},
		"other names only": {func(d *apiextensionsv1.CustomResourceDefinition) {
			field(d, "preDrain", "name", func(f *schema) { f.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"Other"`)}} })
		}, true},
		"its name among others": {func(d *apiextensionsv1.CustomResourceDefinition) {
			field(d, "preDrain", "name", func(f *schema) {
				f.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"Other"`)}, {Raw: []byte(`"EtcdQuorumOperator"`)}}
			})
		}, false},
		"names of a pattern": {func(d *apiextensionsv1.CustomResourceDefinition) {
			field(d, "preTerminate", "name", func(f *schema) { f.Pattern = "^example" })
		}, true},
		"short owners": {func(d *apiextensionsv1.CustomResourceDefinition) {
			field(d, "preDrain", "owner", func(f *schema) { f.MaxLength = new(int64(3)) })
		}, true},
		"long owners": {func(d *apiextensionsv1.CustomResourceDefinition) {
			field(d, "preTerminate", "owner", func(f *schema) { f.MinLength = new(int64(30)) })
		}, true},
		"owners that are numbers": {func(d *apiextensionsv1.CustomResourceDefinition) {
			field(d, "preTerminate", "owner", func(f *schema) { f.Type = "integer" })
		}, true},
		"one more field": {func(d *apiextensionsv1.CustomResourceDefinition) {
			list(d, "preDrain", func(l *schema) { l.Items.Schema.Required = append(l.Items.Schema.Required, "until") })
		}, true},
		"not served": {func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Versions[0].Served = false }, true},
		"no version": {func(d *apiextensionsv1.CustomResourceDefinition) { d.Spec.Versions = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			var crd apiextensionsv1.CustomResourceDefinition
			if err := yaml.Unmarshal(text, &crd); err != nil {
				t.Fatal(err)
			}
			c.change(&crd)
			raw, err := json.Marshal(crd)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := LosesHooks(raw); err != nil || got != c.want {
				t.Errorf("loses: %t, %v; want %t", got, err, c.want)
			}
		})
	}
	if _, err := LosesHooks([]byte(`{"spec":{"versions":7}}`)); err == nil {
		t.Error("a CRD that cannot be read passed")
	}
}
