package membership

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// nodeStartupTimeout is for how long a new Machine may be without a Node before that is reported.
const nodeStartupTimeout = 30 * time.Minute

// leftByOperator says why cluster-etcd-operator does not remove a voter that has failed, or a learner, and what does: it wants its hook
// on the deleting Machine, as many voters as are wanted, or neither Machine nor Node at the member's address. "" where it does not apply.
func (p *planner) leftByOperator(member *quorum.Member, host *quorum.Host) string {
	m := host.Machine()
	voters, _ := p.s.Ring.Voters()
	switch {
	case p.s.Mode != quorum.ModeGuard:
	case m != nil && m.Deleting() && m.Hook == quorum.EntryAbsent:
		until := "" // a learner it never removes
		if !member.Learner {
			until = " until Machine and Node are gone"
		}
		return fmt.Sprintf("; the hook of its Machine %s is off, so cluster-etcd-operator leaves it listed%s; to remove it: %s", m.Name, until, p.s.Ring.RemoveCommand(member))
	case m != nil && m.Deleting() && !member.Learner && voters < p.s.Desired:
		return fmt.Sprintf("; etcd has fewer voters than are wanted, so cluster-etcd-operator leaves it listed, and adds no other; to remove it: %s", p.s.Ring.RemoveCommand(member))
	case len(host.Machines)+len(host.Nodes) > 0:
		for i := range p.s.Records {
			r := &p.s.Records[i]
			if slices.Contains(r.MemberIDs, member.ID) && !slices.ContainsFunc(p.s.Machines, func(m quorum.Machine) bool { return m.UID == r.MachineUID }) {
				return fmt.Sprintf("; its Machine %s is gone, and cluster-etcd-operator leaves it listed while another Machine or Node has its address; to remove it: %s", r.Machine, p.s.Ring.RemoveCommand(member))
			}
		}
	}
	return ""
}

// notRemoved says why Holdfast leaves a member listed that is to go; "" if it does not.
func (p *planner) notRemoved(member *quorum.Member) string {
	switch {
	case p.s.Mode == quorum.ModeGuard || !p.isLeaving(member) && p.join.Host(member).Departed == nil:
		return ""
	case !p.s.Ring.Removable(member):
		return "; Holdfast does not remove it, because etcd's leader does not tell that raft counts it: if an upgrade to etcd 3.6 brought it back, each etcd would panic, and again at each start; take a snapshot, and ask etcd's vendor"
	case !member.Learner && member.LostSince.IsZero() && !member.Since.IsZero() && p.s.Now.Sub(member.Since) >= p.s.Limits.DeadAfter:
		return "; Holdfast does not count it as dead, because etcd's leader does not show that it gets nothing: see /debug/vars at the leader's client URL, which --listen-client-http-urls takes away"
	}
	return ""
}

// replaceCommand says how to have an unhealthy voter replaced; "" where it is being replaced, or runs on no Machine.
func (p *planner) replaceCommand(voter *quorum.Member) string {
	m := p.join.Host(voter).Machine()
	if m == nil || m.Deleting() {
		return ""
	}
	text := "; if its host does not come back: kubectl holdfast replace " + m.Name
	if p.s.Mode == quorum.ModeFull && len(whyLost(p.s)) == 0 && p.s.Ring.Removable(voter) {
		text += "; if its host runs and its data are damaged: " + p.s.Ring.RemoveCommand(voter) + ", and a new member begins there"
	}
	return text
}

// observe adds the notes that hold whichever step acts, and reports whether a learner is under way.
func (p *planner) observe() {
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		host := p.join.Host(member)
		switch {
		case !member.Learner && !member.Started():
			p.note(ReasonVoterNotStarted, "", "etcd voter %s has never started, so it stands in for no other voter, and etcd counts it as failed; if nobody is about to start it: %s", member, p.s.Ring.RemoveCommand(member))
		case !member.Learner && !member.Healthy:
			p.note(ReasonEtcdMembersUnhealthy, "", "etcd voter %s is unhealthy: %s%s", member, member.Why, cmp.Or(p.leftByOperator(member, host), p.notRemoved(member), p.replaceCommand(member)))
		case member.Learner:
			// A warm learner that waits for a seat is at rest.
			p.plan.InProgress = p.plan.InProgress || !p.s.Steady(member) || p.seatFree()
			if member.Started() && member.Healthy && !p.s.CaughtUp(member) {
				p.note(ReasonLearnerBehind, p.machineOf(member).Name, "learner %s is %s", member, p.behind(member))
			}
			if why := cmp.Or(p.leftByOperator(member, host), p.notRemoved(member)); why != "" {
				p.note(ReasonLearnerOrphaned, p.machineOf(member).Name, "learner %s stays, and etcd takes no other beside it%s", member, why)
			}
			if m := p.machineOf(member); p.stalled(member, p.s.Limits.StallAfter) && !m.Deleting() && len(host.Machines)+len(host.Nodes) > 0 {
				p.note(ReasonLearnerStuck, m.Name, "learner %s has made no progress since %s: see etcd's log on its host; to have another in its place, delete its Machine %s",
					member, member.ProgressAt.UTC().Format(time.RFC3339), cmp.Or(m.Name, "if it has one"))
			}
		}
		if why := p.join.ListedTwice(member); why != "" && !slices.ContainsFunc(p.plan.Notes, func(n Note) bool { return n.Message == why }) {
			p.note(ReasonMemberListedTwice, p.machineOf(member).Name, "%s", why)
		}
		if at, has := p.moved(member); has != "" {
			p.note(ReasonMemberAddressChanged, p.machineOf(member).Name, "etcd %s is listed at %s, but its Machine %s is at %s: %s", member, at, p.machineOf(member).Name, has, p.afterMove(member))
		}
		if why := p.neededFor(member); host.Bootstrap && why != "" && p.join.Serving(member, 0) >= p.s.Desired {
			p.note(ReasonBootstrapMemberWaits, "", "the installer's bootstrap member %s stays until the installation is over: %s", member, why)
		}
		switch {
		case member.Learner && len(host.Machines)+len(host.Nodes) == 0 && (!host.Known() || p.s.Mode == quorum.ModeGuard):
			p.note(ReasonLearnerOrphaned, "", "learner %s has neither a Machine nor a Node; if its host is gone for good: %s", member, p.s.Ring.RemoveCommand(member))
		case host.Known():
		default:
			p.note(ReasonMemberHostUnknown, "", "no hook is released, because the host of etcd %s is not known: %s%s", member, p.join.Ambiguity(member), p.ownerless(member))
		}
	}
	if p.s.Ledger.Why != "" {
		p.note(ReasonLedgerGarbled, "", "the ledger of the Machines that were let go cannot be read; Holdfast makes it anew, and for %s every voter counts as lost that may have been in it: %s", quorum.LedgerGracePeriod, p.s.Ledger.Why)
	}
	if p.s.RecordsWhy != "" {
		p.note(ReasonRecordsGarbled, "", "somebody changed Holdfast's records of which Machine hosted which member; they are written anew from what is known: %s", p.s.RecordsWhy)
	}
	p.noteDrains()
	p.noteDomains()
	p.observeClaims()
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if m.Unread != "" {
			p.note(ReasonMachineUnreadable, m.Name, "Machine %s cannot be read, so it is left alone: %s", m.Name, m.Unread)
		}
		if m.Mirrored {
			p.note(ReasonMachineMirrored, m.Name, "Machine %s is mirrored from another API and left alone", m.Name)
		}
		p.noteFailed(m)
		p.noteUnprotected(m)
		p.noteUnseen(m)
		p.noteUndrained(m)
		if m.Hook == quorum.EntryForeign && p.s.Mode == quorum.ModeGuard {
			p.note(ReasonHookOwnerForeign, m.Name, "hook %s of Machine %s has an owner other than %s", quorum.HookName, m.Name, quorum.HookOwner)
		}
	}
}

// noteFailed notes a live control-plane Machine that is of no use any more, or never was.
func (p *planner) noteFailed(m *quorum.Machine) {
	if !m.ControlPlane() || m.Deleting() || m.Mirrored || m.Unread != "" {
		return
	}
	failed := m.Phase == "Failed"
	switch {
	case p.join.Node(m) != nil || len(p.join.Members(m)) > 0:
		if failed && p.s.MachineAPIFunctional() {
			p.note(ReasonMachineFailed, m.Name, "Machine %s has failed: the machine controller takes its instance to be gone, and does nothing more with it; see its status, and delete it to have another in its place", m.Name)
		}
	case failed || p.s.Now.Sub(m.CreatedAt) >= nodeStartupTimeout:
		if is, why := p.join.Hosting(m); is == quorum.HostingUnknown {
			p.note(ReasonMachineWithoutNode, m.Name, "Machine %s (%s) has no Node, and whether it hosts an etcd member is not known: %s; see its status and Events. Only if nothing of etcd's runs on its host, delete it, and let it go: kubectl holdfast release %s --reason '...'", m.Name, cmp.Or(m.Phase, "no phase"), why, m.Name)
			return
		}
		p.note(ReasonMachineWithoutNode, m.Name, "Machine %s (%s) has no Node, so it hosts no etcd member and takes no part; see its status and Events, and delete it if it is of no use", m.Name, cmp.Or(m.Phase, "no phase"))
	}
}

// noteUnprotected notes a voter's Machine that lacks what Holdfast does not put on: what others put on in guard mode, and the latch of one
// that is being deleted. The rest is the plan's first step.
func (p *planner) noteUnprotected(m *quorum.Machine) {
	voter := p.join.Voter(m)
	const text = "Machine %s hosts an etcd voter and lacks %s, so its deletion may take the member: %s puts it on; see whether it runs, and its log"
	switch {
	case m.Mirrored || m.Unread != "" || voter == nil || !p.s.MachineAPIFunctional():
	case m.DeletingUnheld() && len(m.OtherHooks) == 0 && voter.Healthy:
		p.note(ReasonReplacementWaits, m.Name, "Machine %s is let go, and takes etcd voter %s along; if no other is on its way: kubectl holdfast replace %s", m.Name, voter, m.Name)
	case m.Deleting() && m.Hook == quorum.EntryOurs && m.Latch != quorum.EntryOurs:
		p.note(ReasonMachineUnprotected, m.Name, "Machine %s, which is being deleted, hosts etcd voter %s and has no latch, which a deleting Machine can no longer get: its hook alone holds it, so leave that on; while Holdfast is down, nothing puts it back",
			m.Name, voter)
	case m.Deleting() || p.s.Mode != quorum.ModeGuard:
	default:
		if m.Hook == quorum.EntryAbsent {
			p.note(ReasonMachineUnprotected, m.Name, text, m.Name, "hook "+quorum.HookName, "cluster-etcd-operator")
		}
		if !m.Finalizer {
			p.note(ReasonMachineUnprotected, m.Name, text, m.Name, "its finalizer", "the machine controller")
		}
	}
}

// observeClaims notes the Machines that claim the host of a control-plane Machine.
func (p *planner) observeClaims() {
	for i := range p.s.Claimants {
		p.noteClaim(&p.s.Claimants[i], "joined to nothing")
	}
	for i := range p.s.Machines { // one of two that is not known to host the member
		if m := &p.s.Machines[i]; m.Guarded() && len(m.OwnEvidence().MemberIDs) == 0 {
			p.noteClaim(m, "not known to be the member's host")
		}
	}
	if p.s.ClaimantsWhy != "" {
		p.note(ReasonClaimsUnknown, "", "whether other Machines claim the host of a control-plane Machine is not known: %s", p.s.ClaimantsWhy)
	}
}

func (p *planner) noteClaim(m *quorum.Machine, is string) {
	if goes, by := p.s.LostWith(m); goes != nil {
		if m.Deleting() {
			lift := ""
			refusing := quorum.RuleOneTooMany
			if m.Guarded() && len(goes.OwnEvidence().MemberIDs) == 0 { // its deletion takes this one's host along
				refusing = quorum.RuleClaim
			}
			if p.join.Voter(m) != nil || refusing == quorum.RuleClaim { // the former counts among the deletions
				lift = fmt.Sprintf(". Rule %s refuses that until a person lifts it, in its namespace: kubectl annotate machine.machine.openshift.io %s --overwrite %s='%[1]s: %s'", refusing, goes.Name, quorum.OverrideAnnotation, goes.NewReason(p.s.Now))
			}
			p.note(ReasonInstanceClaimedTwice, m.Name, "Machine %s, which is being deleted, also claims the host of control-plane Machine %s (%s); when it goes, it takes that Node along, so no etcd member is added there: "+
				"delete Machine %s to have another in its place%s", m.Name, goes.Name, by, goes.Name, lift)
			return
		}
		p.note(ReasonInstanceClaimedTwice, m.Name, "Machine %s also claims the host of control-plane Machine %s (%s); it is %s, and its deletion is refused, as it would take etcd's member along; "+
			"take it off that host, in its namespace: kubectl patch machine.machine.openshift.io %s %s, then its status (docs/alerts.md)", m.Name, goes.Name, by, is, m.Name, m.DetachPatch())
	}
}

// noteDrains notes what keeps the quorum guard from doing its work.
func (p *planner) noteDrains() {
	g := &p.s.QuorumGuard
	none, missing := "the quorum guard is not kept, so nothing but Holdfast keeps drains from taking too many members",
		"Node %s has no pod of the quorum guard, so no drain may take a voter, and no member is added there: see Holdfast's log, which has the API server's reason, and whether a pod has taken the name"
	if p.s.Mode == quorum.ModeGuard {
		none, missing = "whether drains may take too many members is not known", "Node %s hosts an etcd member and has no pod of the quorum guard: see why cluster-etcd-operator makes none"
		p.noteBudget()
	}
	if g.Absent != "" {
		p.note(ReasonQuorumGuardAbsent, "", "%s: %s", none, g.Absent)
	}
	if !g.Stands() || g.MinAvailable == nil {
		return
	}
	for n := range p.s.Nodes {
		if node := &p.s.Nodes[n]; p.nodeLacksPod(node) && p.s.Now.Sub(node.CreatedAt) >= time.Minute {
			p.note(ReasonQuorumGuardPodMissing, "", missing, node.Name)
		}
	}
	for i := range g.Pods {
		if pod := &g.Pods[i]; pod.Owner == quorum.PodOwnerOther && !pod.Deleting {
			p.note(ReasonQuorumGuardOthersPod, "", "pod %s has the label of the quorum guard's pods and is none of them, so the budget asks for one more: delete it, or take the label off", pod.Name)
		}
	}
}

// noteBudget notes that the budget of cluster-etcd-operator's quorum guard lets drains take too many members, or none for ever: that
// operator asks for a pod less than there are Nodes.
func (p *planner) noteBudget() {
	g := &p.s.QuorumGuard
	voters, _ := p.s.Ring.Voters()
	const mend = "; cluster-etcd-operator puts it right: see whether it runs, and its log"
	switch least := voters - 1; {
	case !g.Stands():
	case g.MinAvailable == nil:
		p.note(ReasonQuorumGuardAbsent, "", "the quorum guard has pods and no PodDisruptionBudget, so drains may take too many members%s", mend)
	case *g.MinAvailable < least:
		p.note(ReasonQuorumGuardTooSmall, "", "the quorum guard's PodDisruptionBudget keeps %d ready pods, and etcd has %s, so drains may take too many members%s", *g.MinAvailable, quorum.NVoters(voters), mend)
	case *g.MinAvailable >= max(len(p.s.Nodes), 1):
		p.note(ReasonQuorumGuardTooLarge, "", "the quorum guard's PodDisruptionBudget keeps %d ready pods, and there are %d control-plane Nodes, so no drain may take any%s", *g.MinAvailable, len(p.s.Nodes), mend)
	}
}

// noteDomains notes that all voters are in one failure domain, although a control-plane Machine is in another.
func (p *planner) noteDomains() {
	voters, domains := 0, map[string]bool{}
	for k := range p.s.Ring.Members {
		if member := &p.s.Ring.Members[k]; !member.Learner {
			voters++
			domains[p.domain(member)] = true
		}
	}
	if voters < 3 || len(domains) != 1 || domains[""] {
		return
	}
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if m.ControlPlane() && !m.Deleting() && m.Zone != "" && !domains[m.Zone] && len(p.join.Members(m)) == 0 {
			for domain := range domains {
				p.note(ReasonOneFailureDomain, "", "all %s are in failure domain %s, and etcd is lost with it; Machine %s is in %s: delete one of the others to have its member move there", quorum.NVoters(voters), domain, m.Name, m.Zone)
			}
			return
		}
	}
}

// noteUnseen notes, in guard mode, that cluster-etcd-operator cannot find the voter of a deleting Machine: it looks for members at the
// Machine's InternalIPs alone.
func (p *planner) noteUnseen(m *quorum.Machine) {
	member := p.join.Voter(m)
	if p.s.Mode != quorum.ModeGuard || !m.Deleting() || m.Mirrored || m.Unread != "" || m.Hook != quorum.EntryOurs || member == nil {
		return
	}
	if quorum.PeerHostsOf(member.PeerURLs).Meets(m.Addresses, nil) {
		return
	}
	then := "Once its replacement votes: " + p.s.Ring.RemoveCommand(member)
	if remain := p.join.Serving(member, 0); p.s.Desired > 0 && remain >= p.s.Desired {
		then = fmt.Sprintf("%s without it, as many as are wanted, so: %s", nHealthy(remain), p.s.Ring.RemoveCommand(member))
	}
	p.note(ReasonOperatorSeesNoMember, m.Name, "cluster-etcd-operator finds a member at an InternalIP of its Machine, and deleting Machine %s has none of etcd %s (%s), so it will not remove that member, and the Machine is held. %s",
		m.Name, member, strings.Join(member.PeerURLs, ", "), then)
}

// noteUndrained notes that a Machine that was let go is not drained: the machine controller drains no control-plane Node while another
// one is cordoned, and that one's Machine is not on its way out.
func (p *planner) noteUndrained(m *quorum.Machine) {
	node := p.join.Node(m)
	if !m.DeletingUnheld() || m.Mirrored || node == nil || node.Cordoned {
		return
	}
	for i := range p.s.Nodes {
		other := &p.s.Nodes[i]
		owner := p.join.Owner(other)
		if !other.Cordoned || owner != nil && owner.DeletingUnheld() {
			continue
		}
		p.note(ReasonDrainBlocked, m.Name, "Machine %s is let go, and is not drained: the machine controller drains no control-plane Node while Node %s is cordoned. If that one stays: kubectl uncordon %s",
			m.Name, other.Name, other.Name)
		return
	}
}

func nHealthy(n int) string {
	if n == 1 {
		return "1 healthy voter remains"
	}
	return fmt.Sprintf("%d healthy voters remain", n)
}

// noteVoterCount notes that etcd has another number of voters than wanted, and what that waits for.
func (p *planner) noteVoterCount() {
	voters, _ := p.s.Ring.Voters()
	var leaves *quorum.Member // one that does not stay, on a Machine
	for k := range p.s.Ring.Members {
		if member := &p.s.Ring.Members[k]; leaves == nil && (p.isLeaving(member) || p.join.Host(member).Machine() == nil) {
			leaves = member
		}
	}
	switch {
	case p.s.Desired == 0 || voters == p.s.Desired || p.s.Surge && voters == p.s.Desired+1:
	case p.listedTwice() != "": // that is noted
	case voters < p.s.Desired && p.hasLearner():
		p.note(ReasonReplacementWaits, "", "%s: %s", votersWanted(p.s), p.blocker())
	case voters < p.s.Desired:
		waits := p.blocker()
		if p.s.Mode == quorum.ModeGuard {
			waits = "cluster-etcd-operator adds a member where a control-plane Machine with a ready Node has none; if there is no such Machine: kubectl holdfast replace <the one that is gone>; else see that operator's log"
		}
		p.note(ReasonEtcdVotersMissing, "", "%s: %s", votersWanted(p.s), waits)
	case leaves != nil && len(p.plan.Notes) > 0: // these say why
	case leaves != nil:
		p.note(ReasonEtcdVotersTooMany, "", "%s, and %s is on no Machine: delete the Machine that is to go, or remove that one: %s", votersWanted(p.s), leaves, p.s.Ring.RemoveCommand(leaves))
	case p.s.Mode == quorum.ModeGuard:
		p.note(ReasonEtcdVotersGrown, "", "etcd has %s on live Machines, and %d were asked for at the installation: that is in order, the control plane has grown", quorum.NVoters(voters), p.s.Desired)
	default:
		p.note(ReasonEtcdVotersTooMany, "", "%s, and no voter's Machine is being deleted: delete the one that is to go (kubectl holdfast status lists them)", votersWanted(p.s))
	}
}

// ownerless is what to do about a member that runs, if at all, where no Machine and no Node is.
func (p *planner) ownerless(member *quorum.Member) string {
	if host := p.join.Host(member); len(host.Machines)+len(host.Nodes) > 0 {
		return ""
	}
	return "; if it is nobody's: " + p.s.Ring.RemoveCommand(member)
}

// machineOf is the Machine that hosts a member, the zero Machine if that is not known.
func (p *planner) machineOf(member *quorum.Member) *quorum.Machine {
	if m := p.join.Host(member).Machine(); m != nil {
		return m
	}
	return &quorum.Machine{}
}

// behind says how far a learner is behind, and for how long at its pace.
func (p *planner) behind(m *quorum.Member) string {
	text := fmt.Sprintf("%d entries behind the leader", p.s.Lag(m))
	if m.CatchUp > 0 {
		text += fmt.Sprintf(", about %s at its pace", max(m.CatchUp.Round(time.Second), time.Second))
	}
	return text
}

// moved says where a member is listed and which addresses its Machine has instead; "" if one is the other.
func (p *planner) moved(member *quorum.Member) (at, has string) {
	m := p.join.Host(member).Machine()
	if m == nil || len(member.PeerURLs) == 0 {
		return "", ""
	}
	addrs, names := slices.Clone(m.Addresses), m.HostNames
	if n := p.join.Node(m); n != nil {
		addrs, names = append(addrs, n.Addresses...), append(slices.Clone(names), n.HostNames...)
	}
	if len(addrs) == 0 || quorum.PeerHostsOf(member.PeerURLs).Meets(addrs, names) {
		return "", ""
	}
	return strings.Join(member.PeerURLs, ", "), addrs[0].String()
}

// afterMove says what comes of a member whose host has another address, or what to type.
func (p *planner) afterMove(member *quorum.Member) string {
	if member.Learner { // some versions of etcd forget that a member is a learner when it is updated
		if p.s.Mode == quorum.ModeFull && p.deserted(member) != "" {
			return fmt.Sprintf("it gives way once it has made no progress for %s, and its host gets another", p.s.Limits.StallAfter)
		}
		return "if that is for good: " + p.s.Ring.RemoveCommand(member)
	}
	return fmt.Sprintf("if that is for good: etcdctl member update %x --peer-urls=<the new one>, and start its etcd again", member.ID)
}
