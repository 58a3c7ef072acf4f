package quorum

import (
	"fmt"
	"strings"
	"time"
)

// LockName is the membership lock in etcd: only the holder of the oldest key below it changes etcd's members.
const LockName = "/holdfast/membership"

// Lock is who has the membership lock. The zero value means that it is free.
type Lock struct {
	Key    string    `json:"key"`             // in etcd
	Holder string    `json:"holder,omitzero"` // as the holder signed it, for people
	Leased bool      `json:"leased,omitzero"` // it goes with its holder; Holdfast's own always does
	Since  time.Time `json:"since,omitzero"`  // when it was first seen; the zero value is unknown and counts as just now
}

// heldAtMost is for how long a Holdfast has the lock at most: some seconds for a change, and the end of a lease if it dies.
const heldAtMost = time.Minute

// ForeignLock reports whether somebody has the membership lock who is no Holdfast at work.
func (s *Snapshot) ForeignLock() bool {
	return s.Lock.Key != "" && (!s.Lock.Leased || !s.Lock.Since.IsZero() && s.Now.Sub(s.Lock.Since) > heldAtMost)
}

// ForeignLockText says who holds it, and what to type.
func (s *Snapshot) ForeignLockText() string {
	l := &s.Lock
	held, take := "it has no lease, so it is not Holdfast's, and stays until it is deleted", "etcdctl del "+l.Key
	if l.Leased {
		held = fmt.Sprintf("it has been there for more than %s, which is longer than a change takes; see whether %q hangs", heldAtMost, Clip(l.Holder, 100))
	}
	if strings.ContainsFunc(l.Key, unplain) {
		take = "etcdctl del --prefix " + LockName + "/"
	}
	return fmt.Sprintf("somebody else has the membership lock, key %q in etcd: %s; to see it: etcdctl get --prefix %s/ -w fields; to take it away: %s",
		Clip(l.Key, 100), held, LockName, take)
}

// unplain reports whether a character means something to a shell.
func unplain(r rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-", r)
}
