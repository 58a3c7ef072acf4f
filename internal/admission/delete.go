package admission

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitDelete are the rules about DELETE. The first that denies ends it.
func (d *deciding) admitDelete() {
	old := d.Old
	if old.Deleting() {
		return // a repeated DELETE changes nothing
	}
	if !d.guarded() {
		d.denyUnlessLifted(d.claimStrayDenial())
		return
	}
	is, why := d.hosting()
	var voter *quorum.Member
	if is == quorum.HostingMember {
		voter = d.join.Voter(d.machine)
	}
	if d.denyUnlessLifted(
		d.claimTwinDenial(), d.unprotectedUnseenDenial(), d.unprotectedDenial(is, why, voter),
		d.oneTooManyUncountedDenial(is, why), d.oneTooManyDenial(voter), d.degradedDenial(voter),
	) {
		return
	}
	if is == quorum.HostingNothing {
		if why = d.join.WhyHeldAfterRestore(d.machine); why != "" {
			is = quorum.HostingUnknown // once it is being deleted
		}
	}
	if old.Hook == quorum.EntryOurs {
		d.add(quorum.RuleHeld, VerdictAllowed, d.heldText(is, why)...)
	}
}

// claimStrayDenial is the rule claim for a Machine that is none of the control plane's, but joined to the Node or the
// instance of one that is: the machine controller would drain and delete the voter's Node with it.
func (d *deciding) claimStrayDenial() *Finding {
	switch {
	case !d.reaches():
		return nil
	case d.s == nil:
		return d.claimDeleteUnknown()
	}
	return d.claimDeleted()
}

// claimTwinDenial is the rule claim for a guarded Machine without evidence of a member.
func (d *deciding) claimTwinDenial() *Finding {
	if d.s == nil || len(d.Old.OwnEvidence().MemberIDs) > 0 {
		return nil
	}
	return d.claimDeleted()
}

// unseenFor is for how long a new Machine may wait for the machine controller, which adds its finalizer. The API server decides
// by the finalizers before it asks admission: a Machine that is deleted before it has one is gone at once, and nobody
// terminates its instance.
const unseenFor = 10 * time.Minute

// unprotectedUnseenDenial is the rule unprotected-delete for a Machine that the machine controller has not seen.
func (d *deciding) unprotectedUnseenDenial() *Finding {
	if d.s == nil || !d.Old.ControlPlane() || d.Old.Finalizer || d.s.Now.Sub(d.Old.CreatedAt) >= unseenFor {
		return nil
	}
	return d.liftable(quorum.RuleUnprotectedDelete,
		fmt.Sprintf("Refused (%s): the machine controller has not seen Machine %s yet: it lacks finalizer %s.", quorum.RuleUnprotectedDelete, d.name(), quorum.Finalizer),
		"If deleted now, it is gone at once, and an instance that is being made for it would run on unknown to everybody.",
		"Try again in a second: "+d.kubectl("delete", ""))
}

// unprotectedDenial is the rule unprotected-delete for the Machine of a voter, and for one of which that is not known.
func (d *deciding) unprotectedDenial(is quorum.Hosting, why string, voter *quorum.Member) *Finding {
	if d.Old.Protected() || d.Old.Finalizer && !d.s.MachineAPIFunctional() {
		return nil
	}
	if is == quorum.HostingUnknown {
		return d.liftable(quorum.RuleUnprotectedDelete,
			fmt.Sprintf("Refused (%s): whether Machine %s hosts an etcd voter is not known, and it lacks %s.", quorum.RuleUnprotectedDelete, d.name(), d.lacks()),
			reasonLine(why),
			d.untilKnown("Try again when etcd answers: etcdctl endpoint status --cluster"))
	}
	if voter == nil {
		return nil
	}
	comes := "What is missing is about to be added."
	switch {
	case !d.Old.Finalizer:
		comes = "The machine controller adds the finalizer; see whether it runs."
	case d.Old.Hook != quorum.EntryOurs && d.s.Mode == quorum.ModeGuard:
		comes = "cluster-etcd-operator adds the hook, and Holdfast the latch with it; see whether that operator runs."
	}
	return d.liftable(quorum.RuleUnprotectedDelete,
		fmt.Sprintf("Refused (%s): Machine %s hosts etcd voter %s and lacks %s.", quorum.RuleUnprotectedDelete, d.name(), voter, d.lacks()),
		"Nothing would hold the deletion until a replacement votes. "+comes,
		"Try again in a few seconds: "+d.kubectl("delete", ""))
}

// oneTooManyUncountedDenial is the rule one-too-many while etcd is not known, and with it how many members etcd can do without: no second deletion of
// a Machine with evidence of a member.
func (d *deciding) oneTooManyUncountedDenial(is quorum.Hosting, why string) *Finding {
	if is != quorum.HostingUnknown || d.s == nil || d.s.Ring.Known || d.s.Limits.MaxDeleting == 0 || len(d.Old.OwnEvidence().MemberIDs) == 0 {
		return nil
	}
	for i := range d.s.Machines {
		if m := &d.s.Machines[i]; m.UID != d.Old.UID && m.Deleting() && len(m.OwnEvidence().MemberIDs) > 0 {
			return d.liftable(quorum.RuleOneTooMany,
				fmt.Sprintf("Refused (%s): Machine %s is being deleted already, and etcd does not answer, so its voters cannot be counted.", quorum.RuleOneTooMany, m.Name),
				reasonLine(why),
				"Try again in a few seconds. How etcd is: etcdctl endpoint health --cluster")
		}
	}
	return nil
}

// oneTooManyDenial is the rule one-too-many for the Machine of a healthy voter, nil for none.
func (d *deciding) oneTooManyDenial(voter *quorum.Member) *Finding {
	if voter == nil || !voter.Healthy {
		return nil
	}
	going, limit := d.deletions(nil)
	if limit <= 0 || len(going) < limit {
		return nil
	}
	voters, _ := d.s.Ring.Voters()
	var names []string
	for _, m := range going {
		names = append(names, fmt.Sprintf("%s (etcd voter %s)", m.Name, d.join.Voter(m)))
	}
	be, that := "is", "it is"
	if len(names) > 1 {
		be, that = "are", "one of them is"
	}
	return d.liftable(quorum.RuleOneTooMany,
		fmt.Sprintf("Refused (%s): Machine %s hosts a healthy etcd voter, and %s %s being deleted already.", quorum.RuleOneTooMany, d.name(), strings.Join(names, " and "), be),
		fmt.Sprintf("With %s, at most %d may be deleted at a time.", quorum.NVoters(voters), limit),
		fmt.Sprintf("Try again once %s gone: %s. If no replacement is on its way: kubectl holdfast replace %s", that, d.watch(), going[0].Name))
}

// deletions are the deleting Machines that still host voters, without the Machine except (nil for none), and how many there may be, 0 for any
// number.
func (d *deciding) deletions(except *quorum.Machine) (going []*quorum.Machine, limit int) {
	voters, _ := d.s.Ring.Voters()
	if limit = d.s.Limits.MaxDeleting; limit < 0 { // AsTolerated
		limit = max(1, quorum.Tolerance(voters))
	}
	for i := range d.s.Machines {
		if m := &d.s.Machines[i]; m != except && m.Deleting() && d.join.Voter(m) != nil {
			going = append(going, m)
		}
	}
	return going, limit
}

// degradedDenial is the rule degraded-delete for the Machine of a healthy voter, nil for none.
func (d *deciding) degradedDenial(voter *quorum.Member) *Finding {
	if voter == nil || !voter.Healthy {
		return nil
	}
	sick := d.sickBeside(voter)
	if sick == nil {
		return nil
	}
	voters, healthy := d.s.Ring.Voters()
	why := ""
	if sick.Why != "" {
		why = ": " + quorum.Clip(sick.Why, 120)
	}
	then := "Mend that member, or delete its own Machine to have it replaced. How etcd is: kubectl holdfast status"
	if m := d.join.Host(sick).Machine(); m != nil {
		then = fmt.Sprintf("Mend that member, or have its Machine replaced: kubectl holdfast replace %s. How etcd is: kubectl holdfast status", m.Name)
	}
	if why := d.join.ListedTwice(sick); why != "" {
		then = why
	} else if !sick.Started() {
		then = fmt.Sprintf("That member has never started. If it was added by mistake, remove it: %s", d.s.Ring.RemoveCommand(sick))
	} else if host := d.join.Host(sick); len(host.Machines)+len(host.Nodes) == 0 && host.Departed == nil {
		then = fmt.Sprintf("That member runs on no Machine and no Node. If it is nobody's: %s", d.s.Ring.RemoveCommand(sick))
	}
	return d.liftable(quorum.RuleDegradedDelete,
		fmt.Sprintf("Refused (%s): Machine %s hosts a healthy etcd voter, and voter %s is unhealthy%s.", quorum.RuleDegradedDelete, d.name(), sick, why),
		fmt.Sprintf("Healthy voters: %d of %d; quorum is %d. A deletion cannot be taken back.", healthy, voters, quorum.Size(voters)),
		then)
}

// sickBeside is another voter that is unhealthy and not being replaced, nil without one.
func (d *deciding) sickBeside(voter *quorum.Member) *quorum.Member {
	for k := range d.s.Ring.Members {
		if member := &d.s.Ring.Members[k]; member != voter && !member.Learner && !member.Healthy && !d.join.Replacing(member) {
			return member
		}
	}
	return nil
}

// lacks names which of hook, latch and finalizer the Machine does not have.
func (r *Request) lacks() string {
	var out []string
	if r.Old.Hook != quorum.EntryOurs {
		out = append(out, "preDrain hook "+quorum.HookName)
	}
	if r.Old.Latch != quorum.EntryOurs {
		out = append(out, "latch "+quorum.LatchName)
	}
	if !r.Old.Finalizer {
		out = append(out, "finalizer "+quorum.Finalizer)
	}
	return strings.Join(out, " and ")
}

// untilKnown says what to do where it is not known what a Machine hosts: something else if etcd is to blame.
func (d *deciding) untilKnown(etcds string) string {
	if d.s == nil || !d.s.Ring.Known || d.s.Mislisted() != nil {
		return etcds
	}
	return "See the notes of kubectl holdfast status. Go on only if nothing of etcd's runs on its host."
}

func (d *deciding) heldText(is quorum.Hosting, why string) []string {
	switch is {
	case quorum.HostingMember:
		voter := d.join.Voter(d.machine)
		if voter == nil {
			return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts etcd learner %s, which never voted: it leaves etcd, and the Machine is released.", quorum.RuleHeld, d.name(), d.hosted())}
		}
		until, soon := "a replacement votes in etcd", ""
		if d.s.Desired > 0 {
			until = fmt.Sprintf("etcd has the wanted number of voters (%d now) without it", d.s.Desired)
		}
		voters, _ := d.s.Ring.Voters()
		lines := []string(nil)
		if !voter.Healthy && d.s.Desired > 0 && voters >= d.s.Desired { // it goes before its replacement votes
			until = "its unhealthy member has left etcd"
			who := "Holdfast removes that once the Node of a replacement waits for its place."
			if d.s.Mode == quorum.ModeGuard {
				who, soon = "cluster-etcd-operator removes that within minutes, whether there is a replacement or not.", " while this Machine is there to copy"
			}
			lines = []string{fmt.Sprintf("%s etcd then has %s.", who, quorum.NVoters(voters-1))}
		}
		lines = append([]string{fmt.Sprintf("Holdfast (%s): Machine %s is held until %s; it is neither drained nor terminated before.", quorum.RuleHeld, d.name(), until)}, lines...)
		switch c := d.Old.Controller(); {
		case d.s.Desired > 0 && voters > d.s.Desired: // it needs no replacement
		case c != nil && c.Kind == "ControlPlaneMachineSet":
			lines = append(lines, fmt.Sprintf("%s %s creates the replacement while its spec.state is Active and an operator keeps it (kubectl holdfast status).", c.Kind, c.Name))
		case c != nil: // the plugin leaves such a Machine to its owner
			lines = append(lines, fmt.Sprintf("%s %s controls it. If that makes no replacement, create one by hand.", quorum.Clip(c.Kind, 40), quorum.Clip(c.Name, 80)))
		default:
			lines = append(lines, "If there is no replacement yet, create one, or have it made"+soon+": kubectl holdfast replace "+d.name())
		}
		return append(lines, "Follow it: "+d.watch())
	case quorum.HostingNothing:
		if !d.Old.ControlPlane() {
			return []string{
				fmt.Sprintf("Holdfast (%s): Machine %s hosts no etcd member, and has no control-plane label, but hook %s.", quorum.RuleHeld, d.name(), d.holder()),
				"A person lets it go then, by taking that off: " + d.kubectl("edit", ""),
			}
		}
		return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts no etcd member, so it is released next and terminated.", quorum.RuleHeld, d.name())}
	default:
		return []string{
			fmt.Sprintf("Holdfast (%s): Machine %s is held, because whether it hosts an etcd member is not known.", quorum.RuleHeld, d.name()),
			reasonLine(why),
		}
	}
}
