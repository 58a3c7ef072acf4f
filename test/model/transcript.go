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
		from, to := e.seen.states[path[k]], e.seen.states[path[k-1]]
		found := false
		e.fail = func(membership.Invariant, string, event) {}
		e.emit = func(next *state, ev event) {
			moved := names
			if next.canon(&moved); !found && *next == to {
				found = true
				fmt.Fprintf(&b, "# %2d. %s\n", len(path)-k, ev.text(&names))
				names = moved
			}
		}
		e.steps(&from)
	}
	if v.event != nil {
		fmt.Fprintf(&b, "# %2d. %s: this breaks %s\n", len(path), v.event.text(&names), v.invariant)
	}
	b.WriteString(e.c.cluster(&e.seen.states[v.at], &names) + "run\n----\n")
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
	if c.operated {
		b.WriteString("mode guard\n")
	}
	if c.learners > 1 {
		fmt.Fprintf(&b, "max-learners %d\n", c.learners)
	}
	for i, o := range s.at {
		b.WriteString(o.machineText(names[i]))
	}
	lead := ""
	for i, o := range s.at {
		b.WriteString(o.memberText(names[i]))
		if o.get(member) != noMember && o.is(leads) {
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

// machineText is the line of the Machine at a slot, or of the Node that it left, "" where there is neither.
func (o slot) machineText(n int) string {
	if !o.is(machine) {
		if o.is(node) {
			return fmt.Sprintf("node master-%d 10.0.0.%d not-ready\n", n, 10+n)
		}
		return ""
	}
	text := fmt.Sprintf("machine master-%d 10.0.0.%d", n, 10+n)
	option := func(on bool, name string) {
		if on {
			text += " " + name
		}
	}
	option(!o.is(hook) && !o.is(latch), "bare")
	option(!o.is(hook) && o.is(latch), "hook=none")
	option(o.is(hook) && !o.is(latch), "latch=none")
	option(!o.is(instance), "no-instance")
	option(o.get(node) == notReady, "not-ready")
	option(o.get(record) == recGone, "uid=new")
	option(o.get(machine) == deleting, "deleting")
	option(o.is(moved), fmt.Sprintf("moved=10.0.1.%d", 10+n))
	return text + "\n"
}

// memberText is the line of the member that is listed at a slot, "" where none is.
func (o slot) memberText(n int) string {
	if o.get(member) == noMember {
		return ""
	}
	text := fmt.Sprintf("member a%d 10.0.0.%d", n, 10+n)
	text += [...]string{unstarted: " learner unstarted", behind: " learner lag=9000", caughtUp: " learner", voter: "", stray: " unstarted"}[o.get(member)]
	if o.is(stalled) {
		text += " idle=1h"
	}
	if m := o.get(member); o.is(mute) {
		text += " silent=1h"
	} else if m != unstarted && m != stray {
		text += [...]string{up: "", down: " dead=0s", dead: " dead=1h"}[o.get(answers)]
	}
	if o.is(lower) {
		text += " max-learners=1"
	}
	return text + "\n"
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
	case operatorDecides:
		return fmt.Sprintf("cluster-etcd-operator decides: %s %s", action, at)
	case operatorStops:
		return fmt.Sprintf("cluster-etcd-operator gives up: %s %s", action, at)
	case operatorActs:
		return fmt.Sprintf("cluster-etcd-operator does it: %s %s", action, at)
	case setDecides:
		return "the set decides: " + ev.set.String() + " " + at
	case setForgets:
		return "the set does not: " + ev.set.String()
	case setDeletes:
		return "the set deletes Machine " + at
	default:
		return strings.ReplaceAll(worldText(ev.what), "HOST", at)
	}
}

// worldText is what happens without Holdfast and without a request to it. HOST is the Machine, the host and the Node.
func worldText(w what) string {
	return [...]string{
		creates:         "Machine HOST is created",
		createsBroken:   "Machine HOST is created, where etcd never starts",
		createsBarren:   "Machine HOST is created, and never gets an instance",
		edited:          "the set's template is edited",
		arrives:         "HOST gets its instance and a ready Node",
		starts:          "the learner on HOST starts",
		catchesUp:       "the learner on HOST catches up",
		passes:          "time passes for the member on HOST",
		dies:            "the member on HOST dies",
		returns:         "the member on HOST comes back",
		drains:          "the instance of HOST stops",
		goes:            "HOST is terminated and gone",
		goesLeavingNode: "HOST is terminated and gone, but for its Node",
		cordons:         "Node HOST is cordoned, to be drained for its Machine's deletion",
		unguards:        "Node HOST is drained, and its Machine's latch holds",
		probes:          "the guard pod on Node HOST is probed",
		evicts:          "a person drains Node HOST",
		reboots:         "the drained Node HOST is restarted, and its member stops",
		uncordons:       "Node HOST is uncordoned",
		loses:           "the Node object of HOST is deleted",
		hushes:          "the member at HOST votes on and answers nobody else",
		rehomes:         "the host of HOST comes back at another address",
		goesHome:        "the host of HOST has its old address again",
		listed:          "somebody lists a voter at HOST by hand, which never starts",
		expires:         "the override of HOST is an hour old",
		wants:           "another number of voters is wanted",
		elects:          "the member on HOST becomes the leader",
	}[w]
}
