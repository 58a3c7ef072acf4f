package machineapi

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"

	evanphx "github.com/evanphx/json-patch/v5"
	"gomodules.xyz/jsonpatch/v2"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// KeepOwnership adds to a repair what makes the request write nothing, where the repair takes back all
// that it asked for. Before admission the API server has noted in metadata.managedFields who claims what,
// and when: the time alone would make a new resourceVersion each time a tool asks for the same again.
// The list is put back only if it says the same but for times and their order; else, as with a tool's
// first request, the ownership of its other fields would be lost. Old and raw are the objects as JSON.
func KeepOwnership(old, raw []byte, repair []jsonpatch.Operation) []jsonpatch.Operation {
	text, err := json.Marshal(repair)
	if err != nil || len(repair) == 0 {
		return repair
	}
	patch, err := evanphx.DecodePatch(text)
	if err != nil {
		return repair
	}
	repaired, err := patch.Apply(raw)
	if err != nil {
		return repair
	}
	before, was := unmanaged(old)
	after, is := unmanaged(repaired)
	if before == nil || !reflect.DeepEqual(before, after) || reflect.DeepEqual(was, is) || !slices.EqualFunc(timeless(was), timeless(is), bytes.Equal) {
		return repair
	}
	return append(repair, jsonpatch.NewOperation("replace", "/metadata/managedFields", was))
}

// unmanaged is an object without managedFields and resourceVersion, and the former; nil if it cannot be read.
func unmanaged(raw []byte) (object map[string]any, managed []any) {
	if err := utiljson.Unmarshal(raw, &object); err != nil {
		return nil, nil
	}
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return nil, nil
	}
	managed, _ = metadata["managedFields"].([]any)
	delete(metadata, "managedFields")
	delete(metadata, "resourceVersion")
	return object, managed
}

// timeless are the entries without their times, in an order of their own.
func timeless(managed []any) [][]byte {
	var out [][]byte
	for _, one := range managed {
		entry, _ := one.(map[string]any)
		copied := map[string]any{}
		for key, value := range entry {
			if key != "time" {
				copied[key] = value
			}
		}
		text, err := json.Marshal(copied)
		if err != nil {
			return [][]byte{nil} // equals nothing: a text is never empty
		}
		out = append(out, text)
	}
	slices.SortFunc(out, bytes.Compare)
	return out
}
