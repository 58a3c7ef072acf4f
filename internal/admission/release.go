package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitRelease are the rules about who may let a deleting Machine go.
func admitRelease(d *Decision, r *Request, s *quorum.Snapshot, class Class) {
	if class == ClassPerson && r.ByWebhook {
		d.holdHook(r, quorum.RuleAutomationRelease, webhookRelease(r))
		return
	}
	switch class {
	case ClassAutomation:
		d.holdHook(r, quorum.RuleAutomationRelease, automationRelease(r))
	case ClassCustodian:
		switch is, why := r.hosting(s); {
		case is == quorum.HostingNothing:
			d.dropLatch(r)
		case r.Old.Hook == quorum.EntryAbsent && s != nil && s.Ledger.Has(r.Old.UID) && quorum.NewJoin(s).MayRelease(s.Machine(r.Old.Name)):
			admitFinal(d, r, s)
		case is == quorum.HostingMember && s.Mode == quorum.ModeGuard && r.Old.Hook == quorum.EntryOurs && r.New.Hook == quorum.EntryAbsent && r.Old.Latch == quorum.EntryOurs && quorum.NewJoin(s).Voter(s.Machine(r.Old.Name)) == nil:
			if r.New.Latch != r.Old.Latch {
				d.Repairs.Latch = FixAsOld
			}
			d.add(quorum.RuleEarlyRelease, VerdictAllowed, learnerRelease(r, s)...)
		default:
			d.holdHook(r, quorum.RuleEarlyRelease, earlyRelease(r, quorum.RuleEarlyRelease, s, is, why))
		}
	case ClassPerson:
		admitEscape(d, r, s)
	}
}

func earlyRelease(r *Request, rule quorum.Rule, s *quorum.Snapshot, is quorum.Hosting, why string) []string {
	lines := []string{fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s:", rule, r.holder(), r.name())}
	if is == quorum.HostingMember {
		lines[0] += " etcd still lists " + hosted(s, r.Old) + " on it."
		return append(lines, "Remove the member from etcd first; the hook may go then.")
	}
	lines[0] += " whether it still hosts an etcd member is not known."
	if s == nil {
		return append(lines, reasonLine(why), "The hook may go once that is known. Try again; if it stays so, look into Holdfast's log.")
	}
	if m := s.Machine(r.Old.Name); m != nil && quorum.NewJoin(s).WhyHeldAfterRestore(m) != "" {
		return append(lines, reasonLine(why))
	}
	return append(lines, reasonLine(why), "The hook may go once that is known.", untilKnown(s, "See how etcd is: etcdctl endpoint status --cluster"))
}

// learnerRelease says that a learner, which is no part of quorum, holds its Machine no longer than etcd needs.
func learnerRelease(r *Request, s *quorum.Snapshot) []string {
	return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts etcd learner %s, which has no vote, so its hook may go. Holdfast takes latch %s off once etcd can do without it.", quorum.RuleEarlyRelease, r.name(), hosted(s, r.Old), quorum.LatchName)}
}

func automationRelease(r *Request) []string {
	then := "You need to do nothing: the hook is released once a replacement votes. A manifest without it is fine."
	if !r.Old.ControlPlane() {
		then = "It has no control-plane label, so nobody replaces it. A person lets it go, by taking that hook off: " + r.kubectl("edit", "")
	}
	return []string{
		fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s, which is being deleted: it holds the Machine until etcd has a replacement.", quorum.RuleAutomationRelease, r.holder(), r.name()),
		fmt.Sprintf("%s is automation; a tool does not release the hook, only a person does, by hand.", quorum.Clip(r.User.Name, 140)),
		then,
	}
}

// webhookRelease says that it was not the person who took the hook off.
func webhookRelease(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s, which is being deleted: a mutating webhook took it off, not you.", quorum.RuleAutomationRelease, r.holder(), r.name()),
		"See which webhooks change Machines: kubectl get mutatingwebhookconfigurations",
		fmt.Sprintf("To let the Machine go, take the hook off yourself: kubectl holdfast release %s", r.name()),
	}
}
