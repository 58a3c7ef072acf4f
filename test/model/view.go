package main

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// act is one action of a plan: what it does, at which slot.
type act struct {
	doing
	slot, to int8
}

func (a *act) flag(f doing, on bool) {
	if on {
		a.doing |= f
	}
}

// plan is what Decide says of a state.
type plan struct {
	acts     []act
	records  [slots]uint8
	writes   bool // records are written
	ledger   [slots]uint8
	cleans   bool // the ledger is written
	violated membership.Invariant
	changes  int // of membership
}

// view is what can be asked about all states that look alike.
type view struct {
	plan  [2]*plan                   // with ties between hosts decided one way and the other
	set   [2]*setPlan                // what the set does, likewise
	asked [2]*[slots][requests]reply // of a Holdfast that answers, and of one that does not
}

// order is how ties are decided: what a Snapshot orders hosts by (age, deletion time,
// name, ID) is no part of a state, so both orders are tried.
func order(i, way int) int {
	if way == 1 {
		return slots - 1 - i
	}
	return i
}

func noon() time.Time { return time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) }

// host is what a slot is called in Snapshots.
type host struct {
	name, uid, instance string
	addresses           []netip.Addr
	elsewhere           []netip.Addr // where the host is that moved
	peerURLs            []string
	members             []q.MemberID
	gone                q.Evidence // of a Machine that stood here before
}

func hosts() (out [slots]host) {
	for i := range out {
		n := strconv.Itoa(i)
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)})
		out[i] = host{
			name: "master-" + n, uid: "uid-" + n, instance: "cloud:///" + n, addresses: []netip.Addr{addr}, peerURLs: []string{"https://" + addr.String() + ":2380"},
			members: []q.MemberID{firstID + q.MemberID(i)}, elsewhere: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(10 + i)})},
		}
		out[i].gone = q.Evidence{MachineUID: "gone-" + n, Machine: "old-" + n, MemberIDs: out[i].members, Addresses: out[i].addresses}
	}
	return out
}

const (
	firstID   = 0xa0
	raftIndex = 10000
)

// snapshot is what Holdfast sees of a state.
func (c *config) snapshot(s *state, way int) *q.Snapshot {
	now := noon()
	long := now.Add(-2 * time.Hour) // longer than any limit
	out := &q.Snapshot{Mode: q.ModeFull, Now: now, Desired: s.wanted(c), Limits: q.DefaultLimits()}
	out.Limits.MaxLearners = max(1, c.learners)
	out.Ledger = q.Ledger{Version: "1", CreatedAt: long}
	voters, healthy := s.tally()
	out.Ring.Known = healthy > voters/2
	if !out.Ring.Known {
		out.Ring.Why = "no quorum"
	} else {
		out.Ring.Index, out.Ring.Version = raftIndex, c.version
	}
	for k := range slots {
		i := order(k, way)
		o := s.at[i]
		h, when := &c.hosts[k], long.Add(time.Duration(k)*time.Minute)
		has := h.addresses
		if o.is(moved) {
			has = h.elsewhere
		}
		if o.is(machine) {
			m := q.Machine{
				Name: h.name, UID: h.uid, Role: "master", Type: "master", CreatedAt: when, Hook: entry(o.is(hook)), Latch: entry(o.is(latch)),
				Finalizer: true, Phase: "Provisioning",
			}
			if o.is(instance) {
				m.ProviderID, m.NodeName, m.InstanceID, m.Addresses, m.Phase = h.instance, h.name, true, has, "Running"
			}
			if o.get(machine) == deleting {
				m.DeletedAt, m.Phase = when, "Deleting"
			}
			if c.set {
				m.Owners = []q.Owner{{Kind: "ControlPlaneMachineSet", Name: "cluster", UID: setUID, Controller: true}}
			}
			if at := o.get(lifts); at != notLifted {
				m.Override, m.OverrideBy = string(q.RuleEscapeHatch)+": the model", q.Stamp("alice", noon())
				if at == liftedOnce {
					m.OverrideBy = q.Stamp("alice", noon().Add(-2*time.Hour))
				}
			}
			if o.is(evidence) {
				m.Evidence, m.EvidenceRaw = q.Evidence{MachineUID: h.uid, Machine: h.name, MemberIDs: h.members, Addresses: h.addresses}, "{}"
			}
			out.Machines = append(out.Machines, m)
		}
		if o.is(node) {
			n := q.Node{Name: h.name, ProviderID: h.instance, Ready: o.get(node) == ready, Addresses: has, CreatedAt: when, Cordoned: o.is(cordon)}
			switch o.get(gave) {
			case 1:
				n.GaveWayAt = when
			case 2:
				n.GaveWayAt = now.Add(-time.Second)
			}
			out.Nodes = append(out.Nodes, n)
		}
		if o.get(member) == noMember || !out.Ring.Known {
			continue
		}
		id := firstID + q.MemberID(k)
		m := q.Member{ID: id, Name: h.name, PeerURLs: h.peerURLs, Learner: o.learner(), Healthy: o.get(answers) == up, Since: now, ProgressAt: now, MaxLearners: max(1, c.learners)}
		if o.is(lower) {
			m.MaxLearners = 1
		}
		if o.is(moved) && o.is(own) && o.is(instance) && o.is(machine) && !o.is(broken) {
			m.WaitsAt = "https://" + has[0].String() + ":2380"
		}
		if o.get(answers) != down {
			m.Since = long
		}
		if o.is(stalled) {
			m.ProgressAt = long
		}
		switch o.get(member) {
		case unstarted, stray:
			m.Name = ""
		case caughtUp, voter:
			m.Applied, m.CaughtUpAt = raftIndex, long
		}
		if o.is(leads) {
			out.Ring.Leader = id
		}
		out.Ring.Members = append(out.Ring.Members, m)
	}
	if c.guard {
		out.QuorumGuard = q.Guard{Managed: true, Intact: true}
		if least, ok := s.budget(); ok {
			out.QuorumGuard.MinAvailable = &least
		}
		for k := range slots {
			if o, h := s.at[order(k, way)], &c.hosts[k]; o.is(pod) {
				out.QuorumGuard.Pods = append(out.QuorumGuard.Pods, q.GuardPod{
					Name: "guard-" + h.name, UID: "pod-" + h.name, Node: h.name, Owner: q.PodOwnerGuard, Address: h.addresses[0], Ready: o.get(pod) == podReady,
				})
			}
		}
	}
	for k := range slots {
		h := &c.hosts[k]
		switch s.at[order(k, way)].get(record) {
		case recHere:
			out.Records = append(out.Records, q.Evidence{MachineUID: h.uid, Machine: h.name, MemberIDs: h.members, Addresses: h.addresses})
		case recGone:
			out.Records = append(out.Records, h.gone)
		}
		switch o := s.at[order(k, way)]; o.get(ledger) {
		case recHere:
			r := q.Release{Machine: h.name, UID: h.uid}
			if o.get(member) != noMember {
				r.Members = h.members
			}
			out.Ledger.Entries = append(out.Ledger.Entries, r)
		case recGone:
			out.Ledger.Entries = append(out.Ledger.Entries, q.Release{Machine: h.gone.Machine, UID: h.gone.MachineUID, Members: h.members})
		}
	}
	if c.set {
		set := c.setOf(s, way)
		out.Desired, out.Surge = machineset.Desired(out, set), machineset.Surge(out, set)
	}
	return out
}

func entry(on bool) q.Entry {
	if on {
		return q.EntryOurs
	}
	return q.EntryAbsent
}

// about tells what a UID of a Snapshot says: which Machine of which slot. Without a UID it is recNone, and k means nothing.
func about(uid string) (which uint32, k int) {
	if uid == "" {
		return recNone, 0
	}
	kind, number, _ := strings.Cut(uid, "-")
	k, err := strconv.Atoi(number)
	if err != nil {
		panic("no UID of this model: " + uid)
	}
	if kind == "gone" {
		return recGone, k
	}
	return recHere, k
}

// decide asks Decide, and packs its answer.
func (c *config) decide(s *state, way int) *plan {
	p := membership.Decide(c.snapshot(s, way))
	out := &plan{writes: p.Records != nil, cleans: p.Ledger != nil, violated: p.Violated}
	for _, r := range p.Ledger {
		which, k := about(r.UID)
		out.ledger[order(k, way)] = uint8(which)
	}
	for _, r := range p.Records {
		which, _ := about(r.MachineUID)
		out.records[order(int(r.MemberIDs[0]-firstID), way)] = uint8(which)
	}
	for _, a := range p.Actions {
		which, k := about(a.UID)
		if id := a.MemberID(); id != 0 {
			k = int(id - firstID)
		}
		x := act{doing: do(a.Kind(), which, 0)}
		switch c := a.Change.(type) {
		case membership.SizeGuard:
			out.acts = append(out.acts, act{doing: do(a.Kind(), recNone, doing(c.MinAvailable)<<8)})
			continue
		case membership.CreateGuardPod:
			_, k = about(c.Node)
		case membership.DeleteGuardPod:
			_, k = about(c.Node)
		case membership.MoveLeader:
			x.to = int8(order(int(c.To.ID-firstID), way))
		case membership.AddHook:
			x.flag(putHook, c.Hook)
			x.flag(putLatch, c.Latch)
			x.flag(putEvidence, len(c.Evidence.MemberIDs) > 0)
		case membership.ReleaseHook:
			x.flag(putHook, c.Hook)
			x.flag(putLatch, c.Latch)
			x.flag(final, c.Final)
		case membership.RemoveLearner:
			x.flag(givesWay, c.GivesWay)
		case membership.RecordRelease, membership.RemoveVoter, membership.UpdatePeerURL, membership.Promote, membership.AddLearner:
		}
		x.slot = int8(order(k, way))
		if a.Kind().Membership() {
			out.changes++
		}
		out.acts = append(out.acts, x)
	}
	return out
}

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
	askRelease                   // Holdfast takes hook and latch off
	askSetDelete                 // Holdfast's set deletes
	requests
)

func (r request) String() string {
	return [...]string{
		"delete", "delete, the rule lifted,", "take hook and latch off", "lift the rule escape-hatch", "take only the hook off", "take only the latch off",
		"strip", "strip only the hook", "strip only the latch", "put hook and latch on", "take the hook off, as cluster-etcd-operator,", "release", "delete, by the set,",
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
	case askEscape, askRelease:
		next.Hook, next.Latch = q.EntryAbsent, q.EntryAbsent
	case askForced:
		next.Override = string(q.RuleEscapeHatch) + ": the model"
	case askUnhook, askStripHook, askCustodian:
		next.Hook = q.EntryAbsent
	case askUnlatch, askStripLatch:
		next.Latch = q.EntryAbsent
	case askStrip:
		next.Hook, next.Latch, next.Evidence, next.EvidenceRaw = q.EntryAbsent, q.EntryAbsent, q.Evidence{}, ""
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
