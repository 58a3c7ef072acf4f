package observe

import (
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Memory knows, for each member, since when its state has not changed. Only an observer that looks all the time can know that: the
// elected reconciler, or a plugin that a person keeps running. For a member seen for the first time that is now. So an empty
// memory can only make Holdfast wait longer. The zero value is empty.
type Memory struct {
	seen map[quorum.MemberID]sighting // by member ID
	at   time.Time                    // of the last Snapshot with a known ring

	marked map[string]bool // UIDs of Machines that had their mark: a tool that takes it off is not answered by another
}

// longestGap is the longest time between two looks, twice the longest pause between two rounds. After a longer one all is forgotten.
const longestGap = 20 * time.Second

// sighting is since when a member is as it is.
type sighting struct {
	healthy    bool
	learner    bool
	since      time.Time
	applied    uint64
	progressAt time.Time
	caughtUpAt time.Time

	// By the account of this leader: up to where the member had the log when it was first seen to lack entries, and when that was.
	leader quorum.MemberID
	match  uint64
	lostAt time.Time

	// For a learner that is behind: when that was first seen, and by how many entries. pace computes its speed from these.
	behindAt  time.Time
	behindLag uint64
}

// Mark remembers that a Machine has its mark.
func (r *Memory) Mark(uid string) {
	if r.marked == nil {
		r.marked = map[string]bool{}
	}
	r.marked[uid] = true
}

// Recall fills in since when each member is as it is, and remembers what the Snapshot shows.
func (r *Memory) Recall(s *quorum.Snapshot) {
	marked := map[string]bool{}
	for i := range s.Machines {
		m := &s.Machines[i]
		if m.Marked = m.Marked || r.marked[m.UID]; m.Marked {
			marked[m.UID] = true
		}
	}
	r.marked = marked
	if !s.Ring.Known {
		return
	}
	if s.Now.Sub(r.at) > longestGap {
		r.seen = nil // what the members did meanwhile is not known
	}
	r.at = s.Now
	seen := make(map[quorum.MemberID]sighting, len(s.Ring.Members))
	for k := range s.Ring.Members {
		m := &s.Ring.Members[k]
		was, ok := r.seen[m.ID]
		if !ok || was.healthy != m.Healthy || was.learner != m.Learner {
			was.healthy, was.learner, was.since = m.Healthy, m.Learner, s.Now
		}
		if !ok || m.Applied > was.applied {
			was.applied, was.progressAt = m.Applied, s.Now
		}
		was.pace(s, m)
		was.lost(s, m)
		m.Since, m.ProgressAt, m.CaughtUpAt = was.since, was.progressAt, was.caughtUpAt
		seen[m.ID] = was
	}
	r.seen = seen
}

// lost sets since when the leader has got nothing to a member that lacks entries. If the leader was not asked, what is remembered stays:
// a member that gets on meanwhile has more of the log than before.
func (was *sighting) lost(s *quorum.Snapshot, m *quorum.Member) {
	switch {
	case m.Match == 0 && m.Behind == 0:
		return
	case m.Behind == 0:
		was.lostAt = time.Time{}
	case was.lostAt.IsZero() || was.leader != s.Ring.Leader || was.match != m.Match:
		was.leader, was.match, was.lostAt = s.Ring.Leader, m.Match, s.Now
	}
	m.LostSince = was.lostAt
}

// pace sets since when a learner has been caught up, or the time that it still needs at its average speed until now.
func (was *sighting) pace(s *quorum.Snapshot, m *quorum.Member) {
	lag := s.Lag(m)
	switch {
	case !m.Learner || !m.Healthy:
		was.caughtUpAt, was.behindAt = time.Time{}, time.Time{}
	case s.CaughtUp(m):
		if was.caughtUpAt.IsZero() {
			was.caughtUpAt = s.Now
		}
		was.behindAt = time.Time{}
	case was.behindAt.IsZero():
		was.caughtUpAt, was.behindAt, was.behindLag = time.Time{}, s.Now, lag
	default:
		was.caughtUpAt = time.Time{}
		if spent := s.Now.Sub(was.behindAt); lag < was.behindLag && spent > 0 {
			m.CatchUp = time.Duration(float64(spent) * float64(lag) / float64(was.behindLag-lag))
		}
	}
}
