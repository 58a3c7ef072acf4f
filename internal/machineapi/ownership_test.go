package machineapi

import (
	"encoding/json"
	"testing"

	"gomodules.xyz/jsonpatch/v2"
)

// TestKeepOwnership: the list of managers is put back only where nothing but times would be written.
func TestKeepOwnership(t *testing.T) {
	const (
		machineAPI = `{"manager":"machine-api","operation":"Update","time":"2026-01-01T00:00:00Z","fieldsV1":{"f:status":{}}}`
		tool       = `{"manager":"argocd","operation":"Update","time":"2026-01-01T00:00:01Z","fieldsV1":{"f:spec":{}}}`
		toolLater  = `{"manager":"argocd","operation":"Update","time":"2026-01-01T00:00:02Z","fieldsV1":{"f:spec":{}}}`
		toolMore   = `{"manager":"argocd","operation":"Update","time":"2026-01-01T00:00:02Z","fieldsV1":{"f:spec":{"f:more":{}}}}`
	)
	object := func(hooks, label, version, managed string) []byte {
		return []byte(`{"metadata":{"name":"m","labels":{"l":"` + label + `"},"resourceVersion":"` + version + `","managedFields":[` + managed + `]},"spec":{"lifecycleHooks":` + hooks + `}}`)
	}
	const hook, none = `{"preDrain":[{"name":"h"}]}`, `{"preDrain":[]}`
	repair := []jsonpatch.Operation{jsonpatch.NewOperation("remove", "/spec/lifecycleHooks/preDrain/0", nil)}
	old := object(none, "a", "7", machineAPI+","+tool)
	before, err := Decode(old)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		next   []byte
		repair []jsonpatch.Operation
		kept   bool
	}{
		"the same again, later":        {object(hook, "a", "7", machineAPI+","+toolLater), repair, true},
		"in another order":             {object(hook, "a", "7", toolLater+","+machineAPI), repair, true},
		"without a resourceVersion":    {object(hook, "a", "", machineAPI+","+toolLater), repair, true},
		"in the same second":           {object(hook, "a", "7", machineAPI+","+tool), repair, false},
		"it claims more than before":   {object(hook, "a", "7", machineAPI+","+toolMore), repair, false},
		"its first request":            {object(hook, "a", "7", machineAPI+","+tool+`,{"manager":"new"}`), repair, false},
		"it changes something besides": {object(hook, "b", "7", machineAPI+","+toolLater), repair, false},
		"nothing is repaired":          {object(none, "a", "7", machineAPI+","+toolLater), nil, false},
		"its list cannot be read":      {object(hook, "a", "7", machineAPI+",1"), repair, false},
	} {
		next, err := Decode(c.next)
		if err != nil {
			t.Fatal(err)
		}
		ops := KeepOwnership(before, next, c.repair)
		if kept := len(ops) > len(c.repair); kept != c.kept {
			t.Errorf("%s: kept %t", name, kept)
		} else if kept {
			text, err := json.Marshal(ops[len(ops)-1])
			if want := `{"op":"replace","path":"/metadata/managedFields","value":[`; err != nil || string(text[:len(want)]) != want {
				t.Errorf("%s: %s, %v", name, text, err)
			}
		}
	}
}
