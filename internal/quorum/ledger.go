package quorum

import (
	"slices"
	"time"
)

// Ledger is the release ledger as it was read.
type Ledger struct {
	Version   string    `json:"version,omitzero"`   // of the object; what is written to it counts only if it is still this one. "" where there is none
	CreatedAt time.Time `json:"createdAt,omitzero"` // of the object
	Why       string    `json:"why,omitzero"`       // what of it cannot be read, "" for nothing. The Entries are good
	Entries   []Release `json:"releases,omitempty"`
}

// Unusable says why nothing can be added to the ledger, "" if it can.
func (l *Ledger) Unusable() string {
	if l.Why == "" && l.Version == "" {
		return "the release ledger is not there yet"
	}
	return l.Why
}

// Has reports whether the release of a Machine is recorded.
func (l *Ledger) Has(uid string) bool {
	return uid != "" && slices.ContainsFunc(l.Entries, func(r Release) bool { return r.UID == uid && r.Until.IsZero() })
}

// Release is the ledger's entry for a Machine that is let go. The entry stays while the Machine exists, or etcd lists one of its
// Members. One with Until is for a Machine whose host somebody may power off, and has no Members.
type Release struct {
	Machine string     `json:"machine"`
	UID     string     `json:"uid"`
	Members []MemberID `json:"members,omitempty"` // that the Machine hosts or may host; none where that is not known
	At      time.Time  `json:"at,omitzero"`
	By      string     `json:"by,omitzero"`    // who lifted rule escape-hatch for it, "" if etcd can do without
	Until   time.Time  `json:"until,omitzero"` // then the Machine itself shows whether its host is powered off
}

// HostGracePeriod is for how long a request to power a host off counts that was allowed. The API server stores it within a minute, or
// never: it gives a request no more time. The rest is for clocks that differ.
const HostGracePeriod = 2 * time.Minute

// PowersOff is the entry for a Machine whose host may be powered off.
func PowersOff(m *Machine, at time.Time, by string) Release {
	return Release{Machine: m.Name, UID: m.UID, At: at, By: by, Until: at.Add(HostGracePeriod)}
}

// PoweredOff are the names of the Machines but one whose hosts are powered off, or may be at any moment.
func (s *Snapshot) PoweredOff(but *Machine) (names []string) {
	for i := range s.Machines {
		if m := &s.Machines[i]; m.Name != but.Name && s.powersOff(m) {
			names = append(names, m.Name)
		}
	}
	return names
}

// powersOff reports whether the host of a Machine is powered off, or may be at any moment.
func (s *Snapshot) powersOff(m *Machine) bool {
	return m.Remediating || slices.ContainsFunc(s.Ledger.Entries, func(r Release) bool { return r.UID == m.UID && s.Now.Before(r.Until) })
}

// LedgerGracePeriod is for how long a new ledger is taken to lack entries: somebody may have deleted the one before, and what
// that one let go may not have stopped yet.
const LedgerGracePeriod = time.Minute

// ledgerYoung reports whether releases may have been forgotten.
func (s *Snapshot) ledgerYoung() bool {
	l := &s.Ledger
	return l.Version == "" || l.Why != "" || s.Now.Sub(l.CreatedAt) < LedgerGracePeriod
}

// Released reports whether a member counts as lost, although it may still answer: nothing holds its Machine any more, or its
// Machine was let go, by the ledger, and is gone.
func (j *Join) Released(member *Member) bool {
	host := j.Host(member)
	if slices.ContainsFunc(host.Machines, (*Machine).DeletingUnheld) {
		return true
	}
	if m := host.Machine(); m != nil && (!m.Deleting() || m.Held()) {
		return false // the member runs on another Machine by now, which is live or held
	}
	return slices.ContainsFunc(j.s.Ledger.Entries, func(r Release) bool {
		return slices.Contains(r.Members, member.ID) &&
			!slices.ContainsFunc(j.s.Machines, func(m Machine) bool { return m.UID == r.UID })
	})
}

// ReleasePending reports whether the Machine of a member is being deleted and is in the ledger, or cannot be read. A deleting
// Machine that cannot be read also counts for each member that is joined to no Machine. Remaining leaves such members out. The
// steps that change members do not: they run under the same lock as the release.
func (j *Join) ReleasePending(member *Member) bool {
	host := j.Host(member)
	for i := range j.s.Machines {
		m := &j.s.Machines[i]
		here := j.MayRun(m, member)
		if m.Deleting() && (here && j.s.Ledger.Has(m.UID) || m.Unread != "" && (here || len(host.Machines) == 0)) {
			return true
		}
	}
	return false
}

// QuorumWithout reports whether etcd keeps quorum without a Machine, whatever it hosts.
func (j *Join) QuorumWithout(m *Machine) bool {
	return j.s.Ring.Known && j.has(m) && j.Remaining(m) >= Size(j.VotersWith(m))
}

// StopsWithout reports whether etcd has no quorum for certain without a Machine, even if cluster-etcd-operator removes no other voter.
func (j *Join) StopsWithout(m *Machine) bool {
	n := j.OperatorMayRemove(m)
	return j.Remaining(m)+n < Size(j.VotersWith(m)+n)
}

// MayRelease reports whether a deleting Machine whose hook is off may be let go, whatever it hosts: etcd can do without it, or a person
// lifted the rule.
func (j *Join) MayRelease(m *Machine) bool {
	return j.QuorumWithout(m) || m.Lifts(RuleEscapeHatch, j.s.Now)
}
