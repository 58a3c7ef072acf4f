package quorum

import (
	"fmt"
	"slices"
	"time"
)

// A final release takes the latch off a deleting Machine whose hook a person removed, although etcd may lose a member with
// it. Only the elected reconciler performs it, in both modes, and only once the release ledger says that it is about to:
// the ledger is one object, so two of them cannot both find that there is one voter to spare.

// Ledger is the release ledger as it was read.
type Ledger struct {
	Version   string    // of the object; what is written to it counts only if it is still this one. "" where there is none
	CreatedAt time.Time // of the object
	Why       string    // what of it cannot be read, "" for nothing. The Entries are good
	Entries   []Release
}

// Release is a Machine that is let go, as the ledger has it. It stays there until none of the members is listed.
type Release struct {
	Machine, UID string
	Members      []uint64 // that the Machine hosts or may host; none where that is not known
	At           time.Time
	By           string // who lifted rule escape-hatch for it, "" if etcd can do without
}

// ledgerSettles is for how long a new ledger is taken to lack entries: somebody may have deleted the one before, and what
// that one let go may not have stopped yet.
const ledgerSettles = time.Minute

// ledgerYoung says whether releases may have been forgotten.
func (s *Snapshot) ledgerYoung() bool {
	l := &s.Ledger
	return l.Version == "" || l.Why != "" || s.Now.Sub(l.CreatedAt) < ledgerSettles
}

// has says whether the release of a Machine is recorded.
func (l *Ledger) has(uid string) bool {
	return uid != "" && slices.ContainsFunc(l.Entries, func(r Release) bool { return r.UID == uid })
}

// LetGo says whether nothing of etcd's holds the Machine any more.
func (m *Machine) LetGo() bool { return m.Deleting() && !m.Held() && m.Unread == "" }

// Released says whether a member counts as lost, although it may still answer: nothing holds its Machine any more, or its
// Machine was let go, by the ledger, and is gone.
func (j *Join) Released(k int) bool {
	host := &j.Hosts[k]
	for _, i := range host.Machines {
		if j.s.Machines[i].LetGo() {
			return true
		}
	}
	if i := host.Machine(); i >= 0 && !j.s.Machines[i].Deleting() {
		return false // it may vote on another host by now
	}
	return slices.ContainsFunc(j.s.Ledger.Entries, func(r Release) bool {
		return slices.Contains(r.Members, j.s.Ring.Members[k].ID) &&
			!slices.ContainsFunc(j.s.Machines, func(m Machine) bool { return m.UID == r.UID })
	})
}

// leaves says whether the Machine of a member is on its way out: the ledger has it, and it is still held, or it cannot be read. The
// member counts as lost to who would let go of another Machine; to who changes members it does not, for that is done under
// the same lock as the release itself.
func (j *Join) leaves(k int) bool {
	host := &j.Hosts[k]
	for i := range j.s.Machines {
		m := &j.s.Machines[i]
		here := slices.Contains(host.Machines, i)
		if m.Deleting() && (here && j.s.Ledger.has(m.UID) || m.Unread != "" && (here || len(host.Machines) == 0)) {
			return true
		}
	}
	return false
}

// remaining counts the healthy voters that etcd has without a Machine, for certain: those that may run on it do not count, nor
// those that are released, nor, while releases may have been forgotten, those that could be.
func (j *Join) remaining(machine int) int {
	n, young := 0, j.s.ledgerYoung()
	for k := range j.Hosts {
		member, host := &j.s.Ring.Members[k], &j.Hosts[k]
		if member.Learner || !member.Healthy || !host.Known() || slices.Contains(host.Machines, machine) || j.Released(k) || j.leaves(k) {
			continue
		}
		if i := host.Machine(); young && (i < 0 || j.s.Machines[i].Deleting() && j.s.Machines[i].Hook != Ours) {
			continue
		}
		n++
	}
	return n
}

// spares says whether etcd keeps quorum without a Machine, whatever it hosts.
func (j *Join) spares(machine int) bool {
	voters, _ := j.s.Ring.Voters()
	return j.s.Ring.Known && j.remaining(machine) >= Size(voters)
}

// MayGo says whether a deleting Machine whose hook is off may be let go, whatever it hosts: etcd can do without it, or a person
// lifted the rule.
func (j *Join) MayGo(machine int) bool {
	return j.spares(machine) || j.s.Machines[machine].Lifts(EscapeHatch, j.s.Now)
}

// finalRelease lets go of one Machine whose hook a person took off and that may host a member: it is recorded first, and done in a
// round that finds the record.
func (p *planner) finalRelease() []Action {
	var next, drained []Action
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if !m.Deleting() || m.Mirrored || m.Hook != Absent || m.Latch != Ours {
			continue
		}
		if is, _ := p.join.Hosting(i); is == HostsNothing {
			continue // step 2's
		}
		if !p.join.MayGo(i) {
			p.heldBack(i)
			continue
		}
		a := Action{Kind: ReleaseHook, Step: 2, Machine: m.Name, UID: m.UID, Latch: true, Final: true, Why: p.letsGo(i)}
		switch {
		case p.s.Ledger.has(m.UID):
			pod, ok := p.releasePod(i)
			if !ok { // step 8 sees to the budget
				p.note(ReleaseHeld, m.Name, "a person took the hook of Machine %s off, and its latch stays for a moment: the quorum guard keeps other Nodes from being drained first. If that lasts, some other voter has no guard pod that is ready: kubectl get pods --all-namespaces -l app.kubernetes.io/name=holdfast-quorum-guard. "+
					"To let it go all the same, annotate it in its namespace: kubectl annotate machine %s --overwrite %s='%s: <why>'", m.Name, m.Name, OverrideAnnotation, EscapeHatch)
				return nil
			}
			if pod != nil {
				a.Pod, a.PodUID = pod.Name, pod.UID
			}
			return []Action{a}
		case (next == nil || drained == nil && p.cordoned(i)) && p.s.Ledger.Version != "" && p.s.Ledger.Why == "":
			a.Kind, a.Latch, a.Final = RecordRelease, false, false
			a.Release = Release{Machine: m.Name, UID: m.UID, Members: p.mayHost(i), At: p.s.Now}
			if !p.join.spares(i) {
				a.Release.By = m.LiftedBy()
			}
			next = []Action{a}
			if p.cordoned(i) {
				drained = next
			}
		}
	}
	return next
}

// cordoned says whether a Machine's Node is. One whose hook is off is drained, and the machine controller drains no other one of
// the control plane's until it is gone.
func (p *planner) cordoned(machine int) bool {
	n := p.join.Node(machine)
	return n >= 0 && p.s.Nodes[n].Cordoned
}

// mayHost are the members that a Machine hosts, surely or perhaps; of a ring that is not known, those of its evidence.
func (p *planner) mayHost(machine int) []uint64 {
	var out []uint64
	for _, k := range p.join.Members(machine) {
		out = append(out, p.s.Ring.Members[k].ID)
	}
	for _, id := range p.s.Machines[machine].OwnEvidence().MemberIDs {
		if !slices.Contains(out, id) && !p.s.Ring.Known {
			out = append(out, id)
		}
	}
	return out
}

// letsGo says why a Machine is let go.
func (p *planner) letsGo(machine int) string {
	if !p.join.spares(machine) {
		return fmt.Sprintf("a person took its hook off, and %s lifted rule %s for it", p.s.Machines[machine].LiftedBy(), EscapeHatch)
	}
	voters, _ := p.s.Ring.Voters()
	return fmt.Sprintf("a person took its hook off, and %d healthy of %s remain without it", p.join.remaining(machine), nVoters(voters))
}

// heldBack tells that a Machine stays although a person took its hook off.
func (p *planner) heldBack(machine int) {
	m := &p.s.Machines[machine]
	voters, _ := p.s.Ring.Voters()
	why := fmt.Sprintf("without the Machine etcd would have %d healthy of %s for certain, and quorum is %d", p.join.remaining(machine), nVoters(voters), Size(voters))
	if !p.s.Ring.Known {
		why = "how etcd is doing is not known: " + p.s.ringWhy()
	}
	p.note(ReleaseHeld, m.Name, "a person took the hook of Machine %s off, and its latch stays: %s. It goes by itself once etcd can do without it. "+
		"To let it go all the same, annotate it in its namespace: kubectl annotate machine %s --overwrite %s='%s: <why>'", m.Name, why, m.Name, OverrideAnnotation, EscapeHatch)
}

// ledger is what the release ledger is to keep: the entries whose members are listed, or whose Machine is there. Nil to leave
// it as it is.
func (p *planner) ledger() []Release {
	out := []Release{}
	for _, r := range p.s.Ledger.Entries {
		if slices.ContainsFunc(r.Members, func(id uint64) bool { return p.s.Ring.find(id) >= 0 }) ||
			slices.ContainsFunc(p.s.Machines, func(m Machine) bool { return m.UID == r.UID }) {
			out = append(out, r)
		}
	}
	return out
}
