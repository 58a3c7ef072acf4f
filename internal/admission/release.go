package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitRelease are the rules about who may let a deleting Machine go.
func (d *deciding) admitRelease() {
	if d.class == ClassPerson && d.ByWebhook {
		d.holdHook(quorum.RuleAutomationRelease, webhookRelease(d.Request))
		return
	}
	switch d.class {
	case ClassAutomation:
		d.holdHook(quorum.RuleAutomationRelease, automationRelease(d.Request))
	case ClassCustodian:
		switch is, why := d.hosting(); {
		case is == quorum.HostingNothing:
			d.dropLatch()
		case d.Old.Hook == quorum.EntryAbsent && d.s != nil && d.s.Ledger.Has(d.Old.UID) && d.join.MayRelease(d.machine):
			d.admitFinal()
		case is == quorum.HostingMember && d.s.Mode == quorum.ModeGuard && d.Old.Hook == quorum.EntryOurs && d.New.Hook == quorum.EntryAbsent && d.Old.Latch == quorum.EntryOurs && d.join.Voter(d.machine) == nil:
			if d.New.Latch != d.Old.Latch {
				d.Repairs.Latch = FixAsOld
			}
			d.add(quorum.RuleEarlyRelease, VerdictAllowed, d.learnerRelease()...)
		default:
			d.holdHook(quorum.RuleEarlyRelease, d.earlyRelease(quorum.RuleEarlyRelease, is, why))
		}
	case ClassPerson:
		d.admitEscape()
	}
}

func (d *deciding) earlyRelease(rule quorum.Rule, is quorum.Hosting, why string) []string {
	lines := []string{fmt.Sprintf("Holdfast (%s) put hook %s back on Machine %s:", rule, d.holder(), d.name())}
	if is == quorum.HostingMember {
		lines[0] += " etcd still lists " + d.hosted() + " on it."
		return append(lines, "Remove the member from etcd first; the hook may go then.")
	}
	lines[0] += " whether it still hosts an etcd member is not known."
	if d.s == nil {
		return append(lines, reasonLine(why), "The hook may go once that is known. Try again; if it stays so, look into Holdfast's log.")
	}
	if d.join.WhyHeldAfterRestore(d.machine) != "" {
		return append(lines, reasonLine(why))
	}
	return append(lines, reasonLine(why), "The hook may go once that is known.", d.untilKnown("See how etcd is: etcdctl endpoint status --cluster"))
}

// learnerRelease says that a learner, which is no part of quorum, holds its Machine no longer than etcd needs.
func (d *deciding) learnerRelease() []string {
	return []string{fmt.Sprintf("Holdfast (%s): Machine %s hosts etcd learner %s, which has no vote, so its hook may go. Holdfast takes latch %s off once etcd can do without it.", quorum.RuleEarlyRelease, d.name(), d.hosted(), quorum.LatchName)}
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
