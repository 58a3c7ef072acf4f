package membership

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// explainWaiting says what every deletion that is not finished waits for, where there is nothing to do now.
func (p *planner) explainWaiting() {
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if m.Deleting() && m.DeletingUnheld() && len(m.OtherHooks) > 0 {
			p.note(ReasonReplacementWaits, m.Name, "Machine %s is let go by Holdfast, and held by another lifecycle hook, %s: its owner takes that off", m.Name, strings.Join(m.OtherHooks, " and "))
		}
		if !m.Deleting() || m.Mirrored || m.Hook == quorum.EntryAbsent { // without a hook: finalRelease notes it
			continue
		}
		voter := p.join.Voter(m)
		if why := p.join.WhyHeldAfterRestore(m); why != "" {
			p.note(ReasonReplacementWaits, m.Name, "Machine %s is held: %s", m.Name, why)
			continue
		}
		is, why := p.join.Hosting(m)
		if members := p.join.Members(m); is == quorum.HostingMember && len(p.join.Joined(m)) == 0 {
			p.note(ReasonReplacementWaits, m.Name, "Machine %s is held, because it may be the host of etcd member %s: %s; only if it has another host, and nothing of etcd's runs there: kubectl holdfast release %s --reason '...'", m.Name, members[0], p.join.Ambiguity(members[0]), m.Name)
			continue
		}
		if is == quorum.HostingUnknown {
			if p.join.Known() && m.Unread == "" {
				why += "; only if nothing of etcd's runs on its host: kubectl holdfast release " + m.Name + " --reason '...'"
			}
			p.note(ReasonReplacementWaits, m.Name, "Machine %s is held: %s", m.Name, why)
			continue
		}
		if p.s.Mode == quorum.ModeGuard {
			until := "has moved its etcd member and taken its hook off"
			if p.plan.InProgress = true; is == quorum.HostingNothing { // that its member leaves is seen at once
				until = "takes its hook off, for which it looks once a minute"
			}
			p.note(ReasonReplacementWaits, m.Name, "Machine %s is held until cluster-etcd-operator %s%s; the operator's log: kubectl -n openshift-etcd-operator logs deployment/etcd-operator", m.Name, until, p.askForNode(m))
			continue
		}
		if voter != nil {
			p.note(ReasonReplacementWaits, m.Name, "Machine %s is held, it hosts etcd voter %s: %s", m.Name, voter, p.blocker())
		}
	}
}

// askForNode asks a person for a Machine, where none has a Node for the place of a deleting one.
func (p *planner) askForNode(m *quorum.Machine) string {
	if voter := p.join.Voter(m); voter != nil && !voter.Healthy && p.waitingMachine(anyMachine) == nil ||
		slices.Contains(Replacements(p.join), Replacement{Machine: m.Name, UID: m.UID, Phase: PhaseAwaitNode}) {
		return " (create another control-plane Machine if none is on its way)"
	}
	return ""
}

// blocker is what keeps a replacement from getting on.
func (p *planner) blocker() string {
	voters, healthy := p.s.Ring.Voters()
	switch {
	case len(p.s.Ring.Alarms) > 0:
		return "etcd refuses every write until its alarm is disarmed"
	case healthy < quorum.Size(voters):
		return fmt.Sprintf("%d of %s are healthy, and quorum is %d", healthy, quorum.NVoters(voters), quorum.Size(voters))
	case p.s.OtherDriver != "":
		return "Holdfast leaves etcd's members to cluster-etcd-operator"
	case p.s.ForeignLock():
		return p.s.ForeignLockText()
	case p.s.Desired == 0:
		return "how many voters are wanted is not known"
	}
	if why := p.learnerBlocker(); why != "" {
		return why + p.waitsForLearner()
	}
	if m := p.waitingMachine(anyMachine); m != nil {
		if why := p.listedTwice(); why != "" {
			return why
		}
		if f := p.addRefused(); f != nil {
			return fmt.Sprintf("etcd has refused a member for Machine %s since %s, because its leader is not connected to enough voters", m.Name, f.Since.UTC().Format(time.RFC3339))
		}
		_, why := p.join.Hosting(m)
		if m.Hook != quorum.EntryOurs || m.Latch != quorum.EntryOurs {
			why = "it has to be hooked first"
		} else if _, ok := p.peerURL(p.join.Node(m)); why == "" && !ok {
			why = "the leader's peer URL does not say on which port one would listen"
		}
		return fmt.Sprintf("Machine %s waits for a member: %s", m.Name, cmp.Or(why, "it is added next"))
	}
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		switch why := p.neededFor(member); {
		case why == "" || voters <= p.s.Desired || !p.isLeaving(member):
		case p.join.Host(member).Bootstrap:
			return fmt.Sprintf("the installer's bootstrap member %s has its place until the installation is over: %s", member, why)
		case p.join.Serving(member, 0) >= p.s.Desired:
			return fmt.Sprintf("it is removed once the API servers can do without it: %s; if they can already: %s", why, p.s.Ring.RemoveCommand(member))
		}
	}
	if p.join.Serving(nil, 0) > p.s.Desired && p.join.Serving(nil, p.s.Limits.StableFor) <= p.s.Desired {
		return fmt.Sprintf("it is removed once %d others have been healthy for %s (--stabilization)", p.s.Desired, p.s.Limits.StableFor)
	}
	if voters > p.s.Desired {
		return p.tooFewServe()
	}
	for i := range p.s.Machines {
		m := &p.s.Machines[i]
		if m.Deleting() || m.Mirrored || !m.ControlPlane() || len(p.join.Joined(m)) > 0 {
			continue
		}
		switch n := p.join.Node(m); {
		case n == nil || !n.Ready:
			return fmt.Sprintf("Machine %s has no ready Node yet", m.Name)
		case len(n.Addresses) == 0:
			return fmt.Sprintf("Node %s of Machine %s has no InternalIP yet", n.Name, m.Name)
		case p.hostGoesWithAnother(m):
			return goesWithAnother(m)
		case !p.s.QuorumGuard.PodSatisfied(n.Name):
			return fmt.Sprintf("Node %s of Machine %s has no pod of the quorum guard yet", n.Name, m.Name)
		}
		return fmt.Sprintf("etcd lists a member already at the peer URL that one on Machine %s would get", m.Name)
	}
	return "no other control-plane Machine waits for its place; create one"
}

// learnerBlocker says what the first learner that needs more than a free seat waits for before it is promoted; "" without such a learner.
func (p *planner) learnerBlocker() string {
	voters, _ := p.s.Ring.Voters()
	for k := range p.s.Ring.Members {
		member := &p.s.Ring.Members[k]
		if !member.Learner {
			continue
		}
		switch m := p.join.Host(member).Machine(); {
		case m == nil:
			return fmt.Sprintf("learner %s cannot be joined to one Machine", member)
		case p.s.Mode == quorum.ModeFull && p.hostGoesWithAnother(m):
			return goesWithAnother(m)
		case p.s.Mode == quorum.ModeGuard && m.Deleting():
			return fmt.Sprintf("learner %s is not promoted, because Machine %s is being deleted", member, m.Name)
		case !member.Started():
			why := ""
			if n := p.learners(); n > 1 {
				why = fmt.Sprintf("; etcd starts there only if it takes %d learners (--max-learners)", n)
			}
			return fmt.Sprintf("the learner on Machine %s has not started%s", m.Name, why)
		case !member.Healthy:
			return fmt.Sprintf("learner %s does not answer, as one that is still being sent its data: %s", member, member.Why)
		case !p.s.CaughtUp(member):
			return fmt.Sprintf("learner %s is %s", member, p.behind(member))
		case !p.s.Steady(member):
			return fmt.Sprintf("learner %s has caught up, and is promoted once it has kept up for %s", member, p.s.Limits.SteadyFor)
		case !p.takesAll(member):
			return fmt.Sprintf("learner %s has caught up, and does not say on its command line that it takes %d learners (--max-learners); it is promoted once it is the only one", member, p.learners())
		case m.Hook != quorum.EntryOurs || m.Latch != quorum.EntryOurs:
			return fmt.Sprintf("learner %s has caught up, and is promoted once Machine %s has hook and latch", member, m.Name)
		case voters == p.s.Desired && !p.seatFree():
			return fmt.Sprintf("learner %s has caught up, and is promoted once a voter can be removed after it: %s", member, p.tooFewServe())
		case p.seatFree() && p.holdsPromotion():
			return fmt.Sprintf("learner %s has caught up, and is promoted once the quorum guard's budget keeps drains from taking one voter too many", member)
		}
	}
	return ""
}

func goesWithAnother(m *quorum.Machine) string {
	return fmt.Sprintf("the host of Machine %s goes with another Machine that is being deleted and claims it", m.Name)
}

// tooFewServe says why no voter can be removed, and what to do.
func (p *planner) tooFewServe() string {
	voters, _ := p.s.Ring.Voters()
	return fmt.Sprintf("%d of %s are healthy on a Machine or Node, and without the one that leaves %d have to be; mend the others, or delete their Machines to have them replaced", p.join.Serving(nil, 0), quorum.NVoters(voters), p.s.Desired)
}

// waitsForLearner names a Machine that waits for a learner although there may be several, and why.
func (p *planner) waitsForLearner() string {
	if n := p.learners(); n < p.s.Limits.MaxLearners {
		if o, m := p.takesNoMore(), p.waitingMachine(anyMachine); o != nil && m != nil {
			return fmt.Sprintf("; Machine %s waits for that, because etcd member %s does not say on its command line that it takes more learners (--max-learners=%d)", m.Name, o, p.s.Limits.MaxLearners)
		}
	}
	return ""
}
