package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/machineset"
)

// setDoing is what Holdfast's set is in the middle of; zero is nothing.
//
//	0-1  setIdle, setCreating or setDeleting
//	2-3  the failure domain of the Machine to create, plus one
//	4-6  its index, plus one
//	7-8  flags
type setDoing uint32

const ( // setDoing, first bits
	setIdle = iota
	setCreating
	setDeleting
)

const ( // setDoing, flags
	setOld   setDoing = 1 << (7 + iota) // the template was edited since it looked
	setStale                            // another number is wanted since it looked
)

func (d setDoing) stage() int          { return int(d & 3) }
func (d setDoing) domain() uint32      { return uint32(d >> 2 & 3) }
func (d setDoing) index() uint32       { return uint32(d >> 4 & 7) }
func (d setDoing) has(f setDoing) bool { return d&f != 0 }

func (d setDoing) String() string {
	switch d.stage() {
	case setCreating:
		return fmt.Sprintf("create a Machine with index %d in failure domain %d,", int(d.index())-1, int(d.domain())-1)
	case setDeleting:
		return "delete Machine"
	}
	return "nothing"
}

func (s *state) setDoing() setDoing { return setDoing(s.ctl >> setShift & setMask) }

// setSet says what the set is in the middle of. Whom it deletes is said by targetS.
func (s *state) setSet(d setDoing) {
	s.ctl = s.ctl&^(setMask<<setShift) | ctl(d)<<setShift
	if d.stage() != setDeleting {
		for i := range s.at {
			s.at[i].set(targetS, 0)
		}
	}
}

func (s *state) edits() int { return int(s.ctl >> editShift & 3) }

// edit is an edit of the template: every Machine differs from it.
func (s *state) edit() {
	for i := range s.at {
		if s.at[i].is(machine) {
			s.at[i].set(outdated, 1)
		}
	}
	if d := s.setDoing(); d.stage() == setCreating {
		s.setSet(d | setOld)
	}
}

// least is how many voters have to be left, and serve, after a healthy one is removed. A set that grows wants ever more, so it is
// as many as there are.
func (s *state) least(c *config) int {
	if voters, _ := s.tally(); c.set {
		return min(s.wanted(c), voters)
	}
	return s.wanted(c)
}

const setUID = "set"

// setOf is the set as the plan sees it.
func (c *config) setOf(s *state, way int) *machineset.Set {
	set := &machineset.Set{
		Name: "cluster", UID: setUID, Active: true, Taken: true, Replicas: s.wanted(c), Strategy: machineset.StrategyRollingUpdate,
		Places: map[string]machineset.Place{},
	}
	if c.onDelete {
		set.Strategy = machineset.StrategyOnDelete
	}
	for d := range c.domains {
		set.Domains = append(set.Domains, domainName(uint32(d)+1))
	}
	for k := range slots {
		o := s.at[order(k, way)]
		if !o.is(machine) {
			continue
		}
		place := machineset.Place{Selected: true, Domain: domainName(o.get(domain))}
		if i := o.get(index); i > 0 {
			place.Index = new(int(i) - 1)
		}
		if o.is(outdated) {
			place.Outdated = "instance type"
		}
		set.Places[c.hosts[k].uid] = place
	}
	return set
}

func domainName(d uint32) string {
	if d == 0 {
		return ""
	}
	return "zone-" + strconv.Itoa(int(d)-1)
}

// setPlan is what the set does in a state.
type setPlan struct {
	doing     setDoing
	slot      int  // of the Machine to delete
	violated  bool // it had to withdraw its own plan
	overlarge bool // more than one action
}

func (e *explorer) setPlan(v *view, s *state, way int) *setPlan {
	if v.set[way] == nil {
		v.set[way] = e.c.setDecide(s, way)
	}
	return v.set[way]
}

func (c *config) setDecide(s *state, way int) *setPlan {
	p := machineset.Decide(c.snapshot(s, way), c.setOf(s, way))
	out := &setPlan{overlarge: len(p.Actions) > 1}
	for _, n := range p.Notes {
		out.violated = out.violated || n.Reason == machineset.ReasonInvariantViolated
	}
	for _, a := range p.Actions {
		switch change := a.Change.(type) {
		case machineset.Create:
			out.doing = setCreating
			for d := range uint32(c.domains) {
				if domainName(d+1) == change.Domain {
					out.doing |= setDoing(d+1) << 2
				}
			}
			if c.indexes {
				out.doing |= setDoing(change.Index+1) << 4
			}
		case machineset.Delete:
			_, k := about(a.UID)
			out.doing, out.slot = setDeleting, order(k, way)
		case machineset.Adopt, machineset.Disown, machineset.TakeSet, machineset.LeaveSet:
			panic("all Machines are the set's: " + a.Describe())
		}
	}
	return out
}

// setSteps are those of Holdfast's set, and the edits of its template.
func (e *explorer) setSteps(s *state, v *view) {
	if s.edits() > 0 {
		e.then(s, event{what: edited}, func(n *state) {
			n.ctl -= 1 << editShift
			n.edit()
		})
	}
	d := s.setDoing()
	if d.stage() == setIdle {
		for way := range 2 {
			e.setLook(s, e.setPlan(v, s, way))
		}
		return
	}
	next := *s
	next.setSet(0)
	e.emit(&next, event{what: setForgets, set: d})
	if d.stage() == setCreating {
		e.setCreate(s, d)
		return
	}
	i, _ := s.find(targetS) // it deletes, so there is one
	answer := e.replies(v, s, 0)[i][askSetDelete]
	if s.at[i].get(machine) != live || answer.slot == 0 {
		return
	}
	next.at[i] = answer.slot | next.at[i]&hidden
	ev := event{what: setDeletes, slot: int8(i), set: d}
	e.judge(s, &next, ev)
	e.emit(&next, ev)
}

// setLook is the set's look: it sets out to do what its plan says. A Machine is deleted only where there is one more than wanted, and a
// voter's only where enough others vote and none is on the way.
func (e *explorer) setLook(s *state, p *setPlan) {
	ev := event{what: setDecides, slot: int8(p.slot), set: p.doing}
	there, most := s.count(slot.lives), s.wanted(e.c)
	switch {
	case p.violated:
		e.fail("set", "it had to withdraw its own plan", ev)
	case p.overlarge:
		e.fail("set", "two actions in one round", ev)
	case p.doing == setIdle:
		return
	case p.doing.stage() == setCreating && there > most:
		e.fail("set", "it creates a Machine more than it may", ev)
	case p.doing.stage() == setDeleting && there <= most:
		e.fail("set", "it deletes a Machine though there are no more than wanted", ev)
	case p.doing.stage() == setDeleting && s.at[p.slot].votes():
		others := 0
		for i, o := range s.at {
			if i != p.slot && o.healthy() && o.get(machine) == live {
				others++
			}
			if i != p.slot && o.learner() {
				e.fail("set", "it deletes a voter's Machine while a learner is under way", ev)
			}
		}
		if others < most {
			e.fail("set", "it deletes a voter's Machine before enough others vote", ev)
		}
	}
	next := *s
	next.setSet(p.doing)
	if p.doing.stage() == setDeleting {
		next.at[p.slot].set(targetS, 1)
	}
	e.emit(&next, ev)
}

// setCreate is the creation that the set decided on: the Machine comes up, or etcd never starts there, or it gets no instance.
func (e *explorer) setCreate(s *state, d setDoing) {
	i := s.vacant()
	if s.spares() == 0 || i < 0 {
		return
	}
	for _, kind := range [...]struct {
		what
		field
		may bool
	}{{creates, 0, true}, {createsBroken, broken, s.countOf(broken) < e.c.broken}, {createsBarren, barren, s.countOf(barren) < e.c.barren}} {
		if !kind.may {
			continue
		}
		next := *s
		next.ctl -= 1 << spareShift
		next.setSet(0)
		next.place(e.c, i, d)
		if kind.field != 0 {
			next.at[i].set(kind.field, 1)
		}
		ev := event{what: kind.what, slot: int8(i), set: d}
		if next.count(slot.lives) > s.wanted(e.c)+1 && !d.has(setStale) {
			e.fail("set", "there are more Machines than wanted and one", ev)
		}
		e.emit(&next, ev)
	}
}

// place puts a Machine of the set's at a vacant address.
func (s *state) place(c *config, i int, d setDoing) {
	s.create(i, c.born)
	s.at[i].set(domain, d.domain())
	s.at[i].set(index, d.index())
	if d.has(setOld) {
		s.at[i].set(outdated, 1)
	}
}

// vacant is the first slot at which nothing is, or -1.
func (s *state) vacant() int { return slices.Index(s.at[:], 0) }

// setFair is a round of the set's in a fair run.
func (e *explorer) setFair(s *state) {
	p := e.setPlan(e.view(s), s, 0)
	switch p.doing.stage() {
	case setCreating:
		if i := s.vacant(); i >= 0 {
			s.place(e.c, i, p.doing)
		}
	case setDeleting:
		if answer := e.replies(e.view(s), s, 0)[p.slot][askSetDelete]; answer.slot != 0 {
			s.at[p.slot] = answer.slot | s.at[p.slot]&hidden
		}
	}
}

// setDone says whether the set has all that it wants: as many Machines, none outdated, and the spread is even.
func (s *state) setDone(c *config) bool {
	var in [4]int
	for _, o := range s.at {
		if o.get(machine) == live && o.is(outdated) && !c.onDelete {
			return false
		}
		if o.get(machine) == live {
			in[o.get(domain)]++
		}
	}
	for d := range c.domains {
		for other := range d {
			if n := in[d+1] - in[other+1]; (n > 1 || n < -1) && !c.onDelete {
				return false
			}
		}
	}
	return s.count(slot.lives) == s.wanted(c)
}

// setText is the set, and what it makes of its Machines, in the words of test/decisions/testdata.
func (c *config) setText(s *state, names *[slots]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cpms replicas=%d", s.wanted(c))
	if c.onDelete {
		b.WriteString(" on-delete")
	}
	if domains := c.setOf(s, 0).Domains; len(domains) > 0 {
		b.WriteString(" domains=" + strings.Join(domains, ","))
	}
	b.WriteString("\n")
	for i, o := range s.at {
		if !o.is(machine) {
			continue
		}
		fmt.Fprintf(&b, "place master-%d", names[i])
		if n := o.get(index); n > 0 {
			fmt.Fprintf(&b, " index=%d", n-1)
		}
		if d := o.get(domain); d > 0 {
			b.WriteString(" domain=" + domainName(d))
		}
		if o.is(outdated) {
			b.WriteString(" outdated=small")
		}
		b.WriteString("\n")
	}
	return b.String()
}
