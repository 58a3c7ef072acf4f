package machineapi

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// LosesHooks says whether a Machine CRD, as JSON, serves no version, or has one whose schema has no
// place for the names and owners of preDrain and preTerminate hooks or does not take Holdfast's beside
// another, or no status subresource. The API server drops from every object that it reads or writes what
// the schema of the version has no place for, refuses to write what the schema does not take, and
// without the subresource takes a status from whoever may write the Machine. Of what a schema may say
// against a value, expressions (x-kubernetes-validations), allOf, anyOf, oneOf and not are not looked at.
func LosesHooks(raw []byte) (bool, error) {
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
		for _, k := range [...]kind{hook, latch} {
			for field, value := range map[string]string{"name": k.ours().Name, "owner": k.ours().Owner} {
				if !keeps(version.Schema.OpenAPIV3Schema, value, "spec", "lifecycleHooks", k.list(), items, field) {
					return true, nil
				}
			}
		}
	}
	return !slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Served }), nil
}

// items stands in a path for the elements of a list.
const items = "[]"

// keeps says whether a schema has a place for the value at a path, and takes it.
func keeps(schema *apiextensionsv1.JSONSchemaProps, value string, path ...string) bool {
	if len(path) == 0 {
		return takes(schema, value)
	}
	if path[0] == items {
		if schema.MaxItems != nil && *schema.MaxItems < 2 { // ours, and one of somebody else's
			return false
		}
		if schema.Items != nil && schema.Items.Schema != nil {
			return !wantsMore(schema.Items.Schema) && keeps(schema.Items.Schema, value, path[1:]...)
		}
	} else if next, ok := schema.Properties[path[0]]; ok {
		return keeps(&next, value, path[1:]...)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		return keeps(schema.AdditionalProperties.Schema, value, path[1:]...)
	}
	return schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields
}

// wantsMore says whether a hook needs more than a name and an owner.
func wantsMore(schema *apiextensionsv1.JSONSchemaProps) bool {
	return slices.ContainsFunc(schema.Required, func(field string) bool { return field != "name" && field != "owner" })
}

// takes says whether a schema takes a text.
func takes(schema *apiextensionsv1.JSONSchemaProps, value string) bool {
	if schema.Type != "" && schema.Type != "string" ||
		schema.MaxLength != nil && *schema.MaxLength < int64(len(value)) || schema.MinLength != nil && *schema.MinLength > int64(len(value)) {
		return false
	}
	if len(schema.Enum) > 0 && !slices.ContainsFunc(schema.Enum, func(one apiextensionsv1.JSON) bool { return string(one.Raw) == strconv.Quote(value) }) {
		return false
	}
	pattern, err := regexp.Compile(schema.Pattern)
	return err != nil || pattern.MatchString(value) // the API server knows no other patterns
}
