package main

import (
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/membership"
)

// config is one control plane to explore, and what may happen to it.
type config struct {
	name     string
	voters   int    // at first
	desired  int    // wanted
	then     int    // wanted from some time on, 0 for never
	version  string // etcd's
	spares   int    // Machines that are created in the course of it
	faults   int    // members that die, within etcd's tolerance unless beyond
	recs     int    // reconcilers at once
	learners int    // at a time, for Holdfast; 0 is 1
	lower    int    // of the voters at first, those whose etcd takes one learner at a time
	lowNew   bool   // the etcd of every new host takes one learner at a time
	bare     bool   // the control plane has yet to be adopted; in guard mode cluster-etcd-operator's hook is on
	begun    int    // Machines whose deletion began before, of a control plane that is bare
	born     bool   // new Machines come with hook and latch
	broken   int    // new Machines on whose hosts etcd never starts, at once
	stays    bool   // the Node of a terminated Machine may stay, not ready
	deletes  int    // Machines that are deleting at once, at most; 0 for any number
	escape   bool   // people take hooks and latches off, also two at once
	strays   bool   // a fault may also be a voter that somebody lists by hand, and that never starts
	nodes    bool   // a fault may also be the loss of a Node object
	rehomes  bool   // a fault may also be a host that comes back at another address, and it may go back to the old one
	mutes    bool   // a fault may also be a voter that takes part and does not answer
	outage   bool   // Holdfast does not answer admission for a while, at any time
	lifted   bool   // a person lifts rules
	hostile  bool   // automation strips hooks, people put them back, cluster-etcd-operator takes them off
	moves    bool   // etcd's leader moves by itself
	left     bool   // a person lifts rule escape-hatch, and the override is left behind
	beyond   bool   // more fails than etcd tolerates, and people force what forbids it
	flees    bool   // a Machine may be gone before it was recorded what was just added to it
	windows  bool   // between second look and call, the very member that the call is about may die or come back, its host go, its Machine be let go
	guard    bool   // Holdfast keeps the quorum guard; a fault may also be a person who drains a Node
	set      bool   // Holdfast's set creates and deletes Machines; the spares are how many it creates
	operated bool   // guard mode: cluster-etcd-operator changes etcd's members, and has its hook on Machines
	edits    int    // how often a person edits its template
	onDelete bool   // it replaces a Machine only once somebody has deleted it
	domains  int    // failure domains of the set
	crowded  bool   // at first all its Machines are in one
	indexes  bool   // its Machines have indexes
	barren   int    // Machines that get no instance, at once
	blind    bool   // planted: reconcilers apply what they decided on at first sight, without a lock

	finds membership.Invariant // what the exploration is known to find

	ids   admission.Identities
	users [requests]admission.User
	hosts [slots]host
}

func (c *config) new() bool { return c.version == "3.7.3" }

func (c *config) start() state {
	var s state
	for i := range c.voters {
		o := &s.at[i]
		o.set(machine, live)
		o.set(node, ready)
		o.set(member, voter)
		o.put(1, instance, own)
		if i < c.lower {
			o.set(lower, 1)
		}
		if !c.bare {
			o.put(1, hook, latch, evidence)
			o.set(record, recHere)
		} else if c.operated {
			o.set(hook, 1)
		}
		if i < c.begun {
			o.set(machine, deleting)
		}
		if c.guard && !c.bare {
			o.set(pod, podReady)
		}
		if c.indexes {
			o.set(index, uint32(i)+1)
		}
		if c.domains > 0 {
			o.set(domain, uint32(i%c.domains)+1)
		}
		if c.crowded {
			o.set(domain, 1)
		}
	}
	s.at[0].set(leads, 1)
	s.ctl = ctl(c.faults)<<faultShift | ctl(c.spares)<<spareShift | ctl(c.edits)<<editShift
	if c.guard && !c.bare {
		s.size(max(1, c.voters-1))
	}
	return s
}
