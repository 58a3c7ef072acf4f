package cpms

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"
	"github.com/openshift/cluster-control-plane-machine-set-operator/pkg/machineproviders/providers/openshift/machine/v1beta1/providerconfig"
)

// known reports whether the library reads a platform's provider specs field by field.
func known(platform configv1.PlatformType) bool {
	return slices.Contains([]configv1.PlatformType{
		configv1.AWSPlatformType, configv1.AzurePlatformType, configv1.GCPPlatformType, configv1.NutanixPlatformType,
		configv1.OpenStackPlatformType, configv1.VSpherePlatformType,
	}, platform)
}

// differences says how a provider spec differs from another, a line for each field; nil if it does not. Of a platform that it does not know,
// the library says which bytes differ: here the fields are named instead.
func differences(is, want providerconfig.ProviderConfig) ([]string, error) {
	differs, err := is.Diff(want)
	if err != nil || len(differs) == 0 || known(is.Type()) {
		return differs, err //nolint:wrapcheck // says what it compares
	}
	var values [2]any
	for i, config := range []providerconfig.ProviderConfig{is, want} {
		raw, err := config.RawConfig()
		if err != nil {
			return nil, fmt.Errorf("write the provider spec: %w", err)
		}
		if err := json.Unmarshal(raw, &values[i]); err != nil {
			return nil, fmt.Errorf("read the provider spec: %w", err)
		}
	}
	return differingFields(nil, values[0], values[1]), nil
}

// differingFields lists the fields in which two JSON values differ, in the alphabet's order.
func differingFields(path []string, is, want any) []string {
	a, isObject := is.(map[string]any)
	b, wantObject := want.(map[string]any)
	if !isObject || !wantObject {
		if reflect.DeepEqual(is, want) {
			return nil
		}
		return []string{fmt.Sprintf("%s: %s != %s", strings.Join(path, "."), shown(is), shown(want))}
	}
	var out []string
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		out = append(out, differingFields(append(slices.Clone(path), key), a[key], b[key])...)
	}
	return out
}

// shown is a JSON value for people: a text as it is, "none" where there is no value.
func shown(value any) string {
	switch v := value.(type) {
	case nil:
		return "none"
	case string:
		return v
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}
