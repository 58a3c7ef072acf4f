package cpms

import (
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// Check says why a set could not be acted by as it is about to be written, and makes the Machines that it would create: one for each of
// its failure domains. old is the stored set, nil if it is new.
func Check(old, set *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure) ([]*machinev1beta1.Machine, error) {
	_, t, err := parts(set, infra)
	if err != nil {
		return nil, err
	}
	if old != nil {
		// What was stored and cannot be read has no platform to keep.
		if was, err := readTemplate(old, infra); err == nil && was.config.Type() != t.config.Type() {
			return nil, fmt.Errorf("its platform was %s and is now %s; a control plane stays on its platform", was.config.Type(), t.config.Type())
		}
	}
	domains := []string{""}
	if len(t.domains) > 0 {
		domains = nil
	}
	for _, d := range t.domains {
		domains = append(domains, d.String())
	}
	var machines []*machinev1beta1.Machine
	for i, domain := range domains {
		m, err := NewMachine(set, infra, machineset.Create{Domain: domain, Index: i}, "check")
		if err != nil {
			return nil, err
		}
		m.OwnerReferences = nil // the set is not stored yet
		machines = append(machines, m)
	}
	return machines, nil
}
