package machineapi

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/admission"
)

// bareMetalHost is the part of a BareMetalHost (metal3.io) that the rule keep-host looks at.
type bareMetalHost struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec map[string]any `json:"spec"`
}

// The annotations by which baremetal-operator powers a host off, until they are gone, and leaves it alone.
const (
	RebootAnnotation   = "reboot.metal3.io" // also as a prefix: reboot.metal3.io/<anything>
	DetachedAnnotation = "baremetalhost.metal3.io/detached"
)

// HostIdentity are the fields of a BareMetalHost's spec by a change of which it is deprovisioned, or is no longer the Machine's, or has
// other hardware behind it.
func HostIdentity() []string {
	return []string{"bmc", "consumerRef", "customDeploy", "externallyProvisioned", "image"}
}

// Host reads what a request does to a BareMetalHost that a Machine of the namespace uses, nil if none does or the request leaves it
// running. next is empty for DELETE.
func Host(old, next []byte, namespace string) (*admission.HostRequest, error) {
	var was, is bareMetalHost
	if err := ReadJSON(old, &was); err != nil {
		return nil, fmt.Errorf("the stored BareMetalHost cannot be read: %w", err)
	}
	ref, _ := was.Spec["consumerRef"].(map[string]any)
	group, _ := ref["apiVersion"].(string)
	machine, _ := ref["name"].(string)
	if ref["kind"] != "Machine" || ref["namespace"] != namespace || !strings.HasPrefix(group, "machine.openshift.io/") {
		return nil, nil
	}
	r := &admission.HostRequest{Name: was.Metadata.Name, Namespace: was.Metadata.Namespace, Machine: machine}
	if len(next) == 0 {
		r.Operation, r.What, r.Ends = admission.OperationDelete, "the deletion", true
		return r, nil
	}
	if err := ReadJSON(next, &is); err != nil {
		return nil, fmt.Errorf("the new BareMetalHost cannot be read: %w", err)
	}
	r.Operation = admission.OperationUpdate
	for _, field := range HostIdentity() {
		if !reflect.DeepEqual(was.Spec[field], is.Spec[field]) {
			r.What, r.Ends = "a change of spec."+field, true
			return r, nil
		}
	}
	if was.Spec["online"] == true && is.Spec["online"] != true {
		r.What = "spec.online: false"
	}
	for _, key := range slices.Sorted(maps.Keys(is.Metadata.Annotations)) {
		switch _, had := was.Metadata.Annotations[key]; {
		case had:
		case key == DetachedAnnotation:
			r.What, r.Ends = "annotation "+key, true
			return r, nil
		case key == RebootAnnotation, strings.HasPrefix(key, RebootAnnotation+"/"):
			r.What = "annotation " + key
		}
	}
	if r.What == "" {
		return nil, nil
	}
	return r, nil
}
