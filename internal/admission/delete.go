package admission

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitDelete are the rules about DELETE. The first that denies ends it.
func admitDelete(d *Decision, r *Request, s *quorum.Snapshot, ids *Identities) {
	old, class := r.Old, ids.Classify(r.User)
	if old.Deleting() {
		return // a repeated DELETE changes nothing
	}
	denyUnlessLifted := func(rule quorum.Rule, lines []string) (ended bool) {
		if class == ClassPerson && old.Lifts(rule, r.At) {
			d.add(rule, VerdictOverridden, overrideUsed(r, rule)...)
			return false
		}
		d.add(rule, VerdictDenied, lines...)
		return true
	}
	if !r.guarded() {
		admitStray(r, s, ids, denyUnlessLifted)
		return
	}
	if s != nil && len(old.OwnEvidence().MemberIDs) == 0 {
		if goes, by := s.LostWith(old); goes != nil && denyUnlessLifted(quorum.RuleClaim, claimDeleted(r, goes, by, ids)) {
			return
		}
	}
	if s != nil && old.ControlPlane() && !old.Finalizer && s.Now.Sub(old.CreatedAt) < unseenFor && denyUnlessLifted(quorum.RuleUnprotectedDelete, unseenText(r)) {
		return
	}
	is, why := r.hosting(s)
	bare := !old.Protected() && (!old.Finalizer || s.MachineAPIFunctional())
	if is == quorum.HostingUnknown && bare && denyUnlessLifted(quorum.RuleUnprotectedDelete, unprotectedUnknownText(r, s, why)) {
		return
	}
	if is == quorum.HostingUnknown && s != nil && !s.Ring.Known {
		if other := anotherDeletion(s, old); other != nil && denyUnlessLifted(quorum.RuleOneTooMany, uncountedText(r, other, why)) {
			return
		}
	}
	if is == quorum.HostingMember {
		j := quorum.NewJoin(s)
		if voter := j.Voter(s.Machine(old.Name)); voter != nil {
			if bare && denyUnlessLifted(quorum.RuleUnprotectedDelete, unprotectedText(r, s.Mode, voter)) {
				return
			}
			if voter.Healthy && admitHealthyDelete(r, s, j, voter, denyUnlessLifted) {
				return
			}
		}
	}
	if is == quorum.HostingNothing {
		if why = quorum.NewJoin(s).WhyHeldAfterRestore(s.Machine(old.Name)); why != "" {
			is = quorum.HostingUnknown // once it is being deleted
		}
	}
	if old.Hook == quorum.EntryOurs {
		d.add(quorum.RuleHeld, VerdictAllowed, heldText(r, s, is, why)...)
	}
}

// unseenFor is for how long a new Machine may wait for the machine controller, which adds its finalizer. The API server decides
// by the finalizers before it asks admission: a Machine that is deleted before it has one is gone at once, and nobody
// terminates its instance.
const unseenFor = 10 * time.Minute

// admitStray is the rule claim for the deletion of a Machine that is none of the control plane's, but joined to the Node or the
// instance of one that is: the machine controller would drain and delete the voter's Node with it.
func admitStray(r *Request, s *quorum.Snapshot, ids *Identities, denyUnlessLifted func(quorum.Rule, []string) bool) {
	if !r.reaches() {
		return
	}
	if s == nil {
		denyUnlessLifted(quorum.RuleClaim, claimDeleteUnknown(r))
		return
	}
	if goes, by := s.LostWith(r.Old); goes != nil {
		denyUnlessLifted(quorum.RuleClaim, claimDeleted(r, goes, by, ids))
	}
}

// admitHealthyDelete are the rules for the Machine of a healthy voter: one-too-many and
// degraded-delete.
func admitHealthyDelete(r *Request, s *quorum.Snapshot, j *quorum.Join, voter *quorum.Member, denyUnlessLifted func(quorum.Rule, []string) bool) (ended bool) {
	if going, limit := deletions(s, j, nil); limit > 0 && len(going) >= limit && denyUnlessLifted(quorum.RuleOneTooMany, oneTooManyText(r, s, j, going, limit)) {
		return true
	}
	if sick := sickBeside(s, j, voter); sick != nil {
		return denyUnlessLifted(quorum.RuleDegradedDelete, degradedText(r, s, sick))
	}
	return false
}

// deletions are the deleting Machines that still host voters, without the Machine except (nil for none), and how many there may be, 0 for any
// number.
func deletions(s *quorum.Snapshot, j *quorum.Join, except *quorum.Machine) (going []*quorum.Machine, limit int) {
	voters, _ := s.Ring.Voters()
	if limit = s.Limits.MaxDeleting; limit < 0 { // AsTolerated
		limit = max(1, quorum.Tolerance(voters))
	}
	for i := range s.Machines {
		if m := &s.Machines[i]; m != except && m.Deleting() && j.Voter(m) != nil {
			going = append(going, m)
		}
	}
	return going, limit
}

// anotherDeletion is a deleting Machine other than except that has evidence of a member, if except has, too; nil without one, or where any number may
// be deleted. It is asked while etcd is not known, and so what etcd could do without.
func anotherDeletion(s *quorum.Snapshot, except *quorum.Machine) *quorum.Machine {
	if s.Limits.MaxDeleting == 0 || len(except.OwnEvidence().MemberIDs) == 0 {
		return nil
	}
	for i := range s.Machines {
		if m := &s.Machines[i]; m.UID != except.UID && m.Deleting() && len(m.OwnEvidence().MemberIDs) > 0 {
			return m
		}
	}
	return nil
}

// sickBeside is another voter that is unhealthy and not being replaced, nil without one.
func sickBeside(s *quorum.Snapshot, j *quorum.Join, voter *quorum.Member) *quorum.Member {
	for k := range s.Ring.Members {
		if member := &s.Ring.Members[k]; member != voter && !member.Learner && !member.Healthy && !j.Replacing(member) {
			return member
		}
	}
	return nil
}

func unprotectedText(r *Request, mode quorum.Mode, member *quorum.Member) []string {
	comes := "What is missing is about to be added."
	switch {
	case !r.Old.Finalizer:
		comes = "The machine controller adds the finalizer; see whether it runs."
	case r.Old.Hook != quorum.EntryOurs && mode == quorum.ModeGuard:
		comes = "cluster-etcd-operator adds the hook, and Holdfast the latch with it; see whether that operator runs."
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s hosts etcd voter %s and lacks %s.", quorum.RuleUnprotectedDelete, r.name(), member, r.lacks()),
		"Nothing would hold the deletion until a replacement votes. " + comes,
		"Try again in a few seconds: " + r.kubectl("delete", ""),
		r.lift(quorum.RuleUnprotectedDelete),
	}
}

func unseenText(r *Request) []string {
	return []string{
		fmt.Sprintf("Refused (%s): the machine controller has not seen Machine %s yet: it lacks finalizer %s.", quorum.RuleUnprotectedDelete, r.name(), quorum.Finalizer),
		"If deleted now, it is gone at once, and an instance that is being made for it would run on unknown to everybody.",
		"Try again in a second: " + r.kubectl("delete", ""),
		r.lift(quorum.RuleUnprotectedDelete),
	}
}

func unprotectedUnknownText(r *Request, s *quorum.Snapshot, why string) []string {
	return []string{
		fmt.Sprintf("Refused (%s): whether Machine %s hosts an etcd voter is not known, and it lacks %s.", quorum.RuleUnprotectedDelete, r.name(), r.lacks()),
		reasonLine(why),
		untilKnown(s, "Try again when etcd answers: etcdctl endpoint status --cluster"),
		r.lift(quorum.RuleUnprotectedDelete),
	}
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
func untilKnown(s *quorum.Snapshot, etcds string) string {
	if s == nil || !s.Ring.Known || s.Mislisted() != nil {
		return etcds
	}
	return "See the notes of kubectl holdfast status. Go on only if nothing of etcd's runs on its host."
}

func oneTooManyText(r *Request, s *quorum.Snapshot, j *quorum.Join, going []*quorum.Machine, limit int) []string {
	voters, _ := s.Ring.Voters()
	var names []string
	for _, m := range going {
		names = append(names, fmt.Sprintf("%s (etcd voter %s)", m.Name, j.Voter(m)))
	}
	be, that := "is", "that Machine is"
	if len(names) > 1 {
		be, that = "are", "one of those is"
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s hosts a healthy etcd voter, and %s %s being deleted already.", quorum.RuleOneTooMany, r.name(), strings.Join(names, " and "), be),
		fmt.Sprintf("With %s, at most %d may be deleted at a time.", quorum.NVoters(voters), limit),
		"Wait until " + that + " gone, then try again: " + r.watch(),
		r.lift(quorum.RuleOneTooMany),
	}
}

func uncountedText(r *Request, other *quorum.Machine, why string) []string {
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s is being deleted already, and etcd does not answer, so its voters cannot be counted.", quorum.RuleOneTooMany, other.Name),
		reasonLine(why),
		"Try again in a few seconds. How etcd is: etcdctl endpoint health --cluster",
		r.lift(quorum.RuleOneTooMany),
	}
}

func degradedText(r *Request, s *quorum.Snapshot, sick *quorum.Member) []string {
	voters, healthy := s.Ring.Voters()
	why := ""
	if sick.Why != "" {
		why = ": " + quorum.Clip(sick.Why, 120)
	}
	j := quorum.NewJoin(s)
	then := "Mend that member, or delete its own Machine to have it replaced. How etcd is: kubectl holdfast status"
	if m := j.Host(sick).Machine(); m != nil {
		then = fmt.Sprintf("Mend that member, or have its Machine replaced: kubectl holdfast replace %s. How etcd is: kubectl holdfast status", m.Name)
	}
	if why := j.ListedTwice(sick); why != "" {
		then = why
	} else if !sick.Started() {
		then = fmt.Sprintf("That member has never started. If it was added by mistake, remove it: etcdctl member remove %x", sick.ID)
	}
	return []string{
		fmt.Sprintf("Refused (%s): Machine %s hosts a healthy etcd voter, and voter %s is unhealthy%s.", quorum.RuleDegradedDelete, r.name(), sick, why),
		fmt.Sprintf("Healthy voters: %d of %d; quorum is %d. A deletion cannot be taken back.", healthy, voters, quorum.Size(voters)),
		then,
		r.lift(quorum.RuleDegradedDelete),
	}
}

func heldText(r *Request, s *quorum.Snapshot, is quorum.Hosting, why string) []string {
	switch is {
	case quorum.HostingMember:
		voter := quorum.NewJoin(s).Voter(s.Machine(r.Old.Name))
		if voter == nil {
			return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts etcd learner %s, which never voted: it leaves etcd, and the Machine is released.", quorum.RuleHeld, r.name(), hosted(s, r.Old))}
		}
		until, soon := "a replacement votes in etcd", ""
		if s.Desired > 0 {
			until = fmt.Sprintf("etcd has the wanted number of voters (%d now) without it", s.Desired)
		}
		voters, _ := s.Ring.Voters()
		lines := []string(nil)
		if !voter.Healthy && s.Desired > 0 && voters >= s.Desired { // it goes before its replacement votes
			until = "its unhealthy member has left etcd"
			who := "Holdfast removes that once the Node of a replacement waits for its place."
			if s.Mode == quorum.ModeGuard {
				who, soon = "cluster-etcd-operator removes that within minutes, whether there is a replacement or not.", " while this Machine is there to copy"
			}
			lines = []string{fmt.Sprintf("%s etcd then has %s.", who, quorum.NVoters(voters-1))}
		}
		lines = append([]string{fmt.Sprintf("Holdfast (%s): Machine %s is held until %s; it is neither drained nor terminated before.", quorum.RuleHeld, r.name(), until)}, lines...)
		switch c := r.Old.Controller(); {
		case s.Desired > 0 && voters > s.Desired: // it needs no replacement
		case c != nil && c.Kind == "ControlPlaneMachineSet":
			lines = append(lines, fmt.Sprintf("%s %s creates the replacement while its spec.state is Active and an operator keeps it (kubectl holdfast status).", c.Kind, c.Name))
		case c != nil: // the plugin leaves such a Machine to its owner
			lines = append(lines, fmt.Sprintf("%s %s controls it. If that makes no replacement, create one by hand.", quorum.Clip(c.Kind, 40), quorum.Clip(c.Name, 80)))
		default:
			lines = append(lines, "If there is no replacement yet, create one, or have it made"+soon+": kubectl holdfast replace "+r.name())
		}
		return append(lines, "Follow it: "+r.watch())
	case quorum.HostingNothing:
		if !r.Old.ControlPlane() {
			return []string{
				fmt.Sprintf("Holdfast (%s): Machine %s hosts no etcd member, and has no control-plane label, but hook %s.", quorum.RuleHeld, r.name(), r.holder()),
				"A person lets it go then, by taking that off: " + r.kubectl("edit", ""),
			}
		}
		return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts no etcd member, so it is released next and terminated.", quorum.RuleHeld, r.name())}
	default:
		return []string{
			fmt.Sprintf("Holdfast (%s): Machine %s is held, because whether it hosts an etcd member is not known.", quorum.RuleHeld, r.name()),
			reasonLine(why),
		}
	}
}
