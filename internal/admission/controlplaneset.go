package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// ControlPlaneSetRequest creates or changes the ControlPlaneMachineSet that Holdfast is to reconcile, or deletes the one that it reconciles.
type ControlPlaneSetRequest struct {
	Namespace, Name string
	Why             string // why Holdfast could not act by the new set, "" if it could
	Unknown         string // why that is not known, "" if it is
	Foreground      bool   // it is deleted with foreground propagation: the garbage collector would delete its Machines before it lets go of them
	Finalizer       string // Holdfast's, if somebody else takes it off the set
}

// AdmitControlPlaneSet is the rule control-plane-set. What is not known passes, with a Warning: nothing is created or deleted by a set that
// cannot be acted by.
func AdmitControlPlaneSet(r *ControlPlaneSetRequest) Decision {
	var d Decision
	name := quorum.Clip(r.Name, 80)
	switch {
	case r.Why != "":
		d.add(quorum.RuleControlPlaneSet, VerdictDenied,
			fmt.Sprintf("Refused (%s): Holdfast could not act by ControlPlaneMachineSet %s: %s.", quorum.RuleControlPlaneSet, name, quorum.Clip(r.Why, 1000)),
			"Nothing was stored. Correct that, and try again; docs/full-mode.md says what a set needs.")
	case r.Foreground:
		d.add(quorum.RuleControlPlaneSet, VerdictDenied,
			fmt.Sprintf("Refused (%s): with foreground propagation the garbage collector would delete the Machines of ControlPlaneMachineSet %s, too, and nobody would replace them.", quorum.RuleControlPlaneSet, name),
			fmt.Sprintf("Delete it in the background, and its Machines stay: kubectl -n %s delete controlplanemachineset %s --cascade=background", r.Namespace, name))
	case r.Finalizer != "":
		d.add(quorum.RuleControlPlaneSet, VerdictDenied,
			fmt.Sprintf("Refused (%s): Holdfast's finalizer stays on ControlPlaneMachineSet %s: the garbage collector would delete its Machines with a set that lacks it.", quorum.RuleControlPlaneSet, name),
			fmt.Sprintf("In a manifest, keep %s in metadata.finalizers. Holdfast takes it off once a set that is being deleted owns no Machine any more: kubectl -n %s delete controlplanemachineset %s --cascade=background", r.Finalizer, r.Namespace, name))
	case r.Unknown != "":
		d.add(quorum.RuleControlPlaneSet, VerdictAllowed,
			fmt.Sprintf("Holdfast (%s): whether ControlPlaneMachineSet %s can be acted by is not known: %s", quorum.RuleControlPlaneSet, name, quorum.Clip(r.Unknown, 100)),
			fmt.Sprintf("See its condition Degraded: kubectl -n %s get controlplanemachineset %s -o yaml", r.Namespace, name))
	}
	return d
}
