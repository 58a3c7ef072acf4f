package membership

import (
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// News is a change that the last read of the cluster showed, for people: nothing is decided by it.
type News struct {
	Machine, UID string // that it is about, "" for none or for the control plane as a whole
	Said         string
}

// Changes compares each read of the cluster with the one before. The zero value has seen nothing.
type Changes struct {
	looked   bool
	known    bool // etcd could be read the last time
	leader   quorum.MemberID
	members  map[quorum.MemberID]hosted // as they were when etcd was last read
	machines map[string]quorum.Machine  // by UID

	news []News
}

// hosted is a member and the Machine that it was on, if that was one for sure.
type hosted struct {
	quorum.Member
	machine, uid string
}

// Update returns what has changed in etcd's members and the control plane's Machines since its last call.
func (c *Changes) Update(join *quorum.Join) []News {
	s := join.Snapshot()
	c.news = nil
	if !c.looked && s.Ring.Known {
		voters, healthy := s.Ring.Voters()
		c.add("", "", "First look after the election: etcd has %d voters, %d healthy.", voters, healthy)
	}
	c.ofEtcd(join)
	c.ofMachines(s.Machines)
	c.looked = true
	return c.news
}

func (c *Changes) add(machine, uid, said string, args ...any) {
	c.news = append(c.news, News{machine, uid, fmt.Sprintf(said, args...)})
}

func (c *Changes) ofEtcd(join *quorum.Join) {
	s := join.Snapshot()
	if !s.Ring.Known {
		if c.known || !c.looked {
			c.add("", "", "etcd's members cannot be read: %s", s.Ring.Why)
		}
		c.known = false
		return
	}
	if !c.known && c.looked {
		c.add("", "", "etcd's members can be read again.")
	}
	now := map[quorum.MemberID]hosted{}
	for k := range s.Ring.Members {
		is := hosted{Member: s.Ring.Members[k]}
		if on := join.Host(&s.Ring.Members[k]).Machine(); on != nil {
			is.machine, is.uid = on.Name, on.UID
		}
		now[is.ID] = is
		if was, listed := c.members[is.ID]; c.members != nil {
			c.ofMember(was, is, listed)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.members)) {
		if _, stays := now[id]; !stays {
			was := c.members[id]
			c.add(was.machine, was.uid, "Member %s has left etcd.", &was.Member)
		}
	}
	if leader, ok := now[s.Ring.Leader]; ok && c.leader != 0 && c.leader != leader.ID {
		c.add(leader.machine, leader.uid, "Member %s leads etcd now.", &leader.Member)
	}
	c.known, c.members, c.leader = true, now, s.Ring.Leader
}

// ofMember is what is new of one member.
func (c *Changes) ofMember(was, is hosted, listed bool) {
	add := func(said string, args ...any) {
		c.add(is.machine, is.uid, said, append([]any{&is.Member}, args...)...)
	}
	switch {
	case !listed && is.Learner:
		add("A learner has joined etcd: %s.")
	case !listed:
		add("A voter has joined etcd: %s.")
	case was.Learner && !is.Learner:
		add("Member %s votes now.")
	}
	if listed && !was.Started() && is.Started() {
		add("Member %s has started.")
	}
	switch {
	case listed && was.Healthy && !is.Healthy:
		add("Member %s is not healthy: %s", is.Why)
	case listed && !was.Healthy && is.Healthy:
		add("Member %s is healthy now.")
	}
}

func (c *Changes) ofMachines(machines []quorum.Machine) {
	now := map[string]quorum.Machine{}
	for i := range machines {
		m := &machines[i]
		now[m.UID] = *m
		was, known := c.machines[m.UID]
		if !known && c.looked {
			c.add(m.Name, m.UID, "Machine %s has been created.", m.Name)
		}
		if c.looked && m.Deleting() && !was.Deleting() {
			c.add(m.Name, m.UID, "Machine %s is being deleted.", m.Name)
		}
		if m.Deleting() && m.Hook == quorum.EntryAbsent && m.Latch == quorum.EntryOurs && (!known || was.Hook != quorum.EntryAbsent) {
			c.add(m.Name, m.UID, "The hook of Machine %s, which is being deleted, is off; its latch holds it.", m.Name)
		}
		if known && was.Held() && !m.Held() {
			c.add(m.Name, m.UID, "Machine %s is no longer held.", m.Name)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(c.machines)) {
		if was, stays := c.machines[uid], now[uid]; stays.UID == "" {
			c.add(was.Name, uid, "Machine %s is gone.", was.Name)
		}
	}
	c.machines = now
}
