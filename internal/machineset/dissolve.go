package machineset

import "slices"

// dissolve lets go of the Machines of a set that is being deleted, then of the set, if anything of Holdfast's or of the platform's operator's
// holds it up. The Machines stay.
func (p *planner) dissolve() []Action {
	var out []Action
	for _, m := range slices.Concat(p.live, p.deleting) {
		out = append(out, about(m, Disown{}, "the set is being deleted, and its Machines stay"))
	}
	if len(out) == 0 && (p.set.Taken || p.set.PlatformFinalizer) {
		out = append(out, Action{Change: LeaveSet{}, Why: "it owns no Machine any more"})
	}
	return out
}
