package machineapi

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// PrunesHooks says whether a Machine CRD, as JSON, has a version whose schema has no place for the
// names and owners of preDrain and preTerminate hooks, or no status subresource. The API server drops
// from every object that it reads or writes what the schema of the version has no place for, and
// without the subresource takes a status from whoever may write the Machine.
func PrunesHooks(raw []byte) (bool, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := utiljson.Unmarshal(raw, &crd); err != nil {
		return false, fmt.Errorf("the CustomResourceDefinition cannot be read: %w", err)
	}
	for _, version := range crd.Spec.Versions {
		if version.Subresources == nil || version.Subresources.Status == nil {
			return true, nil
		}
		if crd.Spec.PreserveUnknownFields {
			continue
		}
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			return true, nil
		}
		for _, list := range [...]string{"preDrain", "preTerminate"} {
			for _, field := range [...]string{"name", "owner"} {
				if !keeps(version.Schema.OpenAPIV3Schema, "spec", "lifecycleHooks", list, items, field) {
					return true, nil
				}
			}
		}
	}
	return len(crd.Spec.Versions) == 0, nil
}

// items stands in a path for the elements of a list.
const items = "[]"

// keeps says whether a schema has a place for the value at a path.
func keeps(schema *apiextensionsv1.JSONSchemaProps, path ...string) bool {
	if len(path) == 0 || schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields {
		return true
	}
	if path[0] == items {
		return schema.Items != nil && schema.Items.Schema != nil && keeps(schema.Items.Schema, path[1:]...)
	}
	if next, ok := schema.Properties[path[0]]; ok {
		return keeps(&next, path[1:]...)
	}
	return schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil && keeps(schema.AdditionalProperties.Schema, path[1:]...)
}
