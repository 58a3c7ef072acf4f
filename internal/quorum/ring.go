package quorum

import (
	"fmt"
	"slices"
	"time"
)

// Size is the quorum of a set of n voters: how many must agree.
func Size(n int) int { return n/2 + 1 }

// Tolerance is how many of n voters may fail with quorum left. Negative without voters.
func Tolerance(n int) int { return n - Size(n) }

// Member is an etcd member as etcd lists it, with what its own endpoint answered.
type Member struct {
	ID         MemberID `json:"id"`
	Name       string   `json:"name,omitzero"` // "" until the member has started once
	PeerURLs   []string `json:"peerURLs,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
	Learner    bool     `json:"learner,omitzero"`

	// Healthy: its endpoint answered a read just now, for a voter a linearizable one.
	Healthy bool `json:"healthy"`
	// Since is when Healthy last changed, or when the learner became a voter, as far as this process has seen; the zero value
	// is unknown and counts as just now.
	Since time.Time `json:"since,omitzero"`
	// Why is the reason for an unhealthy member, for people.
	Why string `json:"why,omitzero"`

	// InRaft: by the account of a leader before etcd 3.7, raft counts the member. False where that is not known: the leader is asked only while
	// a member does not answer. An etcd upgraded from 3.5 may list a member that is not in raft (see Ring.Removable).
	InRaft bool `json:"inRaft,omitzero"`
	// Match is up to which raft index the member has the log, and Behind how many entries it lacks, by the leader's own account. Both are 0
	// if that is not known: the leader is asked only while a member does not answer.
	Match  uint64 `json:"match,omitzero"`
	Behind uint64 `json:"behind,omitzero"`
	// Receiving: by that account, the leader is sending the member a snapshot. How much of it has arrived, etcd does not say.
	Receiving bool `json:"receiving,omitzero"`
	// LostSince is since when, by that account, the member has lacked entries and got none; zero if it gets on, or if that is not known.
	LostSince time.Time `json:"lostSince,omitzero"`

	Leader     MemberID  `json:"leader,omitzero"`     // the leader as the member sees it, 0 without one or without an answer
	Applied    uint64    `json:"applied,omitzero"`    // raft index applied by the member, 0 if it did not answer
	ProgressAt time.Time `json:"progressAt,omitzero"` // when Applied last rose, or when the learner was first seen; zero is unknown: just now
	// CaughtUpAt is since when a learner has been no further behind than Limits.MaxLag at each look;
	// zero if it is further behind, or unknown: just now.
	CaughtUpAt time.Time `json:"caughtUpAt,omitzero"`
	// MaxLearners is how many learners the member itself takes, by its command line; 0 if that is not known. Each member judges by its own
	// limit as it applies the log: one whose limit is lower than the others' ends, and does not start again.
	MaxLearners int `json:"maxLearners,omitzero"`
	// CatchUp is how long a learner that is behind still needs at its pace so far, 0 if that is not known.
	CatchUp time.Duration `json:"catchUp,omitzero"`
}

// Started reports whether the member has ever started: it publishes its name then.
func (m *Member) Started() bool { return m.Name != "" }

// String is the member as people know it: name (or "unstarted") and hex ID.
func (m *Member) String() string {
	if m.Name == "" {
		return fmt.Sprintf("unstarted member %x", m.ID)
	}
	return fmt.Sprintf("%s (%x)", m.Name, m.ID)
}

// Ring is one read of etcd's membership. The zero value is unknown.
type Ring struct {
	// Known: the member list is the answer to a linearizable read, taken at ReadAt.
	Known   bool      `json:"known"`
	Why     string    `json:"why,omitzero"` // why it is not known, for people
	ReadAt  time.Time `json:"readAt,omitzero"`
	Members []Member  `json:"members,omitempty"` // in etcd's order
	Leader  MemberID  `json:"leader,omitzero"`   // member ID, 0 without a leader
	Index   uint64    `json:"index,omitzero"`    // the leader's raft index (committed)
	Version string    `json:"version,omitzero"`  // the lowest server version that answered, such as "3.7.3"; "" if none did
	Alarms  []Alarm   `json:"alarms,omitempty"`  // those that stand, also where the ring is not known for them
}

// Alarm is one that etcd raised and that is not disarmed. While any stands, etcd refuses every write.
type Alarm struct {
	Kind   string   `json:"kind"`            // as etcd names it: one of those below
	Member MemberID `json:"member,omitzero"` // who is short of space, or whose data differ; 0 if etcd cannot tell
}

// The alarms that etcd knows.
const (
	AlarmNoSpace = "NOSPACE"
	AlarmCorrupt = "CORRUPT"
)

// Voters counts the voting members, and those of them that are healthy.
func (r *Ring) Voters() (voters, healthy int) {
	for i := range r.Members {
		if !r.Members[i].Learner {
			voters++
			if r.Members[i].Healthy {
				healthy++
			}
		}
	}
	return voters, healthy
}

// Member finds a listed member, nil without it.
func (r *Ring) Member(id MemberID) *Member {
	for k := range r.Members {
		if r.Members[k].ID == id {
			return &r.Members[k]
		}
	}
	return nil
}

// Removable reports whether etcd survives the removal of a member for certain. One that an upgrade to etcd 3.6 brought back is listed and not
// in raft, and each etcd of 3.6 panics as it applies its removal, and again at each start (TestListedTwice). In the middle of an upgrade the
// lowest version is known, and that of 3.5 says nothing.
func (r *Ring) Removable(m *Member) bool {
	return m.Healthy || m.InRaft || RaftFollowsList(r.Version)
}

// RaftFollowsList reports whether an etcd of a version, such as "3.7.3", starts with each member in raft that it lists: 3.7 and later do.
func RaftFollowsList(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return n == 2 && (major > 3 || major == 3 && minor >= 7)
}

// RemoveCommand is the command that removes a member, with the warning that belongs to it.
func (r *Ring) RemoveCommand(m *Member) string {
	command := fmt.Sprintf("etcdctl member remove %x", m.ID)
	if !r.Removable(m) {
		command += ". If an upgrade to etcd 3.6 brought it back, do not: every etcd would panic, and again at each start; take a snapshot, and ask etcd's vendor"
	}
	return command
}

// Twins are the other members that are listed at one of a member's peer URLs. etcd takes each URL once, but after an upgrade it may list a
// member again that was removed long ago (etcd issues 13196 and 20967). At most one of them runs.
func (r *Ring) Twins(m *Member) (twins []*Member) {
	for k := range r.Members {
		o := &r.Members[k]
		if o.ID != m.ID && slices.ContainsFunc(o.PeerURLs, func(u string) bool { return slices.Contains(m.PeerURLs, u) }) {
			twins = append(twins, o)
		}
	}
	return twins
}
