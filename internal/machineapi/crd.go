package machineapi

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// CRDName is the name of the Machine's CustomResourceDefinition.
const CRDName = "machines.machine.openshift.io"

// Unfit is why the guard cannot go by a Machine CRD, as JSON, and nil if it can. It loses hooks, or it has a default below status or
// lifecycleHooks: every Machine that is read has that, whoever wrote it.
func Unfit(raw []byte) error {
	if loses, err := LosesHooks(raw); err != nil || loses {
		return cmp.Or(err, errors.New("it has no place for the hooks, does not take them, or has no status subresource"))
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := utiljson.Unmarshal(raw, &crd); err != nil {
		return err
	}
	for _, version := range crd.Spec.Versions {
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			continue
		}
		root := version.Schema.OpenAPIV3Schema.Properties
		for at, schema := range map[string]apiextensionsv1.JSONSchemaProps{"status": root["status"], "spec.lifecycleHooks": root["spec"].Properties["lifecycleHooks"]} {
			if defaults(&schema) {
				return fmt.Errorf("version %s has a default below %s, which every Machine gets that is read", version.Name, at)
			}
		}
	}
	return nil
}

// LosesHooks reports whether a Machine CRD, as JSON, serves no version, or has one whose schema has no
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
		for _, k := range [...]kind{kindHook, kindLatch} {
			for field, value := range map[string]string{"name": k.ours().Name, "owner": k.ours().Owner} {
				if !keeps(version.Schema.OpenAPIV3Schema, value, "spec", "lifecycleHooks", k.list(), items, field) {
					return true, nil
				}
			}
		}
	}
	return !slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Served }), nil
}

// Changes says what a new Machine CRD, as JSON, changes beyond what cannot matter to the guard, "" for nothing: descriptions,
// printer columns, short names, categories, and new optional fields without a default may change. A default
// changes every Machine that is stored as soon as it is read.
func Changes(old, next []byte) (string, error) {
	var crds [2]apiextensionsv1.CustomResourceDefinition
	for i, raw := range [...][]byte{old, next} {
		if err := utiljson.Unmarshal(raw, &crds[i]); err != nil {
			return "", fmt.Errorf("the CustomResourceDefinition cannot be read: %w", err)
		}
	}
	was, is := &crds[0].Spec, &crds[1].Spec
	was.Names.ShortNames, is.Names.ShortNames = nil, nil
	was.Names.Categories, is.Names.Categories = nil, nil
	if len(was.Versions) != len(is.Versions) {
		return "spec.versions", nil
	}
	for i := range was.Versions {
		a, b := &was.Versions[i], &is.Versions[i]
		a.AdditionalPrinterColumns, b.AdditionalPrinterColumns = nil, nil
		if a.Schema != nil && b.Schema != nil && a.Schema.OpenAPIV3Schema != nil && b.Schema.OpenAPIV3Schema != nil {
			if at := differs(a.Schema.OpenAPIV3Schema, b.Schema.OpenAPIV3Schema); at != "" {
				return "the schema of version " + a.Name + at, nil
			}
			a.Schema, b.Schema = nil, nil
		}
		if !equality.Semantic.DeepEqual(a, b) {
			return "version " + a.Name, nil
		}
	}
	was.Versions, is.Versions = nil, nil
	if !equality.Semantic.DeepEqual(was, is) {
		return "spec", nil
	}
	return "", nil
}

// differs is where a schema does not say the same of every object that the old one takes: a path with a leading space, or "".
func differs(old, next *apiextensionsv1.JSONSchemaProps) string {
	for _, s := range [...]*apiextensionsv1.JSONSchemaProps{old, next} {
		s.Description, s.Title, s.Example, s.ExternalDocs = "", "", nil, nil
	}
	for name, was := range old.Properties {
		is, ok := next.Properties[name]
		if !ok {
			return " ." + name
		}
		if at := differs(&was, &is); at != "" {
			return " ." + name + strings.TrimPrefix(at, " ")
		}
	}
	for name, is := range next.Properties {
		if _, known := old.Properties[name]; !known && defaults(&is) {
			return " ." + name
		}
	}
	if old.Items != nil && next.Items != nil && old.Items.Schema != nil && next.Items.Schema != nil {
		if at := differs(old.Items.Schema, next.Items.Schema); at != "" {
			return " []" + strings.TrimPrefix(at, " ")
		}
		old.Items, next.Items = nil, nil
	}
	a, b := *old, *next
	if len(a.Properties) > 0 { // a schema without any takes other keys by its own rules
		a.Properties, b.Properties = nil, nil
	}
	if !equality.Semantic.DeepEqual(&a, &b) {
		return " ."
	}
	return ""
}

// defaults reports whether a schema has a default anywhere.
func defaults(s *apiextensionsv1.JSONSchemaProps) bool {
	if s.Default != nil || s.Items != nil && s.Items.Schema != nil && defaults(s.Items.Schema) ||
		s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil && defaults(s.AdditionalProperties.Schema) {
		return true
	}
	for _, property := range s.Properties {
		if defaults(&property) {
			return true
		}
	}
	return false
}

// items stands in a path for the elements of a list.
const items = "[]"

// keeps reports whether a schema has a place for the value at a path, and takes it.
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

// wantsMore reports whether a hook needs more than a name and an owner.
func wantsMore(schema *apiextensionsv1.JSONSchemaProps) bool {
	return slices.ContainsFunc(schema.Required, func(field string) bool { return field != "name" && field != "owner" })
}

// takes reports whether a schema takes a text.
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
