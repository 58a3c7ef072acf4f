package quorum

import (
	"slices"
	"time"
)

// Ledger is the release ledger as it was read.
type Ledger struct {
	Version   string    // of the object; what is written to it counts only if it is still this one. "" where there is none
	CreatedAt time.Time // of the object
	Why       string    // what of it cannot be read, "" for nothing. The Entries are good
	Entries   []Release
}

// Has says whether the release of a Machine is recorded.
func (l *Ledger) Has(uid string) bool {
	return uid != "" && slices.ContainsFunc(l.Entries, func(r Release) bool { return r.UID == uid })
}

// Release is the ledger's entry for a Machine that is let go. The entry stays while the Machine exists, or etcd lists one of its
// Members.
type Release struct {
	Machine, UID string
	Members      []uint64 // that the Machine hosts or may host; none where that is not known
	At           time.Time
	By           string // who lifted rule escape-hatch for it, "" if etcd can do without
}

// LedgerSettles is for how long a new ledger is taken to lack entries: somebody may have deleted the one before, and what
// that one let go may not have stopped yet.
const LedgerGracePeriod = time.Minute

// ledgerYoung says whether releases may have been forgotten.
func (s *Snapshot) ledgerYoung() bool {
	l := &s.Ledger
	return l.Version == "" || l.Why != "" || s.Now.Sub(l.CreatedAt) < LedgerGracePeriod
}

// Released says whether a member counts as lost, although it may still answer: nothing holds its Machine any more, or its
// Machine was let go, by the ledger, and is gone.
func (j *Join) Released(k int) bool {
	host := &j.Hosts[k]
	for _, i := range host.Machines {
		if j.s.Machines[i].LetGo() {
			return true
		}
	}
	if i := host.Machine(); i >= 0 && (!j.s.Machines[i].Deleting() || j.s.Machines[i].Held()) {
		return false // it votes on another host by now, and nobody has let go of that one
	}
	return slices.ContainsFunc(j.s.Ledger.Entries, func(r Release) bool {
		return slices.Contains(r.Members, j.s.Ring.Members[k].ID) &&
			!slices.ContainsFunc(j.s.Machines, func(m Machine) bool { return m.UID == r.UID })
	})
}

// ReleasePending reports whether the Machine of a member is being deleted and is in the ledger, or cannot be read. A deleting
// Machine that cannot be read also counts for each member that is joined to no Machine. Remaining leaves such members out. The
// steps that change members do not: they run under the same lock as the release.
func (j *Join) ReleasePending(k int) bool {
	host := &j.Hosts[k]
	for i := range j.s.Machines {
		m := &j.s.Machines[i]
		here := slices.Contains(host.Machines, i)
		if m.Deleting() && (here && j.s.Ledger.Has(m.UID) || m.Unread != "" && (here || len(host.Machines) == 0)) {
			return true
		}
	}
	return false
}

// Remaining counts the healthy voters that etcd has without a Machine, for certain: those that may run on it do not count, nor
// those that are released, nor, while releases may have been forgotten, those that could be.
func (j *Join) Remaining(machine int) int {
	n, young := 0, j.s.ledgerYoung()
	for k := range j.Hosts {
		member, host := &j.s.Ring.Members[k], &j.Hosts[k]
		if member.Learner || !member.Healthy || !host.Known() || slices.Contains(host.Machines, machine) || j.Released(k) || j.ReleasePending(k) {
			continue
		}
		if i := host.Machine(); young && (i < 0 || j.s.Machines[i].Deleting() && j.s.Machines[i].Hook != EntryOurs) {
			continue
		}
		n++
	}
	return n
}

// QuorumWithout says whether etcd keeps quorum without a Machine, whatever it hosts.
func (j *Join) QuorumWithout(machine int) bool {
	voters, _ := j.s.Ring.Voters()
	return j.s.Ring.Known && j.Remaining(machine) >= Size(voters)
}

// MayRelease says whether a deleting Machine whose hook is off may be let go, whatever it hosts: etcd can do without it, or a person
// lifted the rule.
func (j *Join) MayRelease(machine int) bool {
	return j.QuorumWithout(machine) || j.s.Machines[machine].Lifts(RuleEscapeHatch, j.s.Now)
}
