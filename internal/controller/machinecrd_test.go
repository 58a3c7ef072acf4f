package controller

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/membership"
)

// TestMachineCRD: a CRD that the guard cannot go by is told, until it is well again, and it is read every ten minutes.
func TestMachineCRD(t *testing.T) {
	hook := `{"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "owner": {"type": "string"}}}}`
	crd := func(status string) string {
		return `{"spec": {"versions": [{"name": "v1beta1", "served": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
			"spec": {"type": "object", "properties": {"lifecycleHooks": {"type": "object", "properties": {"preDrain": ` + hook + `, "preTerminate": ` + hook + `}}}},
			"status": {"type": "object", "properties": {"authoritativeAPI": {"type": "string"` + status + `}}}}}}}]}}`
	}
	reads, stored, down := 0, crd(""), error(nil)
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build(), interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if reads++; key.Name != "machines.machine.openshift.io" {
				t.Errorf("%s is read", key)
			}
			if down != nil {
				return down
			}
			return json.Unmarshal([]byte(stored), &o.(*unstructured.Unstructured).Object)
		},
	})
	var c machineCRD
	now := time.Now()
	look := func(after time.Duration, told bool) {
		t.Helper()
		now = now.Add(after)
		c.look(t.Context(), api, now)
		if f := c.failures(); len(f) > 0 != told || told && f[0].Reason != string(membership.ReasonMachineCRDUnfit) {
			t.Errorf("told: %v, want %t", f, told)
		}
	}
	look(0, false)
	stored = crd(`, "default": "ClusterAPI"`)
	look(time.Minute, false)
	look(10*time.Minute, true)
	stored = crd("")
	look(time.Minute, true)
	look(10*time.Minute, false)
	if reads != 3 {
		t.Errorf("it was read %d times", reads)
	}
	// One read that fails says nothing, and is made again soon.
	down = context.Canceled
	look(10*time.Minute, false)
	down = nil
	look(10*time.Second, false)
	down = context.DeadlineExceeded
	look(10*time.Minute, false)
	look(10*time.Second, true)
	down = nil
	look(10*time.Second, false)
}
