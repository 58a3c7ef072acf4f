package quorum

import (
	"slices"
	"time"
)

// Operation is what a request does to a Machine.
type Operation uint8

const (
	Create Operation = 1 + iota
	Update
	Delete
)

func (o Operation) String() string {
	return [...]string{Create: "CREATE", Update: "UPDATE", Delete: "DELETE"}[o]
}

// Request is a request for a Machine, as admission sees it: a PATCH is an Update with both objects.
type Request struct {
	Operation Operation
	User      User
	Namespace string
	At        time.Time // when it came
	Old, New  *Machine  // New is nil for Delete, Old is nil for Create

	// ByWebhook: what Drops was taken off by a mutating webhook, and not by User.
	ByWebhook bool
}

// Need is what a decision wants to know beyond the request.
type Need uint8

const (
	NeedNothing Need = 1 + iota // the request is enough
	NeedHosts                   // the guarded Machines, the Node of the request's Machine, who claims its instance, and the MachineSets
	NeedRing                    // a whole Snapshot, etcd read live
)

// Verdict is what happens to a request.
type Verdict uint8

const (
	Allowed    Verdict = 1 + iota
	Repaired           // allowed, with what the rule protects put right
	Overridden         // a rule would have denied it, and a person lifted the rule beforehand
	Denied
)

func (v Verdict) String() string {
	return [...]string{Allowed: "allowed", Repaired: "repaired", Overridden: "overridden", Denied: "denied"}[v]
}

// Finding is what one rule had to say. Lines are for people: what happened, why, and what to do.
type Finding struct {
	Rule    Rule
	Verdict Verdict
	Lines   []string
}

// Fix is what has to happen to one protected field of the new object.
type Fix uint8

const (
	AsRequested Fix = iota // nothing
	AsOld                  // as the old object has it
	Dropped                // absent
	Put                    // as Holdfast writes it: the entry with its owner, the stamp with the requester
)

// Repairs are the changes to the new object that make it acceptable. The zero value changes nothing.
type Repairs struct {
	Hook, Latch, Finalizer, Evidence, Override, OverrideBy, ProviderID Fix
	Instance                                                           [len(InstanceAnnotations)]Fix
}

// Decision is the answer to a Request. Without findings nothing guarded changed.
type Decision struct {
	Findings []Finding
	Repairs  Repairs
}

// Denial is the finding that denies the request, nil if it is allowed.
func (d *Decision) Denial() *Finding {
	for i := range d.Findings {
		if d.Findings[i].Verdict == Denied {
			return &d.Findings[i]
		}
	}
	return nil
}

// Warnings are the lines of all findings that do not deny: one Warning each.
func (d *Decision) Warnings() []string {
	var lines []string
	for i := range d.Findings {
		if d.Findings[i].Verdict != Denied {
			lines = append(lines, d.Findings[i].Lines...)
		}
	}
	return lines
}

func (d *Decision) add(rule Rule, verdict Verdict, lines ...string) {
	d.Findings = append(d.Findings, Finding{rule, verdict, lines})
}

// Machine is what the request is about: as it is to be, or as it was for Delete.
func (r *Request) Machine() *Machine {
	if r.New != nil {
		return r.New
	}
	return r.Old
}

// guarded says whether the rules look at the request's Machine. Mirrored Machines are somebody
// else's to guard.
func (r *Request) guarded() bool {
	switch {
	case r.Old == nil:
		return false
	case r.Old.Mirrored:
		return false
	case r.New != nil && r.New.ControlPlane():
		return true
	default:
		return r.Old.guards()
	}
}

// Drops says whether the request takes off what holds the Machine: the hook, or where there is none, the latch of a
// deleting Machine.
func (r *Request) Drops() bool {
	if r.Old == nil || r.New == nil {
		return false
	}
	return r.Old.Hook == Ours && r.New.Hook == Absent ||
		r.Old.Hook != Ours && r.Old.Deleting() && r.Old.Latch == Ours && r.New.Latch != Ours
}

// becomesGuarded says whether an update makes a Machine one of the control plane's. What stands on it
// by then nobody has looked at: it is like a new one.
func (r *Request) becomesGuarded() bool { return !r.Old.ControlPlane() && r.New.ControlPlane() }

// Needs says what Admit has to be given for this request: nearly always nothing.
func (ids Identities) Needs(r *Request) Need {
	switch {
	case r.Operation == Delete:
		switch {
		case r.Old.Deleting():
		case r.guarded():
			return NeedRing
		case r.reaches():
			return NeedHosts
		}
	case r.guarded() && r.Drops():
		switch class := ids.Classify(r.User); {
		case class == Custodian, class == Person && r.Old.Deleting():
			return NeedRing
		}
	}
	if r.Claims() || r.Adopts() {
		return NeedHosts
	}
	return NeedNothing
}

// reaches says whether a Machine that is none of the control plane's has an instance or a Node: it may be one of theirs.
func (r *Request) reaches() bool { return !r.Old.Mirrored && len(r.Old.Reaches(nil)) > 0 }

// Claims says whether the request has a Machine name an instance in a field that did not name it.
func (r *Request) Claims() bool { return r.New != nil && len(r.claimed()) > 0 }

// claimed are the fields of the new object that name an instance and did not name it before. A Machine that becomes the
// control plane's is like a new one, with what it lets go of and gets back because a hook was on it.
func (r *Request) claimed() []instanceField {
	fields := r.New.instanceFields()
	if r.Old == nil {
		return fields
	}
	before := r.Old.instanceFields()
	if r.becomesGuarded() && !r.Old.Mirrored {
		if r.Old.Held() {
			fields = append(fields, slices.DeleteFunc(before, func(f instanceField) bool { return slices.ContainsFunc(fields, f.same) })...)
		}
		return fields
	}
	return slices.DeleteFunc(fields, func(f instanceField) bool { return slices.Contains(before, f) })
}

// Admit decides a request on the cluster as the Snapshot shows it; s may be nil where Needs said
// NeedNothing, and hold nothing but hosts where it said NeedHosts. It is the same function for
// the request as it was sent, where its Repairs are applied, and for the object that came of it,
// where any repair still due means that something undid the first ones.
func (ids Identities) Admit(r *Request, s *Snapshot) Decision {
	var d Decision
	if r.Old != nil {
		s = s.with(r.Old)
	}
	if r.Operation != Delete {
		admitClaim(&d, r, s, &ids)
	}
	switch {
	case r.Operation == Create:
		admitOwners(&d, r, s)
		admitNew(&d, r)
		d.pairLatch(r.New.Hook, r.New.Latch)
		if r.New.ControlPlane() && !r.New.Finalizer {
			// The machine controller would add it a moment later, and a deletion at that moment would not see it.
			d.Repairs.Finalizer = Put
		}
	case r.Operation == Delete:
		admitDelete(&d, r, s, &ids)
	case r.Old.Mirrored:
	case !r.guarded():
		admitOverride(&d, r, ids.Classify(r.User)) // of the rule claim, for its deletion
	default:
		class := ids.Classify(r.User)
		admitInstance(&d, r, &ids)
		admitOwners(&d, r, s)
		admitLabels(&d, r)
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

// admitClaim is the rule claim's denial: the node link would join both Machines to one host. What the Machine API writes on a
// control-plane Machine is what it found, so that is refused only where the instance is another one's for certain: else whoever
// claimed it first would keep the replacement out. Their claim is told, and their deletion refused.
func admitClaim(d *Decision, r *Request, s *Snapshot, ids *Identities) {
	claimed := r.claimed()
	if len(claimed) == 0 {
		return
	}
	found := r.New.ControlPlane() && slices.Contains(ids.MachineAPI, r.User.Name)
	if s == nil || !found && r.New.ControlPlane() && s.ClaimantsWhy != "" {
		d.add(Claim, Denied, claimUnknown(r, claimed[0])...)
		return
	}
	others := s.Machines
	if r.New.ControlPlane() { // two workers with one instance are none of etcd's business
		others = slices.Concat(others, s.Claimants)
	}
	var twice []string
	for i := range others {
		other := &others[i]
		if other.Name == r.New.Name {
			continue
		}
		for _, theirs := range other.instanceFields() {
			k := slices.IndexFunc(claimed, theirs.same)
			switch {
			case k < 0:
			case found && !other.settled():
				twice = claimedTwice(r, claimed[k], other)
			default:
				d.add(Claim, Denied, claimDenied(r, claimed[k], other)...)
				return
			}
		}
	}
	if twice != nil {
		d.add(Claim, Allowed, twice...)
	}
}

// admitInstance is the rule claim's repair of an update: a hooked Machine that let go of its instance
// could not be told any more from another that takes it. The provider ID is nobody's to change; the
// annotations are the Machine API's.
func admitInstance(d *Decision, r *Request, ids *Identities) {
	if !r.Old.Held() {
		return
	}
	if r.Old.ProviderID != "" && r.New.ProviderID != r.Old.ProviderID {
		d.Repairs.ProviderID = AsOld
		d.add(Claim, Repaired, claimKept(r, "spec.providerID")...)
	}
	for i, value := range r.Old.Instance {
		if value != "" && r.New.Instance[i] != value && !slices.Contains(ids.MachineAPI, r.User.Name) {
			d.Repairs.Instance[i] = AsOld
			d.add(Claim, Repaired, claimKept(r, "annotation "+InstanceAnnotations[i].Key)...)
		}
	}
}

// admitNew is the rule claim's repair of what a Machine brings along. The documented resize copies a Machine's YAML, and with it
// what another Machine was given.
func admitNew(d *Decision, r *Request) {
	var took []string
	if r.New.EvidenceRaw != "" {
		d.Repairs.Evidence = Dropped
		took = append(took, EvidenceAnnotation)
	}
	if r.New.Override != "" {
		d.Repairs.Override = Dropped
		took = append(took, OverrideAnnotation)
	}
	if r.New.OverrideBy != "" {
		d.Repairs.OverrideBy = Dropped
		took = append(took, OverrideByAnnotation)
	}
	if took != nil {
		d.add(Claim, Repaired, claimStripped(r, took)...)
	}
}

// pairLatch makes the latch follow the hook of a live Machine.
func (d *Decision) pairLatch(hook, latch Entry) {
	switch {
	case hook == Ours && latch != Ours:
		d.Repairs.Latch = Put
	case hook != Ours && latch == Ours:
		d.Repairs.Latch = Dropped
	}
}

// admitLabels are the rules keep-finalizer and keep-role.
func admitLabels(d *Decision, r *Request) {
	if !r.Old.Held() {
		return
	}
	if r.Old.Finalizer && !r.New.Finalizer {
		d.add(KeepFinalizer, Denied, keepFinalizer(r)...)
	}
	if r.Old.Role != "" && r.New.Role != r.Old.Role || r.Old.Type != "" && r.New.Type != r.Old.Type {
		d.add(KeepRole, Denied, keepRole(r)...)
	}
}

// admitHook are the rules about hook and latch.
func admitHook(d *Decision, r *Request, s *Snapshot, class Class) {
	switch {
	case r.Old.Deleting():
		admitHookDeleting(d, r, s, class)
	case r.Old.Hook == Ours && r.New.Hook != Ours:
		if class == Custodian && r.New.Hook == Absent {
			is, why := hosting(s, r.Old)
			if is == HostsNothing {
				d.pairLatch(r.New.Hook, r.New.Latch)
				return
			}
			d.holdHook(r, KeepHook, earlyRelease(r, KeepHook, s, is, why))
		} else {
			d.holdHook(r, KeepHook, keepHookLive(r))
		}
		if r.Old.Latch != Ours {
			d.Repairs.Latch = Put // it goes with the hook that stays
		}
	case r.New.Hook == Ours && r.Old.Latch == Ours && r.New.Latch != Ours:
		d.Repairs.Latch = AsOld
		d.add(KeepHook, Repaired, keepLatch(r)...)
	default:
		d.pairLatch(r.New.Hook, r.New.Latch)
	}
}

// admitHookDeleting are the rules about hook and latch of a deleting Machine.
func admitHookDeleting(d *Decision, r *Request, s *Snapshot, class Class) {
	gainsHook := r.Old.Hook != Ours && r.New.Hook == Ours
	gainsLatch := r.Old.Latch != Ours && r.New.Latch == Ours
	if gainsHook || gainsLatch {
		if gainsHook {
			d.Repairs.Hook = AsOld
		}
		if gainsLatch {
			d.Repairs.Latch = AsOld
		}
		d.add(NoRegain, Repaired, noRegain(r)...)
	}
	switch {
	case r.Drops():
		admitRelease(d, r, s, class)
	case r.Old.Hook != Ours: // the latch stands
	case r.New.Hook == Foreign:
		d.holdHook(r, KeepHook, keepOwner(r))
	case r.Old.Latch == Ours && r.New.Latch != Ours:
		d.Repairs.Latch = AsOld
		d.add(KeepHook, Repaired, keepLatch(r)...)
	}
}

// admitRelease are the rules about who may let a deleting Machine go.
func admitRelease(d *Decision, r *Request, s *Snapshot, class Class) {
	if class == Person && r.ByWebhook {
		d.holdHook(r, AutomationRelease, webhookRelease(r))
		return
	}
	switch class {
	case Automation:
		d.holdHook(r, AutomationRelease, automationRelease(r))
	case Custodian:
		switch is, why := hosting(s, r.Old); {
		case is == HostsNothing:
			d.dropLatch(r)
		case r.Old.Hook == Absent && s != nil && s.Ledger.has(r.Old.UID) && NewJoin(s).MayGo(s.find(r.Old.Name)):
			admitFinal(d, r, s)
		default:
			d.holdHook(r, EarlyRelease, earlyRelease(r, EarlyRelease, s, is, why))
		}
	case Person:
		admitEscape(d, r, s)
	}
}

// holdHook puts hook and latch back as they were.
func (d *Decision) holdHook(r *Request, rule Rule, lines []string) {
	if r.New.Hook != r.Old.Hook {
		d.Repairs.Hook = AsOld
	}
	if r.New.Latch != r.Old.Latch {
		d.Repairs.Latch = AsOld
	}
	d.add(rule, Repaired, lines...)
}

// dropLatch makes the latch go with a hook that is released.
func (d *Decision) dropLatch(r *Request) {
	if r.New.Latch == Ours {
		d.Repairs.Latch = Dropped
	}
}

// admitEscape is the rule escape-hatch: a person takes the hook off a deleting Machine, and it never returns. What the Machine
// hosts is not lost by that: the latch stays, and the elected reconciler takes it off, one Machine at a time, once etcd can do
// without.
func admitEscape(d *Decision, r *Request, s *Snapshot) {
	if r.New.Latch != r.Old.Latch {
		d.Repairs.Latch = AsOld
	}
	loss := lossOf(s, r.Old)
	if loss.held && r.Old.Lifts(EscapeHatch, r.At) {
		d.add(EscapeHatch, Overridden, append(escaped(r, s, &loss), overrideUsed(r, EscapeHatch)...)...)
		return
	}
	d.add(EscapeHatch, Allowed, escaped(r, s, &loss)...)
}

// admitFinal puts a final release on record: Holdfast takes off the latch that the ledger says goes.
func admitFinal(d *Decision, r *Request, s *Snapshot) {
	loss := lossOf(s, r.Old)
	if loss.held {
		d.add(EscapeHatch, Overridden, append(letGo(r, s, &loss), overrideUsed(r, EscapeHatch)...)...)
		return
	}
	d.add(EscapeHatch, Allowed, letGo(r, s, &loss)...)
}

// loss is what etcd loses with a Machine's instance.
type loss struct {
	known                   bool
	why                     string // why it is not known
	member                  string // on the Machine, "" without one
	learner                 bool   // the member has no vote
	nothing                 bool   // the Machine hosts nothing
	voters, healthy, remain int    // healthy voters now, and for certain without the Machine and those that are released
	held                    bool   // etcd cannot do without, or that is not known
}

// lossOf tells what etcd has left without the Machine.
func lossOf(s *Snapshot, old *Machine) loss {
	if s == nil || !s.Ring.Known {
		return loss{why: s.ringWhy(), held: true}
	}
	i, j := s.find(old.Name), NewJoin(s)
	is, why := j.Hosting(i)
	l := loss{known: is != HostsUnknown, why: why, nothing: is == HostsNothing, remain: j.remaining(i)}
	l.voters, l.healthy = s.Ring.Voters()
	l.held = !l.nothing && !j.spares(i)
	for _, k := range j.Members(i) {
		if member := &s.Ring.Members[k]; l.member == "" || l.learner {
			l.member, l.learner = member.String(), member.Learner
		}
	}
	return l
}

// admitEvidence keeps the evidence as the custodians wrote it.
func admitEvidence(d *Decision, r *Request, class Class) {
	if class == Custodian || r.New.EvidenceRaw == r.Old.EvidenceRaw {
		return
	}
	d.Repairs.Evidence = AsOld
	if !r.Drops() { // else the hook's own Warning says it all
		d.add(KeepHook, Repaired, keepEvidence(r)...)
	}
}

// admitOverride keeps the override a person's, with the name of who set it.
func admitOverride(d *Decision, r *Request, class Class) {
	switch changed := r.New.Override != r.Old.Override; {
	case !changed && r.New.OverrideBy == r.Old.OverrideBy:
	case changed && r.New.Override == "" && class != Automation:
		if r.New.OverrideBy != "" {
			d.Repairs.OverrideBy = Dropped
		}
	case changed && class == Person:
		if !stampedBy(r.New.OverrideBy, r.User.Name, r.At) {
			d.Repairs.OverrideBy = Put
		}
		if rule, reason := ParseOverride(r.New.Override); rule == "" || reason == "" {
			d.add(OverrideRule, Allowed, overrideUnclear(r)...)
		}
	default:
		d.Repairs.Override, d.Repairs.OverrideBy = AsOld, AsOld
		d.add(OverrideRule, Repaired, overrideTaken(r)...)
	}
}

// unseenFor is for how long the machine controller may not have seen a new Machine. It adds its finalizer when it does. The API
// server looks for finalizers before it asks admission, so a finalizer that comes meanwhile is lost, and with the Machine
// what knows of its instance.
const unseenFor = 10 * time.Minute

// admitDelete are the rules about DELETE. The first that denies ends it.
func admitDelete(d *Decision, r *Request, s *Snapshot, ids *Identities) {
	old, class := r.Old, ids.Classify(r.User)
	if old.Deleting() {
		return // a repeated DELETE changes nothing
	}
	deny := func(rule Rule, lines []string) (ended bool) {
		if class == Person && old.Lifts(rule, r.At) {
			d.add(rule, Overridden, overrideUsed(r, rule)...)
			return false
		}
		d.add(rule, Denied, lines...)
		return true
	}
	if !r.guarded() {
		admitStray(r, s, ids, deny)
		return
	}
	if s != nil && len(old.OwnEvidence().MemberIDs) == 0 {
		if goes, by := s.reached(old); goes != nil && deny(Claim, claimDeleted(r, goes, by, ids)) {
			return
		}
	}
	if s != nil && old.ControlPlane() && !old.Finalizer && s.Now.Sub(old.CreatedAt) < unseenFor && deny(UnprotectedDelete, unseen(r)) {
		return
	}
	is, why := hosting(s, old)
	bare := !old.Protected() && (!old.Finalizer || s.functional())
	if is == HostsUnknown && bare && deny(UnprotectedDelete, unprotectedUnknown(r, why)) {
		return
	}
	if is == HostsMember {
		j := NewJoin(s)
		if k := j.Voter(s.find(old.Name)); k >= 0 {
			if bare && deny(UnprotectedDelete, unprotected(r, s.Mode, &s.Ring.Members[k])) {
				return
			}
			if s.Ring.Members[k].Healthy && admitHealthyDelete(r, s, j, k, deny) {
				return
			}
		}
	}
	if old.Hook == Ours {
		d.add(Held, Allowed, held(r, s, is, why)...)
	}
}

// admitStray is the rule claim for the deletion of a Machine that is none of the control plane's, but joined to the Node or the
// instance of one that is: the machine controller would drain and delete the voter's Node with it.
func admitStray(r *Request, s *Snapshot, ids *Identities, deny func(Rule, []string) bool) {
	if !r.reaches() {
		return
	}
	if s == nil {
		deny(Claim, claimDeleteUnknown(r))
		return
	}
	if goes, by := s.reached(r.Old); goes != nil {
		deny(Claim, claimDeleted(r, goes, by, ids))
	}
}

// admitHealthyDelete are the rules for the Machine of a healthy voter k: one-too-many and
// degraded-delete.
func admitHealthyDelete(r *Request, s *Snapshot, j *Join, k int, deny func(Rule, []string) bool) (ended bool) {
	voters, _ := s.Ring.Voters()
	limit := s.Limits.MaxDeleting
	if limit < 0 {
		limit = max(1, Tolerance(voters))
	}
	var going []int // deleting Machines that still host voters
	for i := range s.Machines {
		if s.Machines[i].Deleting() && j.Voter(i) >= 0 {
			going = append(going, i)
		}
	}
	if limit > 0 && len(going) >= limit && deny(OneTooMany, oneTooMany(r, s, j, going, limit)) {
		return true
	}
	for other := range s.Ring.Members {
		member := &s.Ring.Members[other]
		if other != k && !member.Learner && !member.Healthy && !j.Replacing(other) {
			return deny(DegradedDelete, degraded(r, s, member))
		}
	}
	return false
}

// hosting decides what a Machine of the Snapshot hosts; without a Snapshot that is unknown.
func hosting(s *Snapshot, m *Machine) (Hosting, string) {
	if s == nil || !s.Ring.Known {
		return HostsUnknown, s.ringWhy()
	}
	return NewJoin(s).Hosting(s.find(m.Name))
}

// with is the Snapshot with the Machine as the request's old object has it: the API server reads
// that in the transaction it is about to make, so it is newer than anything that was gathered.
func (s *Snapshot) with(m *Machine) *Snapshot {
	if s == nil {
		return nil
	}
	fresh := *s
	fresh.Machines = slices.Clone(s.Machines)
	if i := s.find(m.Name); i >= 0 {
		fresh.Machines[i] = *m
	} else {
		fresh.Machines = append(fresh.Machines, *m)
	}
	return &fresh
}

// find is the index of a Machine in the Snapshot, -1 if it is not there.
func (s *Snapshot) find(name string) int {
	return slices.IndexFunc(s.Machines, func(m Machine) bool { return m.Name == name })
}

func (s *Snapshot) ringWhy() string {
	switch {
	case s == nil:
		return "the cluster could not be read in time"
	case s.Ring.Why == "":
		return "etcd's members could not be read"
	default:
		return s.Ring.Why
	}
}

// functional says whether the Machine API is: some control-plane Machine carries the hook and evidence of its own, or is
// Running, or was before its deletion. Without a Snapshot it is taken to be, so that the rules hold.
func (s *Snapshot) functional() bool {
	return s == nil || slices.ContainsFunc(s.Machines, func(m Machine) bool {
		return m.ControlPlane() && (m.WasRunning() || m.Hook == Ours && len(m.OwnEvidence().MemberIDs) > 0)
	})
}
