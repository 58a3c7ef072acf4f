package machineapi

import (
	"encoding/json"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/holdfast-dev/holdfast/test/assets"
)

// machineCRD is the real Machine CRD.
func machineCRD(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds, err := assets.CRDs(assets.MachineCRD)
	if err != nil {
		t.Fatal(err)
	}
	return crds[0]
}

// TestLosesHooks begins with the real Machine CRD, which keeps hooks, and takes away what it takes to
// lose them.
func TestLosesHooks(t *testing.T) {
	original := machineCRD(t)
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
			crd := original.DeepCopy()
			c.change(crd)
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

// TestChanges begins with the real Machine CRD: what cannot matter may change, and nothing else.
func TestChanges(t *testing.T) {
	original := machineCRD(t)
	type (
		crd    = apiextensionsv1.CustomResourceDefinition
		schema = apiextensionsv1.JSONSchemaProps
	)
	within := func(d *crd, change func(*schema), path ...string) {
		var descend func(s *schema, path []string)
		descend = func(s *schema, path []string) {
			if len(path) == 0 {
				change(s)
				return
			}
			p := s.Properties[path[0]]
			descend(&p, path[1:])
			s.Properties[path[0]] = p
		}
		descend(d.Spec.Versions[0].Schema.OpenAPIV3Schema, path)
	}
	for name, c := range map[string]struct {
		change func(*crd)
		want   bool // it matters
	}{
		"nothing":          {func(*crd) {}, false},
		"labels":           {func(d *crd) { d.Labels = map[string]string{"a": "b"} }, false},
		"a description":    {func(d *crd) { within(d, func(s *schema) { s.Description = "another" }, "spec", "providerID") }, false},
		"a printer column": {func(d *crd) { d.Spec.Versions[0].AdditionalPrinterColumns = nil }, false},
		"short names":      {func(d *crd) { d.Spec.Names.ShortNames, d.Spec.Names.Categories = []string{"m"}, []string{"c"} }, false},
		"a new field":      {func(d *crd) { within(d, func(s *schema) { s.Properties["fresh"] = schema{Type: "string"} }, "spec") }, false},
		"a new field needed": {func(d *crd) {
			within(d, func(s *schema) { s.Properties["fresh"], s.Required = schema{Type: "string"}, []string{"fresh"} }, "spec")
		}, true},
		"a new default in the status": {func(d *crd) {
			within(d, func(s *schema) {
				s.Properties["authoritativeAPI"] = schema{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"ClusterAPI"`)}}
			}, "status")
		}, true},
		"a new default in a new object": {func(d *crd) {
			within(d, func(s *schema) {
				s.Properties["fresh"] = schema{Type: "object", Properties: map[string]schema{"a": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{
					Schema: &schema{Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Schema: &schema{Default: &apiextensionsv1.JSON{Raw: []byte(`1`)}}}},
				}}}}
			}, "spec")
		}, true},
		"a new default in a hook": {func(d *crd) {
			within(d, func(s *schema) {
				s.Items.Schema.Properties["note"] = schema{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}}
			}, "spec", "lifecycleHooks", "preDrain")
		}, true},
		"a new field in a hook": {func(d *crd) {
			within(d, func(s *schema) { s.Items.Schema.Properties["note"] = schema{Type: "string"} }, "spec", "lifecycleHooks", "preDrain")
		}, false},
		"a default for an old field": {func(d *crd) {
			within(d, func(s *schema) { s.Default = &apiextensionsv1.JSON{Raw: []byte(`"Running"`)} }, "status", "phase")
		}, true},
		"a field gone":    {func(d *crd) { within(d, func(s *schema) { delete(s.Properties, "nodeRef") }, "status") }, true},
		"all fields gone": {func(d *crd) { within(d, func(s *schema) { s.Properties = nil }, "spec", "lifecycleHooks") }, true},
		"maxProperties":   {func(d *crd) { within(d, func(s *schema) { s.MaxProperties = new(int64(1)) }, "spec", "lifecycleHooks") }, true},
		"minItems": {func(d *crd) {
			within(d, func(s *schema) { s.MinItems = new(int64(1)) }, "spec", "lifecycleHooks", "preDrain")
		}, true},
		"an enum": {func(d *crd) {
			within(d, func(s *schema) { s.Enum = []apiextensionsv1.JSON{{Raw: []byte(`"x"`)}} }, "spec", "providerID")
		}, true},
		"a format": {func(d *crd) { within(d, func(s *schema) { s.Format = "uuid" }, "spec", "providerID") }, true},
		"an expression": {func(d *crd) {
			within(d, func(s *schema) { s.XValidations = apiextensionsv1.ValidationRules{{Rule: "false"}} }, "spec")
		}, true},
		"an item": {func(d *crd) {
			within(d, func(s *schema) { delete(s.Items.Schema.Properties, "owner") }, "spec", "lifecycleHooks", "preDrain")
		}, true},
		"unserved": {func(d *crd) { d.Spec.Versions[0].Served = false }, true},
		"a conversion": {func(d *crd) {
			d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}
		}, true},
		"another version": {func(d *crd) {
			v := *d.Spec.Versions[0].DeepCopy()
			v.Name = "v1beta2"
			d.Spec.Versions = append(d.Spec.Versions, v)
		}, true},
		"without status": {func(d *crd) { d.Spec.Versions[0].Subresources = nil }, true},
		"without schema": {func(d *crd) { d.Spec.Versions[0].Schema = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			next := original.DeepCopy()
			c.change(next)
			var raw [2][]byte
			for i, d := range []*crd{original, next} {
				var err error
				if raw[i], err = json.Marshal(d); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Changes(raw[0], raw[1])
			if err != nil || got != "" != c.want {
				t.Errorf("it says %q, %v; it matters: %t", got, err, c.want)
			}
		})
	}
}
