package admission

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Operation is what a request does to a Machine.
type Operation uint8

const (
	OperationCreate Operation = 1 + iota
	OperationUpdate
	OperationDelete
)

func (o Operation) String() string {
	return [...]string{OperationCreate: "CREATE", OperationUpdate: "UPDATE", OperationDelete: "DELETE"}[o]
}

// Request is a request for a Machine, as admission sees it: a PATCH is an Update with both objects.
type Request struct {
	Operation Operation
	User      User
	Namespace string
	At        time.Time       // when it came
	Old, New  *quorum.Machine // New is nil for Delete, Old is nil for Create

	// Unread is why the cluster could not be read, where there is no Snapshot; "" if it took too long.
	Unread string
	// ByWebhook: what Drops was taken off by a mutating webhook, and not by User.
	ByWebhook bool
	// Unenforced: the decision is only reported (Enforcement). Holdfast puts no hook and latch on then, so a deletion is judged as if step 1 had.
	Unenforced bool
}

// Machine is what the request is about: the new object, or for Delete the old one.
func (r *Request) Machine() *quorum.Machine {
	if r.New != nil {
		return r.New
	}
	return r.Old
}

// guarded reports whether the rules look at the request's Machine. They leave mirrored Machines alone.
func (r *Request) guarded() bool {
	switch {
	case r.Old == nil:
		return false
	case r.Old.Mirrored:
		return false
	case r.New != nil && r.New.ControlPlane():
		return true
	default:
		return r.Old.Guarded()
	}
}

// Drops reports whether the request takes off what holds the Machine: the hook, or where there is none, the latch of a
// deleting Machine.
func (r *Request) Drops() bool {
	if r.Old == nil || r.New == nil {
		return false
	}
	return r.Old.Hook == quorum.EntryOurs && r.New.Hook == quorum.EntryAbsent ||
		r.Old.Hook != quorum.EntryOurs && r.Old.Deleting() && r.Old.Latch == quorum.EntryOurs && r.New.Latch != quorum.EntryOurs
}

// becomesGuarded reports whether an update makes a Machine a control-plane Machine. No rule has judged what it carries, so it counts
// as new.
func (r *Request) becomesGuarded() bool { return !r.Old.ControlPlane() && r.New.ControlPlane() }

// Need is what has to be read for a decision, beyond the request.
type Need uint8

const (
	NeedNothing Need = 1 + iota // the request is enough
	// NeedHosts: the guarded Machines, and the Node of the request's Machine, or the control plane's Nodes where it has none;
	// if Compares, also the Machines that have its instance;
	// if Adopts, also the MachineSets.
	NeedHosts
	NeedRing // a whole Snapshot, etcd read live
)

// Needs says what Admit has to be given for this request: nearly always nothing.
func (ids Identities) Needs(r *Request) Need {
	switch {
	case r.Operation == OperationDelete:
		switch {
		case r.Old.Deleting():
		case r.guarded():
			return NeedRing
		case r.reaches():
			return NeedHosts
		}
	case r.guarded() && r.remediates() && ids.remediator(r.User):
		return NeedRing
	case r.guarded() && r.Drops():
		switch class := ids.Classify(r.User); {
		case class == ClassCustodian, class == ClassPerson && r.Old.Deleting():
			return NeedRing
		}
	}
	if ids.Compares(r) || r.Adopts() || r.clearsInstanceByOverride(ids.Classify(r.User)) {
		return NeedHosts
	}
	return NeedNothing
}

// reaches reports whether a Machine that is none of the control plane's has an instance or a Node: it may be one of theirs.
func (r *Request) reaches() bool { return !r.Old.Mirrored && len(r.Old.DeletionKeys(nil)) > 0 }
