package quorum

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Size is the quorum of a set of n voters: how many must agree.
func Size(n int) int { return n/2 + 1 }

// Tolerance is how many of n voters may fail with quorum left. Negative without voters.
func Tolerance(n int) int { return n - Size(n) }

// Member is an etcd member as etcd lists it, with what its own endpoint answered.
type Member struct {
	ID         uint64
	Name       string // "" until the member has started once
	PeerURLs   []string
	ClientURLs []string
	Learner    bool

	// Healthy: its endpoint answered a read just now, for a voter a linearizable one.
	Healthy bool
	// Since is when Healthy last changed, or when the learner became a voter, as far as this process has seen; the zero value
	// is unknown and counts as just now.
	Since time.Time
	// Why is the reason for an unhealthy member, for people.
	Why string

	Leader     uint64    // the leader as the member sees it, 0 without one or without an answer
	Applied    uint64    // raft index applied by the member, 0 if it did not answer
	ProgressAt time.Time // when Applied last rose, or when the learner was first seen; zero is unknown: just now
	// CaughtUpAt is since when a learner has been no further behind than Limits.MaxLag at each look;
	// zero if it is further behind, or unknown: just now.
	CaughtUpAt time.Time
	// CatchUp is how long a learner that is behind still needs at its pace so far, 0 if that is not known.
	CatchUp time.Duration
}

// Started says whether the member has ever started: it publishes its name then.
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
	Known   bool
	Why     string // why it is not known, for people
	ReadAt  time.Time
	Members []Member // in etcd's order
	Leader  uint64   // member ID, 0 without a leader
	Index   uint64   // the leader's raft index (committed)
	Version string   // the lowest server version that answered, such as "3.7.3"; "" if none did
	Alarms  []Alarm  // those that stand, also where the ring is not known for them
}

// Alarm is one that etcd raised and nobody has disarmed. While any stands, etcd refuses every write.
type Alarm struct {
	Kind   string // as etcd names it: NoSpace or Corrupt
	Member uint64 // who is short of space, or whose data differ; 0 if etcd cannot tell
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
func (r *Ring) Member(id uint64) *Member {
	if k := r.MemberIndex(id); k >= 0 {
		return &r.Members[k]
	}
	return nil
}

// MemberIndex is the index of a listed member, -1 without it.
func (r *Ring) MemberIndex(id uint64) int {
	return slices.IndexFunc(r.Members, func(m Member) bool { return m.ID == id })
}

// Accepts says whether etcd would add a member: from 3.7 on, if a quorum of one voter more than now
// is connected to the leader (a single voter always accepts), before that if all voters are.
func (r *Ring) Accepts() (bool, string) {
	voters, healthy := r.Voters()
	want := voters
	if atLeast(r.Version, 3, 7) && voters > 1 {
		want = Size(voters + 1)
	}
	if healthy >= want {
		return true, ""
	}
	return false, fmt.Sprintf("etcd adds no member while %d of %s are healthy; it wants %d", healthy, NVoters(voters), want)
}

// atLeast compares the major and minor numbers of a version such as "3.7.3". One that cannot be read
// is taken to be older: the stricter rule.
func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, err1 := strconv.Atoi(parts[0])
	b, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}
