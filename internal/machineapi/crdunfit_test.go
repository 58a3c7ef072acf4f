package machineapi

import (
	"encoding/json"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestUnfit: the real Machine CRD is fit, and one that gives every Machine what nobody wrote is not.
func TestUnfit(t *testing.T) {
	type schema = apiextensionsv1.JSONSchemaProps
	fresh := schema{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}}
	for name, c := range map[string]struct {
		change func(root map[string]schema)
		want   string
	}{
		"the real one": {func(map[string]schema) {}, ""},
		"a default of the status": {func(root map[string]schema) {
			root["status"].Properties["authoritativeAPI"] = fresh
		}, "below status"},
		"a default of hooks": {func(root map[string]schema) {
			root["spec"].Properties["lifecycleHooks"].Properties["preDrain"].Items.Schema.Properties["fresh"] = fresh
		}, "below spec.lifecycleHooks"},
		"a default elsewhere": {func(root map[string]schema) { root["spec"].Properties["fresh"] = fresh }, ""},
		"no place for hooks":  {func(root map[string]schema) { delete(root["spec"].Properties, "lifecycleHooks") }, "no place"},
	} {
		crd := machineCRD(t)
		c.change(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties)
		raw, err := json.Marshal(crd)
		if err != nil {
			t.Fatal(err)
		}
		if err := Unfit(raw); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if Unfit([]byte("x")) == nil {
		t.Error("what is no JSON is fit")
	}
}
