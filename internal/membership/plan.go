package membership

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Plan is what to do now. At most one of Actions changes etcd's members. After the actions the cluster is read anew.
type Plan struct {
	Join    *quorum.Join // of the Snapshot that was decided on
	Actions []Action
	Notes   []Note
	// Records are the evidence that has to outlive the Machines, for the members listed now.
	// Nil: leave the records as they are.
	Records []quorum.Evidence
	// Ledger are the releases that the ledger is to keep. Nil: leave it as it is.
	Ledger []quorum.Release
	// InProgress: etcd or a host is about to finish something, so the next round comes soon.
	InProgress bool
	// Refused is the Describe text of an action that etcd has refused and that is tried again, now or after Actions; "" without one.
	Refused string
	// Violated is the invariant that a planned action would break; there are then no Actions. "" if none.
	Violated Invariant
}

// Tries reports whether what is the Describe text of one of the plan's actions, or of the refused one. The reconciler forgets the failures of
// all others.
func (p *Plan) Tries(what string) bool {
	return what == p.Refused || slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Describe() == what })
}

// Decide computes the plan. Every action has passed the invariants. If one does not, the plan has no actions, and a Note says which
// invariant it would break.
func Decide(s *quorum.Snapshot) Plan {
	p := newPlanner(quorum.NewJoin(s))
	p.decide()
	if err := CheckPlan(p.join, p.plan.Actions); err != nil {
		p.plan.Actions = nil
		if broken := (*Violation)(nil); errors.As(err, &broken) {
			p.plan.Violated = broken.Invariant
		}
		p.note(ReasonInvariantViolated, "", "nothing is done: %v", err)
	}
	return p.plan
}

type planner struct {
	s    *quorum.Snapshot
	join *quorum.Join
	plan Plan
}

func newPlanner(j *quorum.Join) *planner {
	return &planner{s: j.Snapshot(), join: j, plan: Plan{Join: j}}
}

// decide fills the plan with the first step that has something to do. If all actions of a step keep failing, the next step is tried as well.
// In full mode step 8 is added to any other step, except while etcd cannot be read, its list is wrong, it has no leader, or it has raised
// an alarm.
func (p *planner) decide() {
	s := p.s
	p.plan.Notes = AlarmNotes(&s.Ring)
	p.noteFailures()
	wrong := s.Mislisted()
	switch {
	case !s.Ring.Known || wrong != nil:
		if s.Ring.Known {
			p.note(ReasonVoterListedAsLearner, p.machineOf(wrong).Name, "no member is changed and no Machine is released: %s", wrong.MislistedWhy())
		} else {
			p.note(ReasonEtcdUnknown, "", "%s", whyLost(s)[0].message)
		}
		if p.plan.Actions = p.finalRelease(); len(s.Ring.Alarms) > 0 {
			p.plan.Actions = nil
		} else if s.Ledger.Unusable() != "" { // it is written anew, with the entries that can be read
			p.plan.Ledger = append([]quorum.Release{}, s.Ledger.Entries...)
		}
		return
	case s.Ring.Leader == 0:
		p.note(ReasonEtcdNoLeader, "", "%s", whyLost(s)[0].message)
		return
	}
	p.observe()
	if len(s.Ring.Alarms) > 0 { // etcd refuses every write, the API server's among them
		p.finalRelease() // for its notes only: its actions are dropped
		p.explainWaiting()
		p.plan.InProgress = false
		return
	}
	p.plan.Ledger, p.plan.Records = p.ledgerToKeep(), p.recordsToKeep()
	if !s.MachineAPIFunctional() {
		p.note(ReasonMachineAPINotFunctional, "", "%s, so of deleting Machines only those are released that host nothing, or whose hook is off", s.WhyNotFunctional())
		if p.plan.Actions = p.releaseIdle(); len(p.plan.Actions) == 0 {
			p.plan.Actions = p.finalRelease()
		}
		p.explainWaiting()
		if s.Mode == quorum.ModeFull { // after a release the drain needs a budget that lets the guard pod go
			p.plan.Actions = append(p.plan.Actions, p.keepQuorumGuard()...)
		}
		return
	}
	steps := []func() []Action{p.putHooks, p.releaseIdle, p.finalRelease}
	if s.Mode == quorum.ModeFull {
		voters, healthy := s.Ring.Voters()
		if stay := p.join.Staying(); healthy >= quorum.Size(voters) && stay < quorum.Size(voters) {
			p.note(ReasonQuorumOnReleased, "", "%d of %s are healthy and not on released Machines, and quorum is %d: etcd loses quorum when the released Machines stop, unless new voters join first", stay, quorum.NVoters(voters), quorum.Size(voters))
		}
		switch {
		case healthy < quorum.Size(voters):
			p.note(ReasonEtcdMembersUnhealthy, "", "%s", whyLost(s)[0].message)
		case s.OtherDriver != "":
			p.note(ReasonEtcdOperatorPresent, "", "etcd's members are left alone, because cluster-etcd-operator may change them itself (%s): if it is there, run Holdfast with --mode guard, or remove that operator with its ClusterOperator", s.OtherDriver)
		case s.ForeignLock():
			p.note(ReasonLockForeign, "", "etcd's members are left alone, because %s", s.ForeignLockText())
		case s.Desired == 0:
			p.note(ReasonDesiredReplicasUnknown, "", "how many voters are wanted is not known, so etcd's members are left alone: %s", s.DesiredWhy)
		default:
			steps = append(steps, p.removeLearner, p.removeVoter, p.removeDead, p.promote, p.addLearner)
			if f := p.addRefused(); f != nil {
				p.plan.Refused = f.What
			}
		}
	}
	acts := false
	for _, step := range steps {
		actions := step()
		p.plan.Actions = append(p.plan.Actions, actions...)
		if acts = len(actions) > 0 && !p.allFailing(actions); acts {
			p.plan.InProgress = p.plan.InProgress || slices.ContainsFunc(actions, func(a Action) bool { return Failing(p.s, a) == nil })
			break
		}
	}
	if !acts {
		p.explainWaiting()
		p.noteVoterCount()
	}
	if s.Mode == quorum.ModeFull { // step 8 runs whichever step acted before: the budget must not wait for a replacement
		p.plan.Actions = append(p.plan.Actions, p.keepQuorumGuard()...)
	}
}

func (p *planner) note(reason Reason, machine, format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, Note{reason, machine, quorum.Clip(fmt.Sprintf(format, args...), 1000)})
}

// Unreadable is the plan while Machines, Nodes or other objects cannot be read: no actions, and a Note. The Snapshot needs only its Ring.
func Unreadable(s *quorum.Snapshot, why error) Plan {
	p := planner{s: s, plan: Plan{Join: quorum.NewJoin(s), Notes: AlarmNotes(&s.Ring)}}
	p.note(ReasonClusterUnreadable, "", "the API server does not show Holdfast the cluster, so nothing is done, and Machines that are deleted are held: %v; if it is a right that is missing, apply Holdfast's manifests again", why)
	return p.plan
}

// NoteWriteErrors adds a Note for each error that is not nil. If the records could not be written, it also drops all actions. If only
// the ledger could not, the actions stay.
func (p *Plan) NoteWriteErrors(records, ledger error) {
	if records != nil {
		p.Actions = nil
		p.Notes = append(p.Notes, Note{ReasonRecordsNotKept, "", quorum.Clip("nothing is done, because it cannot be written down which Machine hosts which member: "+records.Error(), 1000)})
	}
	if ledger != nil {
		p.Notes = append(p.Notes, Note{ReasonRecordsNotKept, "", quorum.Clip("the release ledger cannot be written, so no new final release can be recorded: "+ledger.Error(), 1000)})
	}
}

// Describe is the plan as a person reads it: a line for each action and note.
func (p Plan) Describe() string {
	var b strings.Builder
	for _, a := range p.Actions {
		fmt.Fprintf(&b, "step %d: %s: %s\n", a.Step, a.Describe(), a.Why)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "%s: %s\n", n.Reason, n.Message)
	}
	if b.Len() == 0 {
		return "at rest\n"
	}
	return b.String()
}
