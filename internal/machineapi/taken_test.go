package machineapi

import (
	"strings"
	"testing"
)

// TestTakenByWebhook: an entry that somebody still claims was not taken off by the request.
func TestTakenByWebhook(t *testing.T) {
	const (
		hooked  = `{"manager":"holdfast","fieldsV1":{"f:spec":{"f:lifecycleHooks":{".":{},"f:preDrain":{".":{},"k:{\"name\":\"EtcdQuorumOperator\"}":{".":{},"f:name":{},"f:owner":{}}}}}}}`
		another = `{"manager":"tool","fieldsV1":{"f:spec":{"f:lifecycleHooks":{"f:preDrain":{"k:{\"name\":\"another\"}":{".":{}}}}}}}`
		status  = `{"manager":"machine-api","subresource":"status","fieldsV1":{"f:status":{"f:phase":{}}}}`
	)
	latched := strings.NewReplacer("preDrain", "preTerminate", "EtcdQuorumOperator", "EtcdQuorumLatch").Replace(hooked)
	for name, c := range map[string]struct {
		managed     string
		hook, latch bool
	}{
		"nobody":              {"[]", false, false},
		"no list":             {"null", false, false},
		"no claim on it":      {"[" + status + "," + another + "]", false, false},
		"the hook":            {"[" + status + "," + hooked + "]", true, false},
		"the latch":           {"[" + latched + "]", false, true},
		"both, by two":        {"[" + latched + "," + hooked + "]", true, true},
		"what is none":        {`[{"fieldsV1":{"f:spec":{"f:lifecycleHooks":7}}}]`, false, false},
		"not even a list":     {`{"manager":"x"}`, false, false},
		"the list as a whole": {`[{"fieldsV1":{"f:spec":{"f:lifecycleHooks":{"f:preDrain":{}}}}}]`, false, false},
	} {
		next, err := Decode([]byte(`{"metadata":{"name":"m","managedFields":` + c.managed + `},"spec":{}}`))
		if err != nil {
			t.Fatal(err)
		}
		if hook, latch := TakenByWebhook(next, false), TakenByWebhook(next, true); hook != c.hook || latch != c.latch {
			t.Errorf("%s: hook %t, latch %t", name, hook, latch)
		}
	}
}
