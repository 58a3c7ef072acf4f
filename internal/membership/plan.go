package membership

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Plan is what to do now. Actions on Machines may be several, on etcd at most one; after it, look again.
type Plan struct {
	Actions []Action
	Notes   []Note
	// Records are the evidence that has to outlive the Machines, for the members listed now.
	// Nil: leave the records as they are.
	Records []quorum.Evidence
	// Ledger are the releases that the ledger is to keep. Nil: leave it as it is.
	Ledger []quorum.Release
	// InProgress: something is under way that etcd or a host must finish, so look again soon.
	InProgress bool
	// Refused is the action that etcd has refused and that is to be tried again, now or after the Actions, as Describe has it; "" without one.
	Refused string
	// Violated is the invariant that a planned action would break; there are then no Actions. "" if none.
	Violated Invariant
}

// Tries says whether an action, as Describe has it, is one of the plan's, or the one that etcd refuses. What is known of its failure counts.
func (p *Plan) Tries(what string) bool {
	return what == p.Refused || slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Describe() == what })
}

// Decide computes the plan. Every action has passed the invariants; if one did not, there are no
// actions, and a Note says which.
func Decide(s *quorum.Snapshot) Plan {
	p := planner{s: s, join: quorum.NewJoin(s)}
	p.decide()
	if err := CheckPlan(s, p.plan.Actions); err != nil {
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

// decide fills the plan with the first step that has something to do. A step of which every action fails does not stop those after
// it. In full mode step 8 runs beside whichever step acts, but not while etcd is not known, its list is wrong, it has no leader, or an alarm stands.
func (p *planner) decide() {
	s := p.s
	p.plan.Notes = AlarmNotes(&s.Ring)
	p.noteFailures()
	wrong := s.Mislisted()
	switch {
	case !s.Ring.Known || wrong != nil:
		if s.Ring.Known {
			p.note(ReasonVoterListedAsLearner, p.machineOf(wrong), "no member is changed and no Machine is released: %s", wrong.MislistedWhy())
		} else {
			p.note(ReasonEtcdUnknown, "", "etcd did not answer a linearizable read, so nothing is changed: %s", s.RingWhy())
		}
		if p.plan.Actions = p.finalRelease(); len(s.Ring.Alarms) > 0 {
			p.plan.Actions = nil
		} else if s.Ledger.Unusable() != "" { // it is made anew, with what can be read of it
			p.plan.Ledger = append([]quorum.Release{}, s.Ledger.Entries...)
		}
		return
	case s.Ring.Leader == 0:
		p.note(ReasonEtcdNoLeader, "", "etcd has no leader, so nothing is changed")
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
		if s.Mode == quorum.ModeFull { // a release waits for its budget
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
			p.note(ReasonEtcdMembersUnhealthy, "", "%d of %s are healthy, and quorum is %d, so etcd's members are left alone", healthy, quorum.NVoters(voters), quorum.Size(voters))
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

// Unreadable is the plan while the cluster's Machines, Nodes or other objects cannot be read: nothing is done. Of the Snapshot
// only the Ring is known.
func Unreadable(s *quorum.Snapshot, why error) Plan {
	p := planner{s: s, plan: Plan{Notes: AlarmNotes(&s.Ring)}}
	p.note(ReasonClusterUnreadable, "", "the API server does not show Holdfast the cluster, so nothing is done, and Machines that are deleted are held: %v; if it is a right that is missing, apply Holdfast's manifests again", why)
	return p.plan
}

// NoteWriteErrors adds a note for each write that failed; nil is no failure. If the records failed, it also drops all actions. If only
// the ledger failed, it keeps them.
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
