package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// noQuorum is what to do once etcd has lost quorum.
const noQuorum = "https://github.com/holdfast-dev/holdfast/blob/main/docs/incidents.md#etcd-has-no-quorum"

// admitEscape is the rule escape-hatch: a person takes the hook off a deleting Machine, and it never returns. What the Machine
// hosts is not lost by that: the latch stays, and the elected reconciler takes it off, one Machine at a time, once etcd can do
// without. Where there is no latch, as on a Machine that was being deleted when Holdfast was installed, nothing would hold the Machine: the hook
// stays until a person lifts the rule. No count would do instead, for two such hooks may go at the same instant.
func (d *deciding) admitEscape() {
	loss := d.loss()
	if !d.Old.ControlPlane() && loss.nothing { // the reconciler does not know it
		d.dropLatch()
		d.add(quorum.RuleEscapeHatch, VerdictAllowed, d.letGo(&loss)...)
		return
	}
	if d.New.Latch != d.Old.Latch {
		d.Repairs.Latch = FixAsOld
	}
	switch {
	case d.Old.Latch != quorum.EntryOurs && !loss.nothing && !d.Unenforced && !d.Old.Lifts(quorum.RuleEscapeHatch, d.At):
		d.Repairs.Hook = FixAsOld
		d.add(quorum.RuleEscapeHatch, VerdictRepaired, d.unlatched(&loss)...)
	case d.Old.Hook != quorum.EntryOurs: // the latch, which stood alone, and stays
		d.add(quorum.RuleEscapeHatch, VerdictRepaired, d.escaped(&loss)...)
	case (loss.held || d.Old.Latch != quorum.EntryOurs) && d.Old.Lifts(quorum.RuleEscapeHatch, d.At):
		d.add(quorum.RuleEscapeHatch, VerdictOverridden, append(d.escaped(&loss), overrideUsed(d.Request, quorum.RuleEscapeHatch)...)...)
	default:
		d.add(quorum.RuleEscapeHatch, VerdictAllowed, d.escaped(&loss)...)
	}
}

// admitFinal adds the finding for a final release: a custodian takes the latch off a Machine that the ledger lists.
func (d *deciding) admitFinal() {
	loss := d.loss()
	if loss.held {
		d.add(quorum.RuleEscapeHatch, VerdictOverridden, append(d.letGo(&loss), overrideUsed(d.Request, quorum.RuleEscapeHatch)...)...)
		return
	}
	d.add(quorum.RuleEscapeHatch, VerdictAllowed, d.letGo(&loss)...)
}

// loss is what etcd loses with a Machine's instance.
type loss struct {
	known                   bool
	why                     string // why it is not known
	member                  string // on the Machine, "" without one
	learner                 bool   // the member has no vote
	nothing                 bool   // the Machine hosts nothing
	voters, healthy, remain int    // Join.VotersWith; healthy ones now; healthy ones for certain without this Machine (Join.Remaining)
	leaving                 int    // healthy voters besides, that cluster-etcd-operator may be about to remove (Join.OperatorMayRemove)
	held                    bool   // etcd cannot do without, or that is not known
}

// loss says what etcd has left without the Machine.
func (d *deciding) loss() loss {
	if d.s == nil || !d.s.Ring.Known {
		return loss{why: d.ringWhy(), held: true}
	}
	if member := d.s.Mislisted(); member != nil {
		return loss{why: member.MislistedWhy(), held: true}
	}
	m := d.machine
	is, why := d.join.Hosting(m)
	l := loss{known: is != quorum.HostingUnknown, why: why, nothing: is == quorum.HostingNothing, remain: d.join.Remaining(m)}
	_, l.healthy = d.s.Ring.Voters()
	l.voters, l.leaving = d.join.VotersWith(m), d.join.OperatorMayRemove(m)
	l.held = !l.nothing && !d.join.QuorumWithout(m)
	for _, member := range d.join.Members(m) {
		if l.member == "" || l.learner {
			l.member, l.learner = "voter "+member.String(), member.Learner
			if l.learner {
				l.member = "learner " + member.String()
			}
		}
	}
	return l
}

// escaped says what comes of a hook that a person took off, or of a latch that stood alone.
func (d *deciding) escaped(l *loss) []string {
	what := fmt.Sprintf("Holdfast (%s): hook %s of Machine %s is off for good.", quorum.RuleEscapeHatch, quorum.HookName, d.name())
	if d.Old.Hook != quorum.EntryOurs {
		what = fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s: only Holdfast takes that one off.", quorum.RuleEscapeHatch, quorum.LatchName, d.name())
	}
	if d.Old.Latch != quorum.EntryOurs {
		return append([]string{what + " No latch holds the Machine: it is drained and terminated now."}, d.loses(l)...)
	}
	if !d.Old.ControlPlane() {
		return []string{what, l.left(), "It has no control-plane label, so nobody else releases it: take that hook off again once etcd lists no member there (etcdctl member list)."}
	}
	if !l.held || d.Old.Lifts(quorum.RuleEscapeHatch, d.At) {
		return append([]string{what + " Holdfast is about to release the Machine, and it is then terminated."}, d.loses(l)...)
	}
	return []string{
		what + " The Machine is not terminated before etcd can do without it.", l.left(),
		"Holdfast releases the Machine once etcd keeps quorum without it. If there is no replacement, create one: kubectl holdfast replace " + d.name(),
		"To let it go all the same, at once: " + d.override(quorum.RuleEscapeHatch),
	}
}

// unlatched says why a person's release of a Machine without a latch does not go through.
func (d *deciding) unlatched(l *loss) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s: it has no latch %s, so the hook alone holds it. It was deleted before Holdfast put one on.", quorum.RuleEscapeHatch, quorum.HookName, d.name(), quorum.LatchName),
		l.left(),
		"If there is no replacement, create one, and the hook goes once etcd can do without the Machine: kubectl holdfast replace " + d.name(),
		"To let it go all the same, with its member: " + d.override(quorum.RuleEscapeHatch) + ", and take the hook off again",
	}
}

// letGo says what goes with a Machine that Holdfast lets go of.
func (d *deciding) letGo(l *loss) []string {
	lines := []string{fmt.Sprintf("Holdfast (%s) let go of Machine %s: its hook is off, and it is terminated now.", quorum.RuleEscapeHatch, d.name())}
	return append(lines, d.loses(l)...)
}

// loses says what etcd loses with a Machine, and what to do about it.
func (d *deciding) loses(l *loss) []string {
	switch {
	case l.nothing:
		return []string{"No etcd member runs on it."}
	case !l.known:
		return []string{"Whether an etcd member runs on it is not known.", reasonLine(l.why)}
	case l.learner:
		return []string{fmt.Sprintf("It hosts etcd %s, which has no vote.", l.member)}
	}
	out := []string{fmt.Sprintf("It hosts etcd %s. %s", l.member, l.tally())}
	switch {
	case l.stops():
		return append(out, "After that only a restore by hand helps: "+noQuorum)
	case d.s.Mode == quorum.ModeFull:
		return append(out, "Holdfast removes the dead member once a new Node waits for its place. Provide a replacement Machine soon.")
	}
	return append(out, "See that its member leaves etcd (etcdctl member list), and provide a replacement Machine soon.")
}

// left says what the Machine hosts, and what etcd has left without it.
func (l *loss) left() string {
	if !l.known {
		return "Whether etcd keeps quorum without it is not known. " + reasonLine(l.why)
	}
	return fmt.Sprintf("It hosts etcd %s. %s", l.member, l.tally())
}

// tally is what etcd has left, in numbers.
func (l *loss) tally() string {
	with := ""
	if l.learner {
		with = " (with that learner, which may be promoted)"
	}
	voters, remain := l.voters+l.leaving, l.remain+l.leaving
	text := fmt.Sprintf("Healthy voters: %d of %d%s now, %d without this Machine; quorum is %d", l.healthy, voters, with, remain, quorum.Size(voters))
	switch {
	case !l.stops():
	case remain < quorum.Size(voters):
		text += ": etcd stops without it, and the API server with etcd"
	default:
		text += ". Should cluster-etcd-operator first remove one whose Machine is being deleted, etcd stops without this one, and the API server with etcd"
	}
	return text + "."
}

// stops reports whether etcd loses quorum with the Machine. A learner has no vote to lose.
func (l *loss) stops() bool { return l.known && !l.learner && l.remain < quorum.Size(l.voters) }
