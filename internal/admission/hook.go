package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitHook are the rules about hook and latch.
func (d *deciding) admitHook() {
	switch {
	case d.Old.Deleting():
		d.admitHookDeleting()
	case d.Old.Hook == quorum.EntryOurs && d.New.Hook != quorum.EntryOurs:
		if d.class == ClassCustodian && d.New.Hook == quorum.EntryAbsent {
			is, why := d.hosting()
			if is == quorum.HostingNothing {
				d.pairLatch()
				return
			}
			d.holdHook(quorum.RuleKeepHook, d.earlyRelease(quorum.RuleKeepHook, is, why))
		} else {
			d.holdHook(quorum.RuleKeepHook, keepHookLive(d.Request))
		}
		if d.Old.Latch != quorum.EntryOurs {
			d.Repairs.Latch = FixPut // the hook stays, so add the missing latch
		}
	case d.New.Hook == quorum.EntryOurs && d.Old.Latch == quorum.EntryOurs && d.New.Latch != quorum.EntryOurs:
		d.Repairs.Latch = FixAsOld
		d.add(quorum.RuleKeepHook, VerdictRepaired, keepLatch(d.Request)...)
	default:
		d.pairLatch()
	}
}

// admitHookDeleting are the rules about hook and latch of a deleting Machine.
func (d *deciding) admitHookDeleting() {
	gainsHook := d.Old.Hook != quorum.EntryOurs && d.New.Hook == quorum.EntryOurs
	gainsLatch := d.Old.Latch != quorum.EntryOurs && d.New.Latch == quorum.EntryOurs
	if gainsHook || gainsLatch {
		if gainsHook {
			d.Repairs.Hook = FixAsOld
		}
		if gainsLatch {
			d.Repairs.Latch = FixAsOld
		}
		d.add(quorum.RuleNoRegain, VerdictRepaired, noRegain(d.Request)...)
	}
	switch {
	case d.Drops():
		d.admitRelease()
	case d.Old.Hook != quorum.EntryOurs: // and the request removes no latch
	case d.New.Hook == quorum.EntryForeign:
		d.holdHook(quorum.RuleKeepHook, keepOwner(d.Request))
	case d.Old.Latch == quorum.EntryOurs && d.New.Latch != quorum.EntryOurs:
		d.Repairs.Latch = FixAsOld
		d.add(quorum.RuleKeepHook, VerdictRepaired, keepLatch(d.Request)...)
	}
}

// pairLatch makes the latch follow the hook of a live Machine.
func (d *deciding) pairLatch() {
	switch hook, latch := d.New.Hook, d.New.Latch; {
	case hook == quorum.EntryOurs && latch != quorum.EntryOurs:
		d.Repairs.Latch = FixPut
	case hook != quorum.EntryOurs && latch == quorum.EntryOurs:
		d.Repairs.Latch = FixDrop
	}
}

// holdHook puts hook and latch back as they were.
func (d *deciding) holdHook(rule quorum.Rule, lines []string) {
	if d.New.Hook != d.Old.Hook {
		d.Repairs.Hook = FixAsOld
	}
	if d.New.Latch != d.Old.Latch {
		d.Repairs.Latch = FixAsOld
	}
	d.add(rule, VerdictRepaired, lines...)
}

// dropLatch removes the latch together with a released hook.
func (d *deciding) dropLatch() {
	if d.New.Latch == quorum.EntryOurs {
		d.Repairs.Latch = FixDrop
	}
}

func keepHookLive(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put the preDrain hook %s back on Machine %s: it holds a later deletion until etcd has a replacement.", quorum.RuleKeepHook, quorum.HookName, r.name()),
		fmt.Sprintf("A manifest without it is fine. To replace the Machine, delete it: %s", r.kubectl("delete", "")),
	}
}

func keepLatch(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put latch %s back on Machine %s: it stays as long as hook %s stays.", quorum.RuleKeepHook, quorum.LatchName, r.name(), quorum.HookName),
	}
}

func keepOwner(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) put the owner of hook %s on Machine %s back to %s.", quorum.RuleKeepHook, quorum.HookName, r.name(), quorum.HookOwner),
		"To release the Machine by hand, remove the entry instead of changing it.",
	}
}

func noRegain(r *Request) []string {
	return []string{
		fmt.Sprintf("Holdfast (%s) reverted the added hook: Machine %s is being deleted, and a deleting Machine never gains a hook.", quorum.RuleNoRegain, r.name()),
		"If this comes from a manifest, remove the Machine from it: its deletion cannot be taken back.",
	}
}
