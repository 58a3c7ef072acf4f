package membership

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// A final release takes the latch off a deleting Machine whose hook a person removed, although etcd may lose a member with it. Only
// the elected reconciler performs it, in both modes, and only once the release ledger says that it is about to: the ledger is one
// object, so two of them cannot both find that there is one voter to spare.

// finalRelease lets go of one Machine whose hook a person took off and that may host a member: it is recorded first, and done in a
// round that finds the record.
func (p *planner) finalRelease() []Action {
	var next []*quorum.Machine
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if !m.Deleting() || m.Mirrored || m.Hook != quorum.EntryAbsent || m.Latch != quorum.EntryOurs {
			continue
		}
		if is, _ := p.join.Hosting(m); is == quorum.HostingNothing {
			continue // step 2's
		}
		if !p.join.MayRelease(m) {
			p.noteHeld(m)
			continue
		}
		if !p.s.Ledger.Has(m.UID) {
			next = append(next, m)
			continue
		}
		pod, ok := p.releasePod(m)
		if !ok { // step 8 sees to the budget
			p.note(ReasonReleaseHeld, m.Name, "the hook of Machine %s is off, and its latch stays for a moment: the quorum guard keeps other Nodes from being drained first. If that lasts, some other voter has no guard pod that is ready: kubectl get pods --all-namespaces -l app.kubernetes.io/name=holdfast-quorum-guard. %s",
				m.Name, p.lift(m))
			return nil
		}
		off := ReleaseHook{Latch: true, Final: true}
		if pod != nil {
			off.Pod, off.PodUID = pod.Name, pod.UID
		}
		return []Action{{Step: 2, Machine: m.Name, UID: m.UID, Change: off, Why: p.whyReleased(m)}}
	}
	if len(next) == 0 {
		return nil
	}
	slices.SortStableFunc(next, func(a, b *quorum.Machine) int { return cmp.Compare(p.releasePriority(a), p.releasePriority(b)) })
	unusable, tie := p.s.Ledger.Unusable(), len(next) > 1 && p.releasePriority(next[0]) == undrained
	for _, m := range next {
		switch {
		case unusable != "":
			p.note(ReasonReleaseHeld, m.Name, "the hook of Machine %s is off, and its latch stays for a moment: %s", m.Name, unusable)
		case tie:
			p.note(ReasonReleaseHeld, m.Name, "the hook of Machine %s is off, and its latch stays for a moment: several such Machines wait, and the first to go is the one that the machine controller drains: it cordons that Node. If that lasts, "+
				"the machine controller does not run, or another control-plane Node is cordoned: kubectl get nodes. %s", m.Name, p.lift(m))
		}
	}
	if unusable != "" || tie {
		return nil
	}
	m := next[0]
	record := quorum.Release{Machine: m.Name, UID: m.UID, Members: p.candidateMembers(m), At: p.s.Now}
	if !p.join.QuorumWithout(m) {
		record.By = m.LiftedBy()
	}
	return []Action{{Step: 2, Machine: m.Name, UID: m.UID, Change: RecordRelease{record}, Why: p.whyReleased(m)}}
}

// releasePriority is the priority of a Machine among several whose hooks are off: first Machines that are or were drained or have no Node; then
// Machines for which a person lifted rule escape-hatch; then the others. The machine controller cordons one control-plane Node and drains
// no other until that Machine is gone.
func (p *planner) releasePriority(m *quorum.Machine) int {
	switch n := p.s.Node(m.NodeName); {
	case n == nil || n.Cordoned || m.Drained:
		return drained
	case m.Lifts(quorum.RuleEscapeHatch, p.s.Now):
		return lifted
	}
	return undrained
}

const (
	drained = iota
	lifted
	undrained
)

// candidateMembers are the members that a Machine hosts, surely or perhaps; of a ring that is not known, those of its evidence.
func (p *planner) candidateMembers(m *quorum.Machine) []quorum.MemberID {
	var out []quorum.MemberID
	for _, member := range p.join.Members(m) {
		out = append(out, member.ID)
	}
	for _, id := range m.OwnEvidence().MemberIDs {
		if !slices.Contains(out, id) && !p.s.Ring.Known {
			out = append(out, id)
		}
	}
	return out
}

// whyReleased says why a Machine is let go.
func (p *planner) whyReleased(m *quorum.Machine) string {
	if !p.join.QuorumWithout(m) {
		return fmt.Sprintf("its hook is off, and %s lifted rule %s for it", m.LiftedBy(), quorum.RuleEscapeHatch)
	}
	voters := p.join.VotersWith(m)
	return fmt.Sprintf("its hook is off, and %d healthy of %s remain without it", p.join.Remaining(m), quorum.NVoters(voters))
}

// noteHeld notes that a Machine stays although its hook is off.
func (p *planner) noteHeld(m *quorum.Machine) {
	voters := p.join.VotersWith(m)
	left := ""
	if n := p.join.OperatorMayRemove(m); n > 0 {
		left = fmt.Sprintf(" (and %d that cluster-etcd-operator may remove, because their Machines are being deleted)", n)
	}
	why := fmt.Sprintf("without the Machine etcd would have %d healthy of %s for certain%s, and quorum is %d: it would stop, and the API server with it", p.join.Remaining(m), quorum.NVoters(voters), left, quorum.Size(voters))
	if !p.s.Ring.Known {
		why = "how etcd is doing is not known: " + p.s.RingWhy()
	} else if member := p.s.Mislisted(); member != nil {
		why = member.MislistedWhy()
	}
	p.note(ReasonReleaseHeld, m.Name, "the hook of Machine %s is off, and its latch stays: %s. It goes by itself once etcd can do without it. If there is no replacement, create one: kubectl holdfast replace %s. %s", m.Name, why, m.Name, p.lift(m))
}

// lift is the command by which a person lets a Machine go all the same.
func (p *planner) lift(m *quorum.Machine) string {
	return fmt.Sprintf("To have it terminated at once all the same, annotate it in its namespace: kubectl annotate machine.machine.openshift.io %s --overwrite %s='%s: %s'", m.Name, quorum.OverrideAnnotation, quorum.RuleEscapeHatch, m.NewReason(p.s.Now))
}

// ledgerToKeep are the ledger's entries that are still needed: their member is listed, or their Machine is there, and their time is not
// over. It is empty, not nil, if there are none.
func (p *planner) ledgerToKeep() []quorum.Release {
	out := []quorum.Release{}
	for _, r := range p.s.Ledger.Entries {
		if !r.Until.IsZero() && !p.s.Now.Before(r.Until) {
			continue
		}
		if slices.ContainsFunc(r.Members, func(id quorum.MemberID) bool { return p.s.Ring.Member(id) != nil }) ||
			slices.ContainsFunc(p.s.Machines, func(m quorum.Machine) bool { return m.UID == r.UID }) {
			out = append(out, r)
		}
	}
	return out
}
