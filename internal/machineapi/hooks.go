package machineapi

import (
	"fmt"
	"slices"
	"strings"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/utils/ptr"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// kind is one of the two entries that the guard keeps.
type kind uint8

const (
	kindHook  kind = 1 + iota // in preDrain
	kindLatch                 // in preTerminate
)

// ours is the entry as it has to be.
func (k kind) ours() machinev1beta1.LifecycleHook {
	if k == kindHook {
		return machinev1beta1.LifecycleHook{Name: quorum.HookName, Owner: quorum.HookOwner}
	}
	return machinev1beta1.LifecycleHook{Name: quorum.LatchName, Owner: quorum.LatchOwner}
}

// in is the list that the entry belongs to.
func (k kind) in(m *machinev1beta1.Machine) *[]machinev1beta1.LifecycleHook {
	if k == kindHook {
		return &m.Spec.LifecycleHooks.PreDrain
	}
	return &m.Spec.LifecycleHooks.PreTerminate
}

// list is the JSON name of that list.
func (k kind) list() string {
	if k == kindHook {
		return "preDrain"
	}
	return "preTerminate"
}

func (k kind) named(h machinev1beta1.LifecycleHook) bool { return h.Name == k.ours().Name }

func (k kind) entry(m *machinev1beta1.Machine) quorum.Entry {
	entries := *k.in(m)
	switch {
	case slices.Contains(entries, k.ours()):
		return quorum.EntryOurs
	case slices.ContainsFunc(entries, k.named):
		return quorum.EntryForeign
	}
	return quorum.EntryAbsent
}

// Put puts hook, latch and evidence on a Machine, each if asked for (evidence if it is not nil). An
// entry of that name with another owner is replaced where it stands. The caller writes the Machine
// with optimistic locking, because the lists are written whole.
func Put(m *machinev1beta1.Machine, withHook, withLatch bool, e *quorum.Evidence) {
	for _, k := range asked(withHook, withLatch) {
		entries := k.in(m)
		if i := slices.IndexFunc(*entries, k.named); i >= 0 {
			(*entries)[i] = k.ours()
		} else {
			*entries = append(*entries, k.ours())
		}
	}
	if e != nil {
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[quorum.EvidenceAnnotation] = FormatEvidence(*e)
	}
}

// Release takes hook and latch off a Machine, each if asked for, whoever owns the entry. Evidence
// stays: it goes with the Machine.
func Release(m *machinev1beta1.Machine, withHook, withLatch bool) {
	for _, k := range asked(withHook, withLatch) {
		entries := k.in(m)
		*entries = slices.DeleteFunc(*entries, k.named)
	}
}

func asked(withHook, withLatch bool) (kinds []kind) {
	if withHook {
		kinds = append(kinds, kindHook)
	}
	if withLatch {
		kinds = append(kinds, kindLatch)
	}
	return kinds
}

// Repair is the patch that makes the new object of a request, next, acceptable. old is the object before
// (nil for a CREATE), stamp what an override is stamped with.
//
// It changes one list element or annotation at a time, so that whatever else the request does
// stands, and gives an entry back its place, so that a tool that applies its own list again and
// again writes what is stored already: the API server then writes nothing, and wakes no watch. What
// is right already is not touched: no operations means that nothing is left to repair.
func Repair(old, next *Object, repairs admission.Repairs, stamp string) []jsonpatch.Operation {
	p := patch{old: &machinev1beta1.Machine{}, next: &next.Machine, spec: next.spec, hooks: next.hooks, annotations: next.Annotations != nil}
	if old != nil {
		p.old = &old.Machine
	}
	p.entry(kindHook, repairs.Hook)
	p.entry(kindLatch, repairs.Latch)
	p.finalizer(repairs.Finalizer)
	p.annotation(quorum.EvidenceAnnotation, repairs.Evidence, "")
	p.annotation(quorum.OverrideAnnotation, repairs.Override, "")
	p.annotation(quorum.OverrideByAnnotation, repairs.OverrideBy, stamp)
	for i, fix := range repairs.Instance {
		p.annotation(quorum.InstanceAnnotations[i].Key, fix, "")
	}
	p.providerID(repairs.ProviderID)
	return p.ops
}

// patch collects operations, and keeps track of which parents exist as they are applied: JSON Patch
// adds nothing below what is not there.
type patch struct {
	old, next *machinev1beta1.Machine
	// what there is
	spec, hooks, annotations bool
	ops                      []jsonpatch.Operation
}

func (p *patch) op(operation, path string, value any) {
	p.ops = append(p.ops, jsonpatch.NewOperation(operation, path, value))
}

// finalizer adds the machine controller's; nothing else is ever done about it.
func (p *patch) finalizer(fix admission.Fix) {
	switch {
	case fix != admission.FixPut || slices.Contains(p.next.Finalizers, quorum.Finalizer):
	case p.next.Finalizers == nil:
		p.op("add", "/metadata/finalizers", []string{quorum.Finalizer})
	default:
		p.op("add", "/metadata/finalizers/-", quorum.Finalizer)
	}
}

// providerID puts the provider ID back.
func (p *patch) providerID(fix admission.Fix) {
	was := ptr.Deref(p.old.Spec.ProviderID, "")
	if fix != admission.FixAsOld || was == ptr.Deref(p.next.Spec.ProviderID, "") {
		return
	}
	p.inSpec()
	p.op("add", "/spec/providerID", was)
}

// inSpec makes sure that the object has a spec.
func (p *patch) inSpec() {
	if !p.spec {
		p.op("add", "/spec", map[string]any{})
		p.spec = true
	}
}

// entry repairs one entry of a hook list.
func (p *patch) entry(k kind, fix admission.Fix) {
	entries := *k.in(p.next)
	before := *k.in(p.old)
	at := slices.IndexFunc(entries, k.named)
	var want machinev1beta1.LifecycleHook
	put := false
	switch fix {
	case admission.FixNone:
		return
	case admission.FixPut:
		want, put = k.ours(), true
	case admission.FixAsOld:
		if i := slices.IndexFunc(before, k.named); i >= 0 {
			want, put = before[i], true
		}
	case admission.FixDrop:
	}
	path := "/spec/lifecycleHooks/" + k.list()
	if !put {
		p.drop(k, path, entries)
		return
	}
	rest := slices.DeleteFunc(slices.Clone(entries), k.named)
	to := len(rest)
	switch {
	case fix == admission.FixAsOld:
		to = place(k, before, rest)
	case at >= 0:
		to = at
	}
	if at == to && len(rest) == len(entries)-1 {
		if entries[at] != want {
			p.op("replace", fmt.Sprintf("%s/%d", path, at), want)
		}
		return
	}
	p.remove(k, path, entries)
	if entries != nil {
		p.op("add", fmt.Sprintf("%s/%d", path, to), want)
		return
	}
	p.inHooks()
	p.op("add", path, []machinev1beta1.LifecycleHook{want})
}

// place is the index in rest at which the entry stands as it does in before: in front of the first
// that follows it there and is still here, else at the end.
func place(k kind, before, rest []machinev1beta1.LifecycleHook) int {
	after := before[slices.IndexFunc(before, k.named)+1:]
	for _, follower := range after {
		if i := slices.IndexFunc(rest, func(h machinev1beta1.LifecycleHook) bool { return h.Name == follower.Name }); i >= 0 {
			return i
		}
	}
	return len(rest)
}

// drop removes the entry, and with its last entry a list that the old object did not have either: an
// empty one instead of none would be a change.
func (p *patch) drop(k kind, path string, entries []machinev1beta1.LifecycleHook) {
	if slices.ContainsFunc(entries, k.named) && !slices.ContainsFunc(entries, func(h machinev1beta1.LifecycleHook) bool { return !k.named(h) }) &&
		*k.in(p.old) == nil {
		p.op("remove", path, nil)
		return
	}
	p.remove(k, path, entries)
}

// remove removes every entry of that name, the last first, because each shifts those behind it.
func (p *patch) remove(k kind, path string, entries []machinev1beta1.LifecycleHook) {
	for i, h := range slices.Backward(entries) {
		if k.named(h) {
			p.op("remove", fmt.Sprintf("%s/%d", path, i), nil)
		}
	}
}

// inHooks makes sure that what holds the hook lists exists.
func (p *patch) inHooks() {
	p.inSpec()
	if !p.hooks {
		p.op("add", "/spec/lifecycleHooks", map[string]any{})
		p.hooks = true
	}
}

// annotation repairs one annotation; written is the value that Holdfast writes, if it should be there.
func (p *patch) annotation(key string, fix admission.Fix, written string) {
	want, put := "", false
	switch fix {
	case admission.FixNone:
		return
	case admission.FixAsOld:
		want, put = p.old.Annotations[key]
	case admission.FixPut:
		want, put = written, true
	case admission.FixDrop:
	}
	path := "/metadata/annotations/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
	is, there := p.next.Annotations[key]
	switch {
	case put && there && is == want:
	case put && !p.annotations:
		p.annotations = true
		p.op("add", "/metadata/annotations", map[string]string{key: want})
	case put:
		p.op("add", path, want) // replaces what is there
	case !put && there:
		p.op("remove", path, nil)
	}
}
