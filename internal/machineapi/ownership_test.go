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

// TestLargeObjects: the list is put back from among as many managers, and below as many levels, as a request has room for.
func TestLargeObjects(t *testing.T) {
	for name, c := range largeObjects() {
		t.Run(name, func(t *testing.T) {
			before, after, err := decodeBoth(c.was, c.is)
			if err != nil {
				t.Fatal(err)
			}
			if ops := KeepOwnership(before, after, largeRepair); len(ops) != 2 {
				t.Fatalf("%d operations: the list is not put back", len(ops))
			}
		})
	}
}

// BenchmarkKeepOwnership compares it with reading the two objects, on the same computer: whoever writes a Machine has its size in
// hand. For the managers it takes some 40 times as long, and took 140 times where each was looked up among the others.
func BenchmarkKeepOwnership(b *testing.B) {
	for name, c := range largeObjects() {
		b.Run(name, func(b *testing.B) {
			var reading, keeping time.Duration
			for b.Loop() {
				began := time.Now()
				before, after, err := decodeBoth(c.was, c.is)
				if err != nil {
					b.Fatal(err)
				}
				read := time.Now()
				KeepOwnership(before, after, largeRepair)
				reading, keeping = reading+read.Sub(began), keeping+time.Since(read)
			}
			b.ReportMetric(float64(keeping)/float64(reading), "times-reading")
		})
	}
}

var largeRepair = []jsonpatch.Operation{jsonpatch.NewOperation("replace", "/spec/lifecycleHooks/preDrain", []string{})}

type update struct{ was, is []byte }

func largeObjects() map[string]update {
	const managers, depth, size = 10_000, 5000, 1 << 20
	many := func(order func([]string), second int) []byte {
		var all []string
		for i := range managers {
			all = append(all, fmt.Sprintf(`{"manager":"m-%05d","operation":"Apply","time":"2026-01-01T00:00:0%dZ"}`, i, second))
		}
		order(all)
		return []byte(`{"metadata":{"managedFields":[` + strings.Join(all, ",") + `]},"spec":{"lifecycleHooks":{"preDrain":[]}}}`)
	}
	deep := func(second int) []byte {
		// In UTF-8, as an API server sorts, the first key comes before the second; in UTF-16, as RFC 8785 does, after it.
		value := strings.Repeat("{\"\uff01\":", depth) + `"` + strings.Repeat("x", size) + `"` + strings.Repeat(",\"\U0001F600\":0}", depth)
		return fmt.Appendf(nil, `{"metadata":{"managedFields":[{"manager":"m","time":"2026-01-01T00:00:0%dZ"}]},"spec":{"lifecycleHooks":{"preDrain":[]},"providerSpec":{"value":%s}}}`, second, value)
	}
	return map[string]update{
		"managers": {many(slices.Sort[[]string], 1), many(slices.Reverse[[]string], 2)},
		"levels":   {deep(1), deep(2)},
	}
}

func decodeBoth(was, is []byte) (before, after *Object, err error) {
	if before, err = Decode(was); err != nil {
		return nil, nil, err
	}
	after, err = Decode(is)
	return before, after, err
}
