package decisions_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/membership"
	q "github.com/holdfast-dev/holdfast/internal/quorum"
)

// violates judges one action by the invariants, as plainly as they are written down: it counts, it
// compares strings, and it uses nothing of the package but its types.
func violates(s *q.Snapshot, a membership.Action) string {
	var m *q.Machine
	for i := range s.Machines {
		if s.Machines[i].Name == a.Machine {
			m = &s.Machines[i]
		}
	}
	type ballot struct {
		id            q.MemberID
		vote, healthy bool // healthy, and nothing lets its host go
	}
	var before, after []ballot
	for _, o := range s.Ring.Members {
		one := ballot{o.ID, !o.Learner, o.Healthy && !dumbReleased(s, &o)}
		before = append(before, one)
		if o.ID == a.MemberID() {
			switch a.Kind() {
			case membership.KindRemoveLearner, membership.KindRemoveVoter:
				continue
			case membership.KindPromote:
				one.vote = true
			}
		}
		after = append(after, one)
	}
	tally := func(of []ballot) (voters, healthy int) {
		for _, b := range of {
			if b.vote {
				voters++
				if b.healthy {
					healthy++
				}
			}
		}
		return voters, healthy
	}
	votersBefore, healthyBefore := tally(before)
	voters, healthy := tally(after)
	answer := 0 // also of those that were let go and are still there
	for _, o := range s.Ring.Members {
		if votes := !o.Learner && (o.ID != a.MemberID() || a.Kind() != membership.KindRemoveVoter) || o.ID == a.MemberID() && a.Kind() == membership.KindPromote; votes && o.Healthy {
			answer++
		}
	}
	etcd := a.Kind() != membership.KindAddHook && a.Kind() != membership.KindReleaseHook && a.Kind() != membership.KindRecordRelease && a.Kind() != membership.KindMarkIdle && a.Kind() != membership.KindSizeGuard && a.Kind() != membership.KindCreateGuardPod && a.Kind() != membership.KindDeleteGuardPod
	switch {
	case etcd && (!s.Ring.Known || dumbMislists(s)):
		return "etcd is changed although it is not known"
	case (a.Kind() == membership.KindRemoveVoter || a.Kind() == membership.KindRemoveLearner) && dumbMayPanic(s, a.MemberID()):
		return "I1: if an upgrade brought it back, each etcd of 3.6 panics"
	case etcd && answer*2 <= voters:
		return "I1: no quorum is left"
	case etcd && healthy*2 <= voters && (voters/2+1)-healthy > (votersBefore/2+1)-healthyBefore:
		return "I1: fewer are left of those that stay"
	case a.Kind() == membership.KindPromote && (m == nil || m.Hook != q.EntryOurs):
		return "I2: no hook"
	case a.Kind() == membership.KindReleaseHook && (m == nil || m.DeletedAt.IsZero()):
		return "I3: the Machine is not deleting"
	case a.Kind() == membership.KindReleaseHook && dumbMayHost(s, m) && m.Hook != q.EntryAbsent:
		return "I3: its member may be listed, and nobody took the hook off"
	case a.Kind() == membership.KindReleaseHook && dumbMayHost(s, m) && !strings.Contains(dumbLedger(s), "["+m.UID+"]"):
		return "I3: its member may be listed, and it is not recorded"
	case a.Kind() == membership.KindReleaseHook && dumbMayHost(s, m) && dumbLosesQuorum(s, m) && !dumbLifts(s, m):
		return "I3: its member may be listed, and quorum would be lost"
	case a.Kind() == membership.KindRecordRelease && (m == nil || m.DeletedAt.IsZero() || m.Hook != q.EntryAbsent):
		return "I3: nobody took its hook off"
	case voters > votersBefore && voters > s.Desired+1:
		return "I4: too many voters"
	case a.Kind() == membership.KindRemoveVoter && voters < s.Desired && dumbConnected(s, a.MemberID()):
		return "I11: etcd's leader does not call it lost"
	case voters < votersBefore && healthy < healthyBefore && dumbServing(s, a.MemberID()) < s.Desired:
		return "I4: too few voters that serve"
	case a.Kind() == membership.KindPromote && !m.DeletedAt.IsZero():
		return "I5: the Machine is deleting"
	case voters > votersBefore && voters > s.Desired && dumbStaysEven(s):
		return "I10: no voter can be removed after it"
	case a.Kind() == membership.KindAddHook && (m == nil || !m.DeletedAt.IsZero()):
		return "I6: the hook returns"
	}
	return ""
}

// hasty says what is wrong with the removal of a healthy voter whose replacement has only just become healthy, or is not known to API servers.
func hasty(s *q.Snapshot, a membership.Action) string {
	old := s.Ring.Member(a.MemberID())
	if a.Kind() != membership.KindRemoveVoter || !old.Healthy {
		return ""
	}
	if s.APIServersWait != "" {
		return "API servers may know of no other"
	}
	if dumbReleased(s, old) {
		return ""
	}
	stable := 0
	for _, o := range s.Ring.Members {
		if o.ID != old.ID && !o.Learner && o.Healthy && !o.Since.After(s.Now.Add(-s.Limits.StableFor)) {
			stable++
		}
	}
	if stable < s.Desired {
		return "too few have been healthy for long enough"
	}
	return ""
}

// misled says what is wrong with an action where two members are listed at one peer URL.
func misled(s *q.Snapshot, a membership.Action) string {
	on, _ := a.Change.(membership.AddHook)
	for _, dead := range s.Ring.Members {
		for _, other := range s.Ring.Members {
			if !dumbMeet(dead, other) {
				continue
			}
			if a.Kind() == membership.KindAddLearner {
				return "a new member could not start"
			}
			for _, id := range on.Evidence.MemberIDs {
				if dead.ID == id && !dead.Healthy && other.Healthy {
					return "evidence names a member that is dead, and another answers at its peer URL"
				}
			}
		}
	}
	return ""
}

func dumbMeet(a, b q.Member) bool {
	for _, u := range b.PeerURLs {
		if a.ID != b.ID && strings.Contains(" "+strings.Join(a.PeerURLs, " ")+" ", " "+u+" ") {
			return true
		}
	}
	return false
}

// dumbMayHost says whether a member may run on a Machine, by strings alone.
func dumbMayHost(s *q.Snapshot, m *q.Machine) bool {
	if !s.Ring.Known || m.Unread != "" || dumbMislists(s) {
		return true
	}
	hint := dumbNames(m) != "" || m.NodeName != "" || m.InstanceID || len(m.Addresses) > 0 || len(m.HostNames) > 0 ||
		m.EvidenceRaw != "" && (m.Evidence.MachineUID == "" || m.Evidence.MachineUID == m.UID) ||
		m.Phase == "Running" || m.Phase == "Provisioned"
	for i := range s.Ring.Members {
		hosts := dumbHosts(s, &s.Ring.Members[i])
		if strings.Contains(dumbPerhaps(s, &s.Ring.Members[i]), "[machine "+m.Name+"]") {
			return true
		}
		if hint && strings.Count(hosts, "[") != 1 {
			return true // joined to nobody, or to two
		}
		if strings.Contains(dumbMayRun(s, &s.Ring.Members[i]), "[machine "+m.Name+"]") {
			return true
		}
	}
	voters := 0
	for i := range s.Ring.Members {
		if !s.Ring.Members[i].Learner {
			voters++
		}
	}
	enough := voters >= s.Desired && voters >= s.Replicas && (s.Desired > 0 || s.Replicas > 0)
	if m.DeletedAt.IsZero() || enough || !dumbLost(s, m) {
		return false
	}
	for i := range s.Machines { // several have lost theirs, as after a restore
		o := &s.Machines[i]
		for _, role := range []string{"master", "control-plane", "arbiter"} {
			if o.UID != m.UID && dumbLost(s, o) && (o.Role == role || o.Type == role) {
				return true
			}
		}
	}
	return false
}

// dumbLost says whether a Machine has evidence of a member of its own, and none runs on it.
func dumbLost(s *q.Snapshot, m *q.Machine) bool {
	if m.EvidenceRaw == "" || m.Evidence.MachineUID != m.UID || len(m.Evidence.MemberIDs) == 0 {
		return false
	}
	for i := range s.Ring.Members {
		if strings.Contains(dumbHosts(s, &s.Ring.Members[i]), "[machine "+m.Name+"]") {
			return false
		}
	}
	return true
}

// dumbHosts is the naive join: the hosts of a member as one string, "[gone]" if a record says that
// its Machine is.
func dumbHosts(s *q.Snapshot, member *q.Member) string {
	decided, _ := dumbJoin(s, member)
	return decided
}

// dumbPerhaps are all hosts that it may have, whatever evidence says.
func dumbPerhaps(s *q.Snapshot, member *q.Member) string {
	_, perhaps := dumbJoin(s, member)
	twins := ""
	for _, m := range s.Machines {
		for _, o := range s.Machines {
			for _, name := range strings.Fields(dumbNames(&o)) {
				if strings.Contains(perhaps, "[machine "+o.Name+"]") && !strings.Contains(perhaps+twins, "[machine "+m.Name+"]") && strings.Contains(dumbNames(&m), " "+name+" ") {
					twins += "[machine " + m.Name + "]"
				}
			}
		}
	}
	return perhaps + twins
}

// dumbNames are the names of a Machine's instance, each between spaces.
func dumbNames(m *q.Machine) string {
	out := ""
	for _, name := range append([]string{m.ProviderID}, m.Instance[:]...) {
		if name != "" {
			out += " " + name + " "
		}
	}
	return out
}

// dumbMayRun are those and, if no Machine's own status or evidence has the member, all with an instance that have no Node at an address of their own.
func dumbMayRun(s *q.Snapshot, member *q.Member) string {
	out := dumbPerhaps(s, member)
	if !member.Healthy && out == "" && dumbHosts(s, member) != "[bootstrap]" || dumbHosts(s, member) == "[bootstrap]" && member.Name == "etcd-bootstrap" {
		return out
	}
	if at := dumbHosts(s, member); strings.HasPrefix(at, "[machine ") {
		alone := len(strings.Split(strings.SplitN(at, "[node ", 2)[0], "[machine ")) == 2 // by a Node's address alone, and nothing else is there
		name := strings.SplitN(at, "]", 2)[0] + "]"
		for k := range s.Ring.Members {
			if o := &s.Ring.Members[k]; o != member && strings.Contains(dumbHosts(s, o), name) {
				alone = false
			}
		}
		if alone {
			return out
		}
	}
	peers := strings.Join(member.PeerURLs, " ")
	for _, m := range s.Machines {
		for _, a := range texts(m.Addresses, nil) {
			if strings.Contains(peers, "://"+a+":") || strings.Contains(peers, "://["+a+"]:") {
				return out
			}
		}
	}
	for _, m := range s.Machines {
		link, at := "", ""
		for _, n := range s.Nodes {
			if m.NodeName != "" && n.Name == m.NodeName {
				link = n.Name
			}
		}
		for _, n := range s.Nodes {
			if link == "" && m.ProviderID != "" && n.ProviderID == m.ProviderID {
				link = n.Name
			}
			if link == n.Name {
				at = "," + strings.Join(texts(n.Addresses, nil), ",") + ","
			}
		}
		placed := false
		for _, a := range texts(m.Addresses, nil) {
			placed = placed || strings.Contains(at, ","+a+",")
		}
		hint := dumbNames(&m) != "" || m.NodeName != "" || m.InstanceID || len(m.Addresses) > 0 || m.EvidenceRaw != "" && (m.Evidence.MachineUID == "" || m.Evidence.MachineUID == m.UID) ||
			m.Phase == "Running" || m.Phase == "Provisioned"
		if hint && m.Unread == "" && !placed {
			out += "[machine " + m.Name + "]"
		}
	}
	return out
}

func dumbJoin(s *q.Snapshot, member *q.Member) (decided, perhaps string) {
	has := func(addrs []string) bool {
		for _, u := range member.PeerURLs {
			for _, a := range addrs {
				if strings.Contains(a, ":") {
					a = "[" + a + "]"
				}
				if strings.Contains(strings.ToLower(u), "://"+strings.ToLower(a)+":") {
					return true
				}
			}
		}
		return false
	}
	evident := func(e q.Evidence) bool {
		for _, id := range e.MemberIDs {
			if id == member.ID {
				return true
			}
		}
		return false
	}
	out, taken, claimed, unread := "", " ", false, false
	var sure []bool // of each with its own evidence and the address in its own status, whether its Node is ready
	sureUp := false
	var mere []string // joined by address alone
	for _, m := range s.Machines {
		node := ""
		for _, n := range s.Nodes {
			if m.NodeName == n.Name {
				node = n.Name
			}
		}
		for _, n := range s.Nodes {
			if node == "" && m.ProviderID != "" && strings.EqualFold(m.ProviderID, n.ProviderID) {
				node = n.Name
			}
		}
		taken += node + " "
		own := m.UID != "" && m.Evidence.MachineUID == m.UID && evident(m.Evidence)
		claimed = claimed || own
		at := has(texts(m.Addresses, m.HostNames))
		known, up := own && at, false
		for _, n := range s.Nodes {
			at = at || n.Name == node && has(texts(n.Addresses, n.HostNames))
			up = up || n.Name == node && n.Ready
		}
		if known {
			sure = append(sure, up)
			sureUp = sureUp || up
		}
		if !own && at {
			mere = append(mere, m.Name)
		}
		if own || at {
			out += "[machine " + m.Name + "]"
			unread = unread || m.Unread != ""
		}
	}
	for _, n := range s.Nodes {
		if !unread && (n.Ready || !claimed) && !sureUp && !strings.Contains(taken, " "+n.Name+" ") && has(texts(n.Addresses, n.HostNames)) {
			out += "[node " + n.Name + "]"
		}
	}
	perhaps = out
	for _, name := range mere {
		if len(sure) > 0 {
			out = strings.Replace(out, "[machine "+name+"]", "", 1)
		}
	}
	if out == "" && (member.Name == "etcd-bootstrap" || s.Bootstrap.IsValid() && has([]string{s.Bootstrap.String()})) {
		return "[bootstrap]", perhaps
	}
	if out != "" || claimed {
		return out, perhaps
	}
	for _, r := range s.Records {
		if !evident(r) {
			continue
		}
		for _, m := range s.Machines {
			if m.UID == r.MachineUID {
				return "", perhaps
			}
		}
		if r.MachineUID == "" {
			return "", perhaps
		}
		return "[gone]", perhaps
	}
	return "", perhaps
}

func texts[A interface{ String() string }](addrs []A, names []string) []string {
	out := append([]string{}, names...)
	for _, a := range addrs {
		out = append(out, strings.TrimPrefix(a.String(), "::ffff:"))
	}
	return out
}

// dumbLifts says whether somebody lifted the rule escape-hatch within the last hour.
func dumbLifts(s *q.Snapshot, m *q.Machine) bool {
	who, when, _ := strings.Cut(m.OverrideBy, " ")
	at, err := time.Parse(time.RFC3339, when)
	return strings.HasPrefix(m.Override, "escape-hatch: ") && who != "" && err == nil && at.After(s.Now.Add(-time.Hour)) && !at.After(s.Now)
}

// dumbLedger is who is let go by the ledger, and which members are, as one string.
func dumbLedger(s *q.Snapshot) string {
	out := ""
	for _, r := range s.Ledger.Entries {
		if r.Until.IsZero() {
			out += "[" + r.UID + "]"
		}
		for _, id := range r.Members {
			out += fmt.Sprintf("(%x by %s)", id, r.UID)
		}
	}
	return out
}

// dumbOff is whose host may be powered off by the ledger, as one string.
func dumbOff(s *q.Snapshot) string {
	out := ""
	for _, r := range s.Ledger.Entries {
		if r.Until.After(s.Now) {
			out += "[" + r.UID + "]"
		}
	}
	return out
}

// dumbVotes says whether a voter may run on a Machine, beside others.
func dumbVotes(s *q.Snapshot, m *q.Machine) bool {
	voters, here := 0, false
	for k := range s.Ring.Members {
		if !s.Ring.Members[k].Learner {
			voters++
			here = here || strings.Contains(dumbPerhaps(s, &s.Ring.Members[k]), "[machine "+m.Name+"]")
		}
	}
	return here && voters > 1
}

// dumbLearnsAlone says whether a learner may run on a Machine, and no voter is joined to it.
func dumbLearnsAlone(s *q.Snapshot, m *q.Machine) bool {
	learners, voters := 0, 0
	for k := range s.Ring.Members {
		if member := &s.Ring.Members[k]; strings.Contains(dumbPerhaps(s, member), "[machine "+m.Name+"]") {
			if member.Learner {
				learners++
			} else {
				voters++
			}
		}
	}
	return s.Ring.Known && !dumbMislists(s) && learners > 0 && voters == 0
}

// dumbReleased says whether nothing holds the host of a member any more, or the ledger says so of a host that is gone.
func dumbReleased(s *q.Snapshot, member *q.Member) bool {
	hosts, there := dumbHosts(s, member), ""
	for _, m := range s.Machines {
		there += "[" + m.UID + "]"
		on := strings.Contains(hosts, "[machine "+m.Name+"]")
		if on && m.Unread == "" && !m.DeletedAt.IsZero() && m.Hook != q.EntryOurs && m.Latch != q.EntryOurs {
			return true
		}
	}
	for _, m := range s.Machines {
		if hosts == "[machine "+m.Name+"]" && (m.DeletedAt.IsZero() || m.Hook == q.EntryOurs || m.Latch == q.EntryOurs) {
			return false // it moved
		}
	}
	for _, r := range s.Ledger.Entries {
		if !strings.Contains(there, "["+r.UID+"]") && strings.Contains(dumbLedger(s), fmt.Sprintf("(%x by %s)", member.ID, r.UID)) {
			return true
		}
	}
	return false
}

// dumbLeaves says whether the ledger lets a Machine go that the member may run on.
func dumbLeaves(s *q.Snapshot, member *q.Member) bool {
	for _, m := range s.Machines {
		hosts := dumbMayRun(s, member)
		if m.Unread != "" && !m.DeletedAt.IsZero() && !strings.Contains(dumbPerhaps(s, member), "[machine ") {
			return true // it may be any Node's
		}
		if strings.Contains(hosts, "[machine "+m.Name+"]") && m.Unread == "" && !m.DeletedAt.IsZero() && m.Hook != q.EntryOurs && m.Latch != q.EntryOurs {
			return true
		}
		if strings.Contains(hosts, "[machine "+m.Name+"]") && !m.DeletedAt.IsZero() && (m.Unread != "" || m.UID != "" && strings.Contains(dumbLedger(s), "["+m.UID+"]")) {
			return true
		}
	}
	return false
}

// dumbServing counts the voters but one that answer and run on a Machine or Node.
func dumbServing(s *q.Snapshot, but q.MemberID) int {
	n := 0
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		hosts := dumbHosts(s, member)
		if member.ID != but && !member.Learner && member.Healthy && member.Name != "" && !dumbReleased(s, member) &&
			strings.Count(hosts, "[") == 1 && (strings.Contains(hosts, "[machine ") || strings.Contains(hosts, "[node ")) {
			n++
		}
	}
	return n
}

// dumbStaysEven says whether one voter more would only be one more that can fail: of those that are there none leaves, or one that stays
// does not serve and none that leaves is lost.
func dumbStaysEven(s *q.Snapshot) bool {
	leave, lost, lame := 0, 0, 0
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		if member.Learner {
			continue
		}
		hosts, stays := dumbHosts(s, member), false
		for _, m := range s.Machines {
			stays = stays || hosts == "[machine "+m.Name+"]" && m.DeletedAt.IsZero()
		}
		for _, r := range s.Records {
			for _, id := range r.MemberIDs {
				stays = stays && id != member.ID // its Machine may be gone, and another one have its address
			}
		}
		up := member.Healthy && !dumbReleased(s, member)
		if !stays {
			leave++
			if !up {
				lost++
			}
		} else if !up || member.Name == "" {
			lame++
		}
	}
	if s.Surge { // any may be deleted
		return false
	}
	return leave == 0 || lame > 0 && lost == 0
}

// dumbConnected says whether a member answers, or etcd's leader does not say that it has been lost for long enough.
func dumbConnected(s *q.Snapshot, id q.MemberID) bool {
	for _, member := range s.Ring.Members {
		if member.ID == id {
			return member.Healthy || member.LostSince.IsZero() || member.LostSince.After(s.Now.Add(-s.Limits.DeadAfter))
		}
	}
	return false
}

// dumbMayPanic says whether a member may be one that an upgrade to etcd 3.6 brought back: it does not answer, and the leader does not count it.
func dumbMayPanic(s *q.Snapshot, id q.MemberID) bool {
	for _, member := range s.Ring.Members {
		if member.ID == id {
			return !member.Healthy && !member.InRaft && !strings.HasPrefix(s.Ring.Version, "3.7.")
		}
	}
	return false
}

// dumbLosesQuorum counts what is left for certain without a Machine and those that were let go before.
func dumbLosesQuorum(s *q.Snapshot, m *q.Machine) bool {
	voters, left := 0, 0
	for k := range s.Ring.Members {
		member := &s.Ring.Members[k]
		if member.Learner {
			gone := strings.Contains(dumbMayRun(s, member), "[machine "+m.Name+"]") || dumbReleased(s, member) || dumbLeaves(s, member)
			for _, o := range s.Machines {
				gone = gone || strings.Contains(dumbMayRun(s, member), "[machine "+o.Name+"]") && (o.Remediating || strings.Contains(dumbOff(s), "["+o.UID+"]"))
			}
			if gone {
				voters++ // it may be promoted meanwhile
			}
			continue
		}
		voters++
		if member.Healthy && strings.Count(dumbHosts(s, member), "[") == 1 && !strings.Contains(dumbMayRun(s, member), "[machine "+m.Name+"]") && !dumbReleased(s, member) && !dumbLeaves(s, member) {
			left++
		}
	}
	return !s.Ring.Known || dumbMislists(s) || left <= voters/2
}

// dumbMislists says whether a learner has a record of a vote.
func dumbMislists(s *q.Snapshot) bool {
	voted := " "
	for _, r := range s.Records {
		for _, id := range r.MemberIDs {
			if r.Voted {
				voted += id.Hex() + " "
			}
		}
	}
	for _, m := range s.Ring.Members {
		if m.Learner && strings.Contains(voted, " "+m.ID.Hex()+" ") {
			return true
		}
	}
	return false
}
