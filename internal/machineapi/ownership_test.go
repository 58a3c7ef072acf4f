package machineapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestManyManagers: a list that somebody has filled does not take the guard's time.
func TestManyManagers(t *testing.T) {
	list := func(n int, first string) []byte {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"manager":"m-%05d","operation":"Apply","time":"2026-01-01T00:00:0%sZ"}`, i, first))
		}
		if first == "2" {
			slices.Reverse(all)
		}
		return []byte(`{"metadata":{"managedFields":[` + strings.Join(all, ",") + `]},"spec":{"lifecycleHooks":{"preDrain":[]}}}`)
	}
	const n = 10_000
	// Eight times as long; three hundred times if each entry is looked up among the others.
	keptSoon(t, list(n, "1"), list(n, "2"))
}

// keptSoon fails if KeepOwnership takes much longer than reading the objects. Of five times the quickest counts: the computer may be busy.
func keptSoon(t *testing.T, was, is []byte) {
	t.Helper()
	reading, keeping := time.Hour, time.Hour
	for range 5 {
		begin := time.Now()
		before, err := Decode(was)
		if err != nil {
			t.Fatal(err)
		}
		after, err := Decode(is)
		if err != nil {
			t.Fatal(err)
		}
		reading = min(reading, time.Since(begin))
		begin = time.Now()
		ops := KeepOwnership(before, after, []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/spec/lifecycleHooks/preDrain", []string{})})
		keeping = min(keeping, time.Since(begin))
		if len(ops) != 2 {
			t.Fatalf("%d operations: the list is not put back", len(ops))
		}
	}
	if keeping > 60*reading {
		t.Errorf("it took %s, where reading the two took %s", keeping, reading)
	}
}

// TestDeepObject: nor does an object whose keys are in another order at each of many levels, once it is sorted.
func TestDeepObject(t *testing.T) {
	const depth, size = 5000, 1 << 20
	object := func(second int) []byte {
		// In UTF-8, as an API server sorts, the first key comes before the second; in UTF-16, as RFC 8785 does, after it.
		value := strings.Repeat("{\"\uff01\":", depth) + `"` + strings.Repeat("x", size) + `"` + strings.Repeat(",\"\U0001F600\":0}", depth)
		return fmt.Appendf(nil, `{"metadata":{"managedFields":[{"manager":"m","time":"2026-01-01T00:00:0%dZ"}]},"spec":{"lifecycleHooks":{"preDrain":[]},"providerSpec":{"value":%s}}}`, second, value)
	}
	keptSoon(t, object(1), object(2))
}
