package admission

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// admitHook are the rules about hook and latch.
func admitHook(d *Decision, r *Request, s *quorum.Snapshot, class Class) {
	switch {
	case r.Old.Deleting():
		admitHookDeleting(d, r, s, class)
	case r.Old.Hook == quorum.EntryOurs && r.New.Hook != quorum.EntryOurs:
		if class == ClassCustodian && r.New.Hook == quorum.EntryAbsent {
			is, why := r.hosting(s)
			if is == quorum.HostingNothing {
				d.pairLatch(r.New.Hook, r.New.Latch)
				return
			}
			d.holdHook(r, quorum.RuleKeepHook, earlyRelease(r, quorum.RuleKeepHook, s, is, why))
		} else {
			d.holdHook(r, quorum.RuleKeepHook, keepHookLive(r))
		}
		if r.Old.Latch != quorum.EntryOurs {
			d.Repairs.Latch = FixPut // the hook stays, so add the missing latch
		}
	case r.New.Hook == quorum.EntryOurs && r.Old.Latch == quorum.EntryOurs && r.New.Latch != quorum.EntryOurs:
		d.Repairs.Latch = FixAsOld
		d.add(quorum.RuleKeepHook, VerdictRepaired, keepLatch(r)...)
	default:
		d.pairLatch(r.New.Hook, r.New.Latch)
	}
}

// admitHookDeleting are the rules about hook and latch of a deleting Machine.
func admitHookDeleting(d *Decision, r *Request, s *quorum.Snapshot, class Class) {
	gainsHook := r.Old.Hook != quorum.EntryOurs && r.New.Hook == quorum.EntryOurs
	gainsLatch := r.Old.Latch != quorum.EntryOurs && r.New.Latch == quorum.EntryOurs
	if gainsHook || gainsLatch {
		if gainsHook {
			d.Repairs.Hook = FixAsOld
		}
		if gainsLatch {
			d.Repairs.Latch = FixAsOld
		}
		d.add(quorum.RuleNoRegain, VerdictRepaired, noRegain(r)...)
	}
	switch {
	case r.Drops():
		admitRelease(d, r, s, class)
	case r.Old.Hook != quorum.EntryOurs: // and the request removes no latch
	case r.New.Hook == quorum.EntryForeign:
		d.holdHook(r, quorum.RuleKeepHook, keepOwner(r))
	case r.Old.Latch == quorum.EntryOurs && r.New.Latch != quorum.EntryOurs:
		d.Repairs.Latch = FixAsOld
		d.add(quorum.RuleKeepHook, VerdictRepaired, keepLatch(r)...)
	}
}

// pairLatch makes the latch follow the hook of a live Machine.
func (d *Decision) pairLatch(hook, latch quorum.Entry) {
	switch {
	case hook == quorum.EntryOurs && latch != quorum.EntryOurs:
		d.Repairs.Latch = FixPut
	case hook != quorum.EntryOurs && latch == quorum.EntryOurs:
		d.Repairs.Latch = FixDrop
	}
}

// holdHook puts hook and latch back as they were.
func (d *Decision) holdHook(r *Request, rule quorum.Rule, lines []string) {
	if r.New.Hook != r.Old.Hook {
		d.Repairs.Hook = FixAsOld
	}
	if r.New.Latch != r.Old.Latch {
		d.Repairs.Latch = FixAsOld
	}
	d.add(rule, VerdictRepaired, lines...)
}

// dropLatch removes the latch together with a released hook.
func (d *Decision) dropLatch(r *Request) {
	if r.New.Latch == quorum.EntryOurs {
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
