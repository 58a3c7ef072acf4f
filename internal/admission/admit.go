package admission

import (
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Admit decides a request on the cluster as the Snapshot shows it; s may be nil where Needs said
// NeedNothing, and hold nothing but hosts where it said NeedHosts. It is the same function for
// the request as it was sent, where its Repairs are applied, and for the object that came of it,
// where any repair still due means that something undid the first ones.
func (ids Identities) Admit(r *Request, s *quorum.Snapshot) Decision {
	d := ids.decide(r, s)
	if r.Operation == OperationUpdate {
		d.admitInstance()
	}
	switch {
	case r.Operation == OperationCreate:
		d.admitNamed()
		d.admitOwners()
		d.admitNew()
		if r.New.ControlPlane() {
			d.admitRemediation()
			d.pairLatch()
			if !r.New.Finalizer {
				// The machine controller would add it a moment later, and a deletion at that moment would not see it.
				d.Repairs.Finalizer = FixPut
			}
		}
	case r.Operation == OperationDelete:
		d.admitDelete()
	case r.Old.Mirrored:
	case !r.guarded():
		d.admitEvidence()
		d.admitOverride() // the rule claim may refuse its deletion
	default:
		d.admitOwners()
		d.admitLabels()
		d.admitRemediation()
		d.admitHook()
		if r.becomesGuarded() {
			d.admitNew()
			break
		}
		d.admitEvidence()
		d.admitOverride()
	}
	return d.Decision
}

// deciding is a Decision in the making: the request, who makes it, and the cluster that it is decided on.
type deciding struct {
	Decision
	*Request
	ids     *Identities
	class   Class
	s       *quorum.Snapshot // with the Machine as the request's old object has it; nil if the cluster was not read
	join    *quorum.Join     // of s
	machine *quorum.Machine  // of s: the request's
}

func (ids Identities) decide(r *Request, s *quorum.Snapshot) *deciding {
	d := &deciding{Request: r, ids: &ids, class: ids.Classify(r.User), s: s}
	if s != nil && r.Old != nil {
		d.s = withMachine(s, r.Old)
		d.machine = d.s.Machine(r.Old.Name)
	}
	if s != nil {
		d.join = quorum.NewJoin(d.s)
	}
	if r.Unenforced && r.Operation == OperationDelete && d.machine != nil && d.machine.Hook != quorum.EntryForeign && len(d.join.Members(d.machine)) > 0 {
		d.machine.Hook, d.machine.Latch = quorum.EntryOurs, quorum.EntryOurs
		held := *r
		held.Old = d.machine
		d.Request = &held
	}
	return d
}

// liftable is a denial by a rule that a person may lift. Its last line says how.
func (d *deciding) liftable(rule quorum.Rule, lines ...string) *Finding {
	return &Finding{rule, VerdictDenied, append(lines, d.lift(rule))}
}

// denyUnlessLifted looks at the denials in their order; nil is none. Where a person lifted the rule beforehand, it adds that, and goes on.
// The first other one denies the request.
func (d *deciding) denyUnlessLifted(denials ...*Finding) (denied bool) {
	for _, f := range denials {
		switch {
		case f == nil:
		case d.class == ClassPerson && d.Old.Lifts(f.Rule, d.At):
			d.add(f.Rule, VerdictOverridden, overrideUsed(d.Request, f.Rule)...)
		default:
			d.Findings = append(d.Findings, *f)
			return true
		}
	}
	return false
}

// withMachine is the Snapshot with the Machine as the request's old object has it: the API server reads
// that in the transaction it is about to make, so it is newer than anything that was gathered.
func withMachine(s *quorum.Snapshot, m *quorum.Machine) *quorum.Snapshot {
	fresh := *s
	fresh.Machines = slices.Clone(s.Machines)
	if older := fresh.Machine(m.Name); older != nil {
		*older = *m
	} else {
		fresh.Machines = append(fresh.Machines, *m)
	}
	return &fresh
}

// hosting decides what the request's Machine hosts; without a Snapshot that is unknown.
func (d *deciding) hosting() (quorum.Hosting, string) {
	if d.s == nil || !d.s.Ring.Known {
		return quorum.HostingUnknown, d.ringWhy()
	}
	return d.join.Hosting(d.machine)
}

// ringWhy says why the ring is not known, for people.
func (d *deciding) ringWhy() string {
	switch {
	case d.s != nil:
		return d.s.RingWhy()
	case d.Unread != "":
		return "the cluster could not be read: " + d.Unread
	}
	return "the cluster could not be read in time"
}
