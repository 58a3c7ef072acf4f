package main

import (
	"fmt"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// transcript is a violation as a scenario: the way to it as comments, then the cluster as it is, in
// the words of test/decisions/testdata, and what to ask about it.
func (e *explorer) transcript(v *violation) string {
	var path []uint32
	for at := v.at; ; at = e.seen.from[at] {
		path = append(path, at)
		if at == 0 {
			break
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s, %s: %s.\n", e.c.name, v.invariant, v.what)
	var names [slots]int // of the host at each slot
	for i := range names {
		names[i] = i
	}
	for k := len(path) - 1; k > 0; k-- {
		from, to := e.seen.get(path[k]), e.seen.get(path[k-1])
		found := false
		e.steps(from, func(next *state, ev event) {
			moved := names
			if next.canon(&moved); !found && *next == *to {
				found = true
				fmt.Fprintf(&b, "# %2d. %s\n", len(path)-k, ev.text(&names))
				names = moved
			}
		}, func(membership.Invariant, string, event) {})
	}
	if v.event != nil {
		fmt.Fprintf(&b, "# %2d. %s: this breaks %s\n", len(path), v.event.text(&names), v.invariant)
	}
	b.WriteString(e.c.cluster(e.seen.get(v.at), &names) + "run\n----\n")
	if v.hung != nil {
		for i := range names {
			names[i] = i
		}
		b.WriteString("\n# Where it hangs; the names of the hosts are others.\n" + e.c.cluster(v.hung, &names) + "plan\n----\n" + membership.Decide(e.c.snapshot(v.hung, 0)).Describe())
		if e.c.set {
			set := machineset.Decide(e.c.snapshot(v.hung, 0), e.c.setOf(v.hung, 0))
			b.WriteString("\ncpms\n----\n" + set.Describe())
		}
	}
	return b.String()
}

// cluster is a state in the words of test/decisions/testdata.
func (c *config) cluster(s *state, names *[slots]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster\n")
	if c.learners > 1 {
		fmt.Fprintf(&b, "max-learners %d\n", c.learners)
	}
	for i, o := range s.at {
		if !o.is(machine) {
			if o.is(node) {
				fmt.Fprintf(&b, "node master-%d 10.0.0.%d not-ready\n", names[i], 10+names[i])
			}
			continue
		}
		fmt.Fprintf(&b, "machine master-%d 10.0.0.%d", names[i], 10+names[i])
		option := func(on bool, text string) {
			if on {
				b.WriteString(" " + text)
			}
		}
		option(!o.is(hook) && !o.is(latch), "bare")
		option(!o.is(hook) && o.is(latch), "hook=none")
		option(o.is(hook) && !o.is(latch), "latch=none")
		option(!o.is(instance), "no-instance")
		option(o.get(node) == notReady, "not-ready")
		option(o.get(record) == recGone, "uid=new")
		option(o.get(machine) == deleting, "deleting")
		option(o.is(moved), fmt.Sprintf("moved=10.0.1.%d", 10+names[i]))
		b.WriteString("\n")
	}
	lead := ""
	for i, o := range s.at {
		if o.get(member) == noMember {
			continue
		}
		fmt.Fprintf(&b, "member a%d 10.0.0.%d", names[i], 10+names[i])
		b.WriteString([...]string{unstarted: " learner unstarted", behind: " learner lag=9000", caughtUp: " learner", voter: "", stray: " unstarted"}[o.get(member)])
		if o.is(stalled) {
			b.WriteString(" idle=1h")
		}
		if m := o.get(member); m != unstarted && m != stray {
			b.WriteString([...]string{up: "", down: " dead=0s", dead: " dead=1h"}[o.get(answers)])
		}
		if o.is(lower) {
			b.WriteString(" max-learners=1")
		}
		if o.is(moved) {
			fmt.Fprintf(&b, " waits-at=10.0.1.%d", 10+names[i])
		}
		b.WriteString("\n")
		if o.is(leads) {
			lead = fmt.Sprintf("leader a%d\n", names[i])
		}
	}
	for i, o := range s.at {
		if o.get(record) != recNone {
			fmt.Fprintf(&b, "record a%d master-%d uid-master-%d\n", names[i], names[i], names[i])
		}
		if o.is(broken) {
			fmt.Fprintf(&b, "broken master-%d\n", names[i])
		}
	}
	fmt.Fprintf(&b, "%sdesired %d\netcd %s\n", lead, s.wanted(c), c.version)
	if c.set {
		b.WriteString(c.setText(s, names))
	}
	b.WriteString("----\nok\n\n")
	return b.String()
}

// text is an event in words.
func (ev event) text(names *[slots]int) string {
	who, at := fmt.Sprintf("reconciler %c", 'A'+ev.rec), fmt.Sprintf("master-%d", names[ev.slot])
	action := ev.doing.kind()
	switch ev.what {
	case decides:
		if ev.doing == 0 {
			return who + " decides"
		}
		return fmt.Sprintf("%s decides: %s %s", who, action, at)
	case records:
		return who + " looks, and writes its records"
	case crashes:
		return fmt.Sprintf("%s gives up: %s %s", who, action, at)
	case confirms:
		return fmt.Sprintf("%s looks again: %s %s", who, action, at)
	case applies:
		return fmt.Sprintf("%s does it: %s %s", who, action, at)
	case marks:
		if action == membership.KindReleaseHook {
			return fmt.Sprintf("%s takes the guard pod of %s away, and gives up", who, at)
		}
		return fmt.Sprintf("%s marks Node %s as having given way, and gives up", who, at)
	case asks:
		if ev.outage {
			return fmt.Sprintf("request for %s, which Holdfast does not answer: %s", at, ev.request)
		}
		return fmt.Sprintf("request for %s: %s", at, ev.request)
	case asksBoth:
		return fmt.Sprintf("request for %s and master-%d at once: %s", at, names[ev.to], ev.request)
	case creates:
		return "Machine " + at + " is created"
	case createsBroken:
		return "Machine " + at + " is created, where etcd never starts"
	case createsBarren:
		return "Machine " + at + " is created, and never gets an instance"
	case setDecides:
		return "the set decides: " + ev.set.String() + " " + at
	case setForgets:
		return "the set does not: " + ev.set.String()
	case setDeletes:
		return "the set deletes Machine " + at
	case edited:
		return "the set's template is edited"
	case arrives:
		return at + " gets its instance and a ready Node"
	case starts:
		return "the learner on " + at + " starts"
	case catchesUp:
		return "the learner on " + at + " catches up"
	case passes:
		return "time passes for the member on " + at
	case dies:
		return "the member on " + at + " dies"
	case returns:
		return "the member on " + at + " comes back"
	case drains:
		return "the instance of " + at + " stops"
	case goes:
		return at + " is terminated and gone"
	case goesLeavingNode:
		return at + " is terminated and gone, but for its Node"
	case cordons:
		return "Node " + at + " is cordoned, to be drained for its Machine's deletion"
	case probes:
		return "the guard pod on Node " + at + " is probed"
	case evicts:
		return "a person drains Node " + at + ", and its member stops"
	case uncordons:
		return "Node " + at + " is uncordoned"
	case loses:
		return "the Node object of " + at + " is deleted"
	case rehomes:
		return "the host of " + at + " comes back at another address"
	case goesHome:
		return "the host of " + at + " has its old address again"
	case listed:
		return "somebody lists a voter at " + at + " by hand, which never starts"
	case expires:
		return "the override of " + at + " is an hour old"
	case wants:
		return "another number of voters is wanted"
	case elects:
		return "the member on " + at + " becomes the leader"
	}
	return "?"
}
