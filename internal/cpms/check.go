package cpms

import (
	"fmt"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Check says why a set could not be acted by as it is about to be written, and makes the Machines that it would create: one for each of
// its failure domains. old is the stored set, nil if it is new.
func Check(old, set *machinev1.ControlPlaneMachineSet, infra *configv1.Infrastructure) ([]*machinev1beta1.Machine, error) {
	_, t, err := parts(set, infra)
	if err != nil {
		return nil, err
	}
	was, now := "", prefix(set, t.machine.ObjectMeta.Labels)
	if old != nil {
		// What was stored and cannot be read has no platform to keep.
		if before, err := readTemplate(old, infra); err == nil {
			if before.config.Type() != t.config.Type() {
				return nil, fmt.Errorf("its platform was %s and is now %s; a control plane stays on its platform", before.config.Type(), t.config.Type())
			}
			was = prefix(old, before.machine.ObjectMeta.Labels)
		}
	}
	// Most platforms give a Machine's name to its host: a prefix, five random characters and an index. A set that has longer ones goes on.
	const longest, rest = validation.DNS1123LabelMaxLength, len("-01234-99")
	if n := len(now) + rest; now != was && n > longest {
		return nil, fmt.Errorf("new Machines would be called %s-<5 random>-<index>, which is up to %d characters, and a host's name has at most %d: set spec.machineNamePrefix to at most %d characters", now, n, longest, longest-rest)
	}
	return Trials(set, infra)
}
