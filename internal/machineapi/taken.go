package machineapi

import (
	"encoding/json"
	"fmt"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// TakenByWebhook reports whether the hook, or instead the latch, which the new object lacks, was taken off by a mutating webhook and not by
// the requester. The API server writes the claims in metadata.managedFields before admission: an entry that is gone and still claimed was
// taken off later, by a webhook. For an entry that had no claim before the request this is not known, and TakenByWebhook returns false.
func TakenByWebhook(next *Object, theLatch bool) bool {
	k := kindHook
	if theLatch {
		k = kindLatch
	}
	var managers []struct {
		Fields struct {
			Spec struct {
				Hooks map[string]map[string]json.RawMessage `json:"f:lifecycleHooks"`
			} `json:"f:spec"`
		} `json:"fieldsV1"`
	}
	if utiljson.Unmarshal(next.managedFields, &managers) != nil {
		return false
	}
	element := fmt.Sprintf(`k:{"name":%q}`, k.ours().Name)
	for i := range managers {
		if _, claimed := managers[i].Fields.Spec.Hooks["f:"+k.list()][element]; claimed {
			return true
		}
	}
	return false
}
