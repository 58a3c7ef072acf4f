package admission

import (
	"fmt"
	"strconv"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// ScaleRequest is for a ControlPlaneMachineSet that Holdfast reconciles, or is to reconcile.
type ScaleRequest struct {
	Namespace, Name string
	User            User
	// From is how many replicas the set has, or how many live control-plane Machines there are where Holdfast does not reconcile it yet.
	// FromWhy says why that is not known, "" if it is.
	From    int
	FromWhy string
	Starts  bool // Holdfast does not reconcile the set yet
	Deletes bool // the set is deleted
	To      int  // how many replicas it is to have
}

// AdmitScale is the rule scale-in: only a person has the set take Machines, and with them voters, away. It adds its finding to the decision
// about the same request.
func (ids Identities) AdmitScale(d *Decision, r *ScaleRequest) {
	person := ids.Classify(r.User) == ClassPerson
	set := "ControlPlaneMachineSet " + quorum.Clip(r.Name, 80)
	if r.Deletes {
		if !person {
			d.add(quorum.RuleScaleIn, VerdictDenied,
				fmt.Sprintf("Refused (%s): only a person may delete %s, and %s is not a person: without it fewer voters may be wanted, and no Machine that is lost is replaced.", quorum.RuleScaleIn, set, quorum.Clip(r.User.Name, 80)),
				fmt.Sprintf("A person may: kubectl -n %s delete controlplanemachineset %s --cascade=background", r.Namespace, r.Name))
		}
		return
	}
	change := fmt.Sprintf("from %d Machines to %d", r.From, r.To)
	if r.FromWhy != "" {
		change = fmt.Sprintf("to %d Machines", r.To)
	} else if r.To >= r.From {
		return
	}
	then := fmt.Sprintf("etcd then has %s and tolerates the loss of %s", quorum.NVoters(r.To), atMost(quorum.Tolerance(r.To)))
	switch {
	case person && r.FromWhy != "": // it may be as many
	case person:
		d.add(quorum.RuleScaleIn, VerdictAllowed,
			fmt.Sprintf("Holdfast (%s): %s goes %s, one at a time: %s (now %s).", quorum.RuleScaleIn, set, change, then, atMost(quorum.Tolerance(r.From))))
	default:
		lines := []string{fmt.Sprintf("Refused (%s): only a person may scale %s %s, and %s is not a person: %s.", quorum.RuleScaleIn, set, change, quorum.Clip(r.User.Name, 80), then)}
		if r.FromWhy != "" {
			lines = append(lines, "How many control-plane Machines there are is not known, so it may be fewer. Try again. "+reasonLine(r.FromWhy))
		}
		do := fmt.Sprintf("A person may: kubectl -n %s scale controlplanemachineset %s --replicas %d", r.Namespace, r.Name, r.To)
		if r.Starts {
			do = "A person may: create or activate the set by hand."
		}
		d.add(quorum.RuleScaleIn, VerdictDenied, append(lines, do, "A manifest with that number is fine afterwards.")...)
	}
}

// atMost is a number of voters that may be lost.
func atMost(n int) string {
	if n <= 0 {
		return "none"
	}
	return strconv.Itoa(n)
}
