package machineset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Plan is what to do now. After a Machine is created or deleted, look again.
type Plan struct {
	Actions []Action
	Notes   []Note
	Counts  Counts
}

// Counts are what the set's status says.
type Counts struct {
	Replicas    int // Machines that the set owns; of an Inactive set, those that it selects
	Deleting    int // of these, being deleted
	Ready       int // of these, with a ready Node
	Updated     int // of these, ready, as the template says and not being deleted
	Unavailable int // how many ready ones are missing
	Uneven      int // by how many live Machines the most crowded failure domain exceeds the emptiest
}

// Decide computes the plan of a set. Every action has passed the invariants; if one did not, there are no actions, and a Note says which.
func Decide(s *quorum.Snapshot, set *Set) Plan {
	p := newPlanner(s, set)
	p.plan.Counts = p.counts()
	p.decide()
	if err := CheckPlan(s, set, p.plan.Actions); err != nil {
		p.plan.Actions = nil
		p.note(ReasonInvariantViolated, "", "nothing is done: %v", err)
	}
	return p.plan
}

// planner holds what the steps share.
type planner struct {
	s    *quorum.Snapshot
	set  *Set
	join *quorum.Join
	// live and deleting are the Machines that the set owns, the oldest first.
	live, deleting []*quorum.Machine
	waits          bool // a step has something to do, and waits
	stopped        bool // no Machine is deleted or rolled out until a person has mended something
	strangers      int  // live Machines that may be the set's, and that it does not own
	plan           Plan
}

func newPlanner(s *quorum.Snapshot, set *Set) *planner {
	p := &planner{s: s, set: set, join: quorum.NewJoin(s)}
	for i := range s.Machines {
		switch m := &s.Machines[i]; {
		case !set.owns(m):
		case m.Deleting():
			p.deleting = append(p.deleting, m)
		default:
			p.live = append(p.live, m)
		}
	}
	slices.SortFunc(p.live, func(a, b *quorum.Machine) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(p.deleting, func(a, b *quorum.Machine) int {
		return cmp.Or(a.DeletedAt.Compare(b.DeletedAt), cmp.Compare(a.Name, b.Name))
	})
	return p
}

// decide fills the plan with the first step that has something to do.
func (p *planner) decide() {
	switch {
	case p.set.OperatorWhy != "":
		p.note(ReasonOperatorUnknown, "", "nothing is done: whether the platform's operator reconciles the set is not known: %s", p.set.OperatorWhy)
		return
	case p.set.Deleting && (p.set.Taken || p.set.OtherOperator == ""):
		p.plan.Actions = p.dissolve()
		return
	case p.set.OtherOperator != "":
		p.note(ReasonOperatorPresent, "", "the set is left alone: the platform's operator reconciles it (%s)", p.set.OtherOperator)
		if p.set.Taken {
			p.plan.Actions = []Action{{Change: LeaveSet{}, Why: "the platform's operator reconciles it: " + p.set.OtherOperator}}
		}
		return
	case !p.set.Active:
		p.note(ReasonSetInactive, "", "nothing is done while the set is Inactive; set spec.state to Active to have it keep its Machines")
		return
	case !p.set.Taken && p.set.Unusable == "":
		p.plan.Actions = []Action{{Change: TakeSet{}, Why: "it is Active, and no other operator reconciles it"}}
		return
	}
	p.noteHindrances()
	if p.set.Unusable != "" {
		return
	}
	if c := p.counts(); p.set.CreationFailure != "" && (c.Unavailable > 0 || c.Updated < p.set.Replicas) {
		p.note(ReasonCreationFails, "", "%s", p.set.CreationFailure)
	}
	for _, step := range []func() []Action{p.adopt, p.shrink, p.grow, p.rollout} {
		if p.plan.Actions = step(); len(p.plan.Actions) > 0 || p.waits {
			return
		}
	}
}

// noteHindrances notes all that a person must mend before a Machine is deleted or rolled out. Lost Machines are replaced all the same.
func (p *planner) noteHindrances() {
	if p.set.Unusable != "" {
		p.note(ReasonSetUnusable, "", "nothing is done: %s", p.set.Unusable)
	}
	for i := range p.s.Machines {
		if m := &p.s.Machines[i]; m.ControlPlane() && !m.Deleting() {
			p.noteHindrance(m)
		}
	}
	p.noteStrays()
	p.noteIndexes()
	p.stopped = slices.ContainsFunc(p.plan.Notes, func(n Note) bool { return n.Reason.hinders() })
}

// noteHindrance notes why the set cannot act by a live control-plane Machine.
func (p *planner) noteHindrance(m *quorum.Machine) {
	place, owned, notes := p.set.place(m), p.set.owns(m), len(p.plan.Notes)
	const only = "only lost Machines are replaced: "
	switch c := m.Controller(); {
	case !owned && !place.Selected && place.Unclear == "": // none of the set's
	case !owned && c != nil && place.Selected:
		p.note(ReasonMachineForeign, m.Name, only+"%s %s controls Machine %s, which the set's selector selects; take that owner reference off, or change the Machine's labels", c.Kind, c.Name, m.Name)
	case m.Mirrored:
		p.note(ReasonMachineUnclear, m.Name, only+"Machine %s is mirrored from another API", m.Name)
	case m.Unread != "":
		p.note(ReasonMachineUnclear, m.Name, only+"Machine %s cannot be read: %s", m.Name, m.Unread)
	case place.Unclear != "":
		p.note(ReasonMachineUnclear, m.Name, only+"how Machine %s compares with the template is not known: %s", m.Name, place.Unclear)
	case place.Fresh && place.Outdated != "":
		p.note(ReasonTemplateUnfit, m.Name, only+"the set created Machine %s from the template as it is, and something changed it: %s; have the template say the same, or delete that Machine if a person changed it", m.Name, place.Outdated)
	}
	if !owned && len(p.plan.Notes) > notes {
		p.strangers++
	}
}

// noteStrays notes etcd members that run, and on no Machine of the set: one of them could take the seat of a Machine that the set creates.
func (p *planner) noteStrays() {
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		host := p.join.Host(member)
		if m := host.Machine(); !member.Healthy || host.Bootstrap || m != nil && (m.Deleting() || p.set.owns(m) || p.set.place(m).Selected) {
			continue
		}
		p.note(ReasonMemberOutside, "", "only lost Machines are replaced: etcd member %s%s runs on no Machine of the set; remove it, or have the set's selector select its Machine", member, p.where(member))
	}
}

func (p *planner) counts() Counts {
	var c Counts
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if !p.set.owns(m) && (p.set.Active || !p.set.place(m).Selected) {
			continue
		}
		c.Replicas++
		if m.Deleting() {
			c.Deleting++
		}
		if !p.ready(m) {
			continue
		}
		c.Ready++
		if p.outdated(m) == "" && p.set.place(m).Unclear == "" && !m.Deleting() {
			c.Updated++
		}
	}
	c.Unavailable = max(0, p.set.Replicas-c.Ready)
	c.Uneven = p.uneven()
	return c
}

// ready reports whether a Machine has a ready Node.
func (p *planner) ready(m *quorum.Machine) bool {
	n := p.join.Node(m)
	return n != nil && n.Ready
}

// votes reports whether a Machine, and no other, hosts a healthy voter.
func (p *planner) votes(m *quorum.Machine) bool {
	v := p.join.Voter(m)
	return v != nil && v.Healthy && p.join.Host(v).Machine() == m
}

// outdated is why a Machine must be replaced, "" if it is as the set says, or where that is not known.
func (p *planner) outdated(m *quorum.Machine) string {
	place := p.set.place(m)
	if place.Unclear != "" {
		return ""
	}
	if place.Outdated == "" && len(p.set.Domains) > 0 && !slices.Contains(p.set.Domains, place.Domain) {
		return fmt.Sprintf("failure domain %s is none of the set's", cmp.Or(place.Domain, "\"\""))
	}
	return place.Outdated
}

func (p *planner) note(reason Reason, machine, format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, Note{reason, machine, quorum.Clip(fmt.Sprintf(format, args...), 1000)})
}

// AtRest reports whether the set has all that it wants and waits for nothing.
func (p *Plan) AtRest(set *Set) bool {
	c := &p.Counts
	return len(p.Actions) == 0 && len(p.Notes) == 0 && c.Replicas == set.Replicas && c.Unavailable == 0
}

// Describe is the plan as a person reads it: a line for each action and note.
func (p *Plan) Describe() string {
	var b strings.Builder
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "%s: %s\n", a.Describe(), a.Why)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "%s: %s\n", n.Reason, n.Message)
	}
	if b.Len() == 0 {
		return "at rest\n"
	}
	return b.String()
}
