package main

import (
	"github.com/holdfast-dev/holdfast/internal/admission"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// request is what somebody asks of a Machine.
type request int

const (
	askDelete     request = iota // DELETE, by anybody
	askLifted                    // a person lifts the rule that denies it, and deletes
	askEscape                    // a person takes hook and latch off a deleting Machine
	askForced                    // a person lifts rule escape-hatch for a deleting Machine
	askUnhook                    // a person takes only the hook off a deleting Machine
	askUnlatch                   // a person takes only the latch off
	askStrip                     // automation writes the Machine without hook, latch and evidence
	askStripHook                 // automation takes only the hook off
	askStripLatch                // automation takes only the latch off
	askReadd                     // a person puts hook and latch on
	askCustodian                 // cluster-etcd-operator takes its hook off
	askHook                      // cluster-etcd-operator puts its hook on
	askRelease                   // Holdfast takes hook and latch off, in guard mode the latch
	askSetDelete                 // Holdfast's set deletes
	requests
)

func (r request) String() string {
	return [...]string{
		"delete", "delete, the rule lifted,", "take hook and latch off", "lift the rule escape-hatch", "take only the hook off", "take only the latch off",
		"strip", "strip only the hook", "strip only the latch", "put hook and latch on", "take the hook off, as cluster-etcd-operator,", "put the hook on, as cluster-etcd-operator,", "release", "delete, by the set,",
	}[r]
}

// reply is what comes of a request: the slot as it is then, 0 if nothing.
type reply struct {
	slot   slot
	lifted bool // a rule was overridden
}

const holdfast = "system:serviceaccount:holdfast-system:holdfast"

func users() [requests]admission.User {
	alice, argo := admission.User{Name: "alice"}, admission.User{Name: "system:serviceaccount:argocd:application-controller"}
	return [...]admission.User{
		askDelete: alice, askLifted: alice, askEscape: alice, askForced: alice, askUnhook: alice, askUnlatch: alice, askReadd: alice,
		askStrip: argo, askStripHook: argo, askStripLatch: argo,
		askCustodian: {Name: "system:serviceaccount:openshift-etcd-operator:etcd-operator"},
		askHook:      {Name: "system:serviceaccount:openshift-etcd-operator:etcd-operator"},
		askRelease:   {Name: holdfast}, askSetDelete: {Name: holdfast},
	}
}

// asks says whether a request could change anything of a slot.
func (o slot) asks(r request) bool {
	held := o.is(hook) || o.is(latch)
	switch r {
	case askDelete, askLifted, askSetDelete:
		return o.get(machine) == live
	case askEscape, askRelease:
		return o.get(machine) == deleting && held
	case askForced:
		return o.get(machine) == deleting && held && !o.is(lifts)
	case askUnhook:
		return o.get(machine) == deleting && o.is(hook)
	case askUnlatch:
		return o.get(machine) == deleting && o.is(latch)
	case askStripHook:
		return o.is(machine) && o.is(hook)
	case askStripLatch:
		return o.is(machine) && o.is(latch)
	case askStrip, askCustodian:
		return o.is(machine) && (held || o.is(evidence))
	case askReadd:
		return o.is(machine) && !o.hooked()
	case askHook:
		return o.lives() && !o.is(hook)
	case requests:
	}
	return false
}

// ask sends all requests to Admit, or to an API server to which Holdfast gives no answer.
func (c *config) ask(s *state, outage int) (out [slots][requests]reply) {
	snapshot := c.snapshot(s, 0)
	for n := range snapshot.Machines {
		old := snapshot.Machines[n]
		_, i := about(old.UID)
		o := s.at[i] &^ hidden
		if i > 0 && o == s.at[i-1]&^hidden {
			out[i] = out[i-1] // by symmetry
			continue
		}
		for r := range requests {
			if c.allows(r) && o.asks(r) {
				if outage == 0 {
					out[i][r] = c.admit(snapshot, old, o, r)
				} else {
					out[i][r] = c.unanswered(old, o, r)
				}
			}
		}
	}
	return out
}

// request is a request in the words of Admit.
func (c *config) request(r request, old q.Machine) *admission.Request {
	next := old
	req := &admission.Request{Operation: admission.OperationUpdate, User: c.users[r], Namespace: "openshift-machine-api", At: noon(), Old: &old, New: &next}
	switch r {
	case askDelete, askLifted, askSetDelete:
		req.Operation, req.New = admission.OperationDelete, nil
	case askRelease:
		next.Latch = q.EntryAbsent
		if !c.operated {
			next.Hook = q.EntryAbsent
		}
	case askEscape:
		next.Hook, next.Latch = q.EntryAbsent, q.EntryAbsent
	case askForced:
		next.Override = string(q.RuleEscapeHatch) + ": the model"
	case askUnhook, askStripHook, askCustodian:
		next.Hook = q.EntryAbsent
	case askUnlatch, askStripLatch:
		next.Latch = q.EntryAbsent
	case askStrip:
		next.Hook, next.Latch, next.Evidence, next.EvidenceRaw = q.EntryAbsent, q.EntryAbsent, q.Evidence{}, ""
	case askHook:
		next.Hook = q.EntryOurs
	case askReadd:
		next.Hook, next.Latch = q.EntryOurs, q.EntryOurs
	case requests:
	}
	return req
}

// admit sends one request to Admit, as often as a rule has to be lifted before it goes through.
func (c *config) admit(s *q.Snapshot, old q.Machine, o slot, r request) (out reply) {
	req := c.request(r, old)
	given := s
	if c.ids.Needs(req) == admission.NeedNothing {
		given = nil
	}
	d := c.ids.Admit(req, given)
	if no := d.Denial(); no != nil {
		if r != askLifted {
			return reply{}
		}
		req.Old.Override, req.Old.OverrideBy = string(no.Rule)+": the model", q.Stamp("alice", noon())
		given = s // Needs says the same whether a rule is lifted or not
		if d = c.ids.Admit(req, given); d.Denial() != nil {
			return reply{}
		}
		out.lifted = true
	} else if r == askLifted {
		return reply{} // there was nothing to lift
	}
	out.slot = stored(o, req, &d.Repairs)
	return out
}

// stored is what the API server stores of a request that is let through.
func stored(o slot, req *admission.Request, repairs *admission.Repairs) slot {
	if req.Operation == admission.OperationDelete {
		o.set(machine, deleting)
		return o
	}
	o.set(hook, bit(repaired(repairs.Hook, req.New.Hook, req.Old.Hook)))
	o.set(latch, bit(repaired(repairs.Latch, req.New.Latch, req.Old.Latch)))
	if req.New.Override != req.Old.Override && repairs.OverrideBy == admission.FixPut {
		o.set(lifts, liftedNow)
	}
	if req.New.EvidenceRaw == "" && repairs.Evidence != admission.FixAsOld {
		o.set(evidence, 0)
	}
	return o
}

// unanswered is what the API server does by itself with a request that Holdfast does not answer. The policy cannot
// repair, so it refuses what is left to repair and what is denied without a look at the cluster. The registration
// of what the hook does not hold off fails; the others are ignored.
func (c *config) unanswered(old q.Machine, o slot, r request) (out reply) {
	req := c.request(r, old)
	custodian := c.ids.Classify(req.User) == admission.ClassCustodian
	if req.Operation == admission.OperationDelete {
		if old.Protected() {
			out.slot = stored(o, req, &admission.Repairs{})
		}
		return out
	}
	if custodian && (old.Hook == q.EntryOurs && req.New.Hook != q.EntryOurs || old.Latch == q.EntryOurs && req.New.Latch != q.EntryOurs) {
		return reply{}
	}
	d := c.ids.Admit(req, nil)
	if fix := d.Repairs; d.Denial() != nil || fix.Hook == admission.FixAsOld || fix.Latch == admission.FixAsOld || fix.Evidence == admission.FixAsOld {
		return reply{}
	}
	out.slot = stored(o, req, &admission.Repairs{})
	return out
}

func bit(e q.Entry) uint32 {
	if e == q.EntryOurs {
		return 1
	}
	return 0
}

func repaired(f admission.Fix, next, old q.Entry) q.Entry {
	switch f {
	case admission.FixAsOld:
		return old
	case admission.FixDrop:
		return q.EntryAbsent
	case admission.FixPut:
		return q.EntryOurs
	case admission.FixNone:
	}
	return next
}
