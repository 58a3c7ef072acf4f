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
// first request, the ownership of its other fields would be lost. Old is nil for a CREATE.
func KeepOwnership(old, next *Object, repair []jsonpatch.Operation) []jsonpatch.Operation {
	if len(repair) == 0 || old == nil || bytes.Equal(old.managedFields, next.managedFields) {
		return repair
	}
	// One time is as long as another, so most requests end here. What follows takes as long as all else.
	if len(old.managedFields) != len(next.managedFields) || !claimSame(old.managedFields, next.managedFields) {
		return repair
	}
	text, err := json.Marshal(repair)
	if err != nil {
		return repair
	}
	patch, err := evanphx.DecodePatch(text)
	if err != nil {
		return repair
	}
	repaired, err := patch.Apply(next.Raw)
	if err != nil {
		return repair
	}
	before := unmanaged(old.Raw)
	if before == nil || !reflect.DeepEqual(before, unmanaged(repaired)) {
		return repair
	}
	return append(repair, jsonpatch.NewOperation("replace", "/metadata/managedFields", old.managedFields))
}

// claimSame reports whether two lists of managers, in any order, claim the same at whatever time.
func claimSame(was, is []byte) bool {
	before := timeless(was)
	return before != nil && slices.EqualFunc(before, timeless(is), bytes.Equal)
}

// timeless are the managers without their times, in an order of their own; nil if there are none. They are
// sorted, not looked up one by one: how many there are is in the hands of whoever writes the Machine.
func timeless(managedFields []byte) (texts [][]byte) {
	var managers []map[string]json.RawMessage
	if err := utiljson.Unmarshal(managedFields, &managers); err != nil {
		return nil
	}
	for _, one := range managers {
		delete(one, "time")
		text, err := json.Marshal(one)
		if err != nil {
			return nil
		}
		texts = append(texts, text)
	}
	slices.SortFunc(texts, bytes.Compare)
	return texts
}

// unmanaged is an object without its managedFields and resourceVersion, which tools may leave out; nil if it cannot be read.
func unmanaged(raw []byte) map[string]any {
	var object map[string]any
	if err := utiljson.Unmarshal(raw, &object); err != nil {
		return nil
	}
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return nil
	}
	delete(metadata, "managedFields")
	delete(metadata, "resourceVersion")
	return object
}
