package machineset

// adopt owns the control-plane Machines that the selector selects and that have no controller. One that is being deleted is not adopted:
// it is missing already.
func (p *planner) adopt() []Action {
	var out []Action
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if m.ControlPlane() && !m.Deleting() && !m.Mirrored && m.Unread == "" && m.Controller() == nil && p.set.place(m).Selected {
			out = append(out, about(m, Adopt{}, "the set's selector selects it, and it has no controller"))
		}
	}
	return out
}
