package main

// what happens between two states.
type what uint8

const (
	decides what = iota
	records
	crashes
	confirms
	applies
	marks // a Node that gives way, or takes the guard pod of a Machine that is let go away, and no more
	asks
	asksBoth // two deletions are decided on one Snapshot
	creates
	createsBroken
	createsBarren
	setDecides
	setForgets
	setDeletes
	edited
	arrives
	starts
	catchesUp
	passes // time
	dies
	hushes // it answers nobody but etcd
	returns
	drains  // the instance stops before the Machine is gone
	cordons // the machine controller is about to drain it
	unguards
	goes
	goesLeavingNode
	probes // the readiness of a guard pod is what its member is
	evicts // a person drains a Node
	reboots
	uncordons
	loses // a Machine its Node object
	rehomes
	goesHome
	listed // by hand
	wants
	expires
	operatorDecides
	operatorStops
	operatorActs
	elects
)

type event struct {
	what     what
	rec      int8
	slot, to int8
	request  request
	outage   bool // Holdfast did not answer
	doing    doing
	set      setDoing
}

// steps emits every state that can come next, and fails every step that breaks an invariant.
func (e *explorer) steps(s *state) {
	v := e.view(s)
	for r := range e.c.recs {
		e.reconcile(s, v, r)
	}
	e.requests(s, v)
	if e.c.operated {
		e.operator(s)
	}
	if e.c.set {
		e.setSteps(s, v)
	}
	e.nature(s)
}
