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
	var d Decision
	if r.Old != nil {
		s = withMachine(s, r.Old)
	}
	if r.Operation == OperationUpdate {
		admitInstance(&d, r, s, &ids)
	}
	switch {
	case r.Operation == OperationCreate:
		admitNamed(&d, r, s, &ids)
		admitOwners(&d, r, s)
		admitNew(&d, r)
		if r.New.ControlPlane() {
			d.pairLatch(r.New.Hook, r.New.Latch)
			if !r.New.Finalizer {
				// The machine controller would add it a moment later, and a deletion at that moment would not see it.
				d.Repairs.Finalizer = FixPut
			}
		}
	case r.Operation == OperationDelete:
		admitDelete(&d, r, s, &ids)
	case r.Old.Mirrored:
	case !r.guarded():
		class := ids.Classify(r.User)
		admitEvidence(&d, r, class)
		admitOverride(&d, r, class) // the rule claim may refuse its deletion
	default:
		class := ids.Classify(r.User)
		admitOwners(&d, r, s)
		admitLabels(&d, r, &ids, class)
		admitRemediation(&d, r, s, &ids, class)
		admitHook(&d, r, s, class)
		if r.becomesGuarded() {
			admitNew(&d, r)
			return d
		}
		admitEvidence(&d, r, class)
		admitOverride(&d, r, class)
	}
	return d
}

// withMachine is the Snapshot with the Machine as the request's old object has it: the API server reads
// that in the transaction it is about to make, so it is newer than anything that was gathered.
func withMachine(s *quorum.Snapshot, m *quorum.Machine) *quorum.Snapshot {
	if s == nil {
		return nil
	}
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
func (r *Request) hosting(s *quorum.Snapshot) (quorum.Hosting, string) {
	if s == nil || !s.Ring.Known {
		return quorum.HostingUnknown, r.ringWhy(s)
	}
	return quorum.NewJoin(s).Hosting(s.Machine(r.Old.Name))
}

// ringWhy says why the ring is not known, for people.
func (r *Request) ringWhy(s *quorum.Snapshot) string {
	switch {
	case s != nil:
		return s.RingWhy()
	case r.Unread != "":
		return "the cluster could not be read: " + r.Unread
	}
	return "the cluster could not be read in time"
}
