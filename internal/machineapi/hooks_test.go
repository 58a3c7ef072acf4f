package machineapi_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

func TestPutAndRelease(t *testing.T) {
	m := full()
	m.Spec.LifecycleHooks.PreDrain[1].Owner = "somebody"
	m.Annotations = nil
	machineapi.Put(m, true, true, &quorum.Evidence{MachineUID: "u-1", MemberIDs: []quorum.MemberID{1}})
	if got := machineapi.Machine(m); got.Hook != quorum.EntryOurs || got.Latch != quorum.EntryOurs || !got.OwnEvidence().Names(1) {
		t.Errorf("%+v", got)
	}
	if hooks := m.Spec.LifecycleHooks; len(hooks.PreDrain) != 2 || hooks.PreDrain[1].Owner != quorum.HookOwner || len(hooks.PreTerminate) != 1 {
		t.Errorf("a foreign owner was not replaced in place: %v", hooks)
	}
	machineapi.Put(m, true, true, nil)
	if hooks := m.Spec.LifecycleHooks; len(hooks.PreDrain) != 2 || len(hooks.PreTerminate) != 1 {
		t.Errorf("putting twice: %v", hooks)
	}
	machineapi.Release(m, false, true)
	if got := machineapi.Machine(m); got.Hook != quorum.EntryOurs || got.Latch != quorum.EntryAbsent {
		t.Errorf("%+v", got)
	}
	m.Spec.LifecycleHooks.PreDrain[1].Owner = "somebody"
	machineapi.Release(m, true, false)
	if got := machineapi.Machine(m); got.Hook != quorum.EntryAbsent || len(m.Spec.LifecycleHooks.PreDrain) != 1 || got.EvidenceRaw == "" {
		t.Errorf("%+v", got)
	}
	var bare machinev1beta1.Machine
	machineapi.Put(&bare, true, false, nil)
	machineapi.Release(&bare, true, true)
	if got := machineapi.Machine(&bare); got.Hook != quorum.EntryAbsent {
		t.Errorf("%+v", got)
	}
}

// repair applies the patch of Repair to next as JSON.
func repair(t *testing.T, old, next string, repairs admission.Repairs) string {
	t.Helper()
	var before *machineapi.Object
	if old != "" {
		before = decode(t, old)
	}
	return patch(t, before, next, repairs)
}

func patch(t *testing.T, old *machineapi.Object, next string, repairs admission.Repairs) string {
	t.Helper()
	ops := machineapi.Repair(old, decode(t, next), repairs, `al"ice`)
	if len(ops) == 0 {
		return next
	}
	body, err := json.Marshal(ops)
	if err != nil {
		t.Fatal(err)
	}
	applied, err := jsonpatch.DecodePatch(body)
	if err != nil {
		t.Fatal(err)
	}
	out, err := applied.Apply([]byte(next))
	if err != nil {
		t.Fatalf("%s does not apply to %s: %v", body, next, err)
	}
	again := machineapi.Repair(old, decode(t, string(out)), repairs, `al"ice`)
	if len(again) != 0 {
		t.Errorf("the repaired object is to be repaired again: %v", again)
	}
	return string(out)
}

func decode(t *testing.T, raw string) *machineapi.Object {
	t.Helper()
	m, err := machineapi.Decode([]byte(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return m
}

func sameJSON(t *testing.T, want, got string) {
	t.Helper()
	var a, b any
	if err := json.Unmarshal([]byte(want), &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(got), &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// drain and terminate are Machines with these entries; H is the hook, L the latch, x a foreign hook.
func lists(drain, terminate string) string {
	entries := func(letters string) string {
		var out []string
		for _, c := range letters {
			switch c {
			case 'H':
				out = append(out, `{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}`)
			case 'x':
				out = append(out, `{"name":"EtcdQuorumOperator","owner":"somebody"}`)
			case 'L':
				out = append(out, `{"name":"EtcdQuorumLatch","owner":"holdfast"}`)
			case 'y':
				out = append(out, `{"name":"EtcdQuorumLatch","owner":"somebody"}`)
			default:
				out = append(out, `{"name":"`+string(c)+`","owner":"o"}`)
			}
		}
		return "[" + strings.Join(out, ",") + "]"
	}
	var keys []string
	if drain != "-" {
		keys = append(keys, `"preDrain":`+entries(drain))
	}
	if terminate != "-" {
		keys = append(keys, `"preTerminate":`+entries(terminate))
	}
	return `{"spec":{"unknown":{"kept":1},"lifecycleHooks":{` + strings.Join(keys, ",") + `}}}`
}

func TestRepairLists(t *testing.T) {
	asOld := admission.Repairs{Hook: admission.FixAsOld, Latch: admission.FixAsOld}
	for _, c := range []struct {
		name                 string
		oldDrain, oldLatch   string // "-" for no list
		nextDrain, nextLatch string
		repairs              admission.Repairs
		wantDrain, wantLatch string
	}{
		{"both lists are gone", "H", "L", "-", "-", asOld, "H", "L"},
		{"both are empty", "H", "L", "", "", asOld, "H", "L"},
		{"first of several", "Hab", "L", "ab", "L", asOld, "Hab", "L"},
		{"in the middle", "aHb", "Lc", "ab", "c", asOld, "aHb", "Lc"},
		{"last", "abH", "cL", "ab", "c", asOld, "abH", "cL"},
		{"its follower is gone", "aHbc", "L", "ac", "L", asOld, "aHc", "L"},
		{"all followers are gone", "aHb", "L", "a", "L", asOld, "aH", "L"},
		{"a new entry", "aHb", "L", "anb", "L", asOld, "anHb", "L"},
		{"another owner, in place", "aHb", "L", "axb", "L", asOld, "aHb", "L"},
		{"another owner, elsewhere", "aHb", "L", "xab", "y", asOld, "aHb", "L"},
		{"twice", "aHb", "L", "xaHbx", "L", asOld, "aHb", "L"},
		{"regained, old has no list", "-", "-", "H", "L", asOld, "-", "-"},
		{"regained, old has empty lists", "", "", "H", "L", asOld, "", ""},
		{"regained beside others", "ab", "-", "aHb", "-", asOld, "ab", "-"},
		{"regained over a foreign owner", "xa", "-", "Ha", "-", asOld, "xa", "-"},
		{"the latch is put", "H", "-", "H", "-", admission.Repairs{Latch: admission.FixPut}, "H", "L"},
		{"the latch is put at the end", "H", "-", "H", "ab", admission.Repairs{Latch: admission.FixPut}, "H", "abL"},
		{"the latch is put over a foreign owner", "H", "-", "H", "ayb", admission.Repairs{Latch: admission.FixPut}, "H", "aLb"},
		{"the latch is there", "H", "-", "H", "aL", admission.Repairs{Latch: admission.FixPut}, "H", "aL"},
		{"the latch is dropped", "H", "aLb", "-", "aLb", admission.Repairs{Latch: admission.FixDrop}, "-", "ab"},
		{"the latch is dropped twice", "H", "L", "-", "LaLb", admission.Repairs{Latch: admission.FixDrop}, "-", "ab"},
		{"the latch is gone", "H", "L", "-", "a", admission.Repairs{Latch: admission.FixDrop}, "-", "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := repair(t, lists(c.oldDrain, c.oldLatch), lists(c.nextDrain, c.nextLatch), c.repairs)
			sameJSON(t, lists(c.wantDrain, c.wantLatch), got)
		})
	}
}

func TestRepairParents(t *testing.T) {
	const old = `{"metadata":{"annotations":{"holdfast.dev/etcd-member":"e/~1"}},"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`
	repairs := admission.Repairs{Hook: admission.FixAsOld, Evidence: admission.FixAsOld, OverrideBy: admission.FixPut}
	const want = `{"metadata":{"annotations":{"holdfast.dev/etcd-member":"e/~1","holdfast.dev/override-by":"al\"ice"}},
		"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator","owner":"clusteroperator/etcd"}]}}}`
	for _, next := range []string{
		`{"metadata":{}}`,
		`{"metadata":{"annotations":null},"spec":{}}`,
		`{"metadata":{"annotations":{}},"spec":{"lifecycleHooks":null}}`,
		`{"metadata":{"annotations":{"holdfast.dev/etcd-member":""}},"spec":{"lifecycleHooks":{}}}`,
		`{"metadata":{"annotations":{"holdfast.dev/override-by":"bob"}},"spec":{"lifecycleHooks":{"preDrain":null}}}`,
	} {
		sameJSON(t, want, repair(t, old, next, repairs))
	}
}

func TestRepairAnnotations(t *testing.T) {
	const copied = `{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{}","holdfast.dev/override":"a","holdfast.dev/override-by":"b","k/ept~":"1"}},"spec":{}}`
	dropped := admission.Repairs{Evidence: admission.FixDrop, Override: admission.FixDrop, OverrideBy: admission.FixDrop}
	sameJSON(t, `{"metadata":{"annotations":{"k/ept~":"1"}},"spec":{}}`, repair(t, "", copied, dropped))
	sameJSON(t, `{"metadata":{"annotations":{"k/ept~":"1"}},"spec":{}}`, repair(t, `{}`, copied, admission.Repairs{Evidence: admission.FixAsOld, Override: admission.FixAsOld, OverrideBy: admission.FixAsOld}))
	sameJSON(t, copied, repair(t, "", copied, admission.Repairs{}))
	sameJSON(t, `{"metadata":{}}`, repair(t, "", `{"metadata":{}}`, dropped))
	const hosted = `{"metadata":{"annotations":{"metal3.io/BareMetalHost":"a/b","openstack-resourceId":"c"}}}`
	sameJSON(t, hosted, repair(t, hosted, `{"metadata":{"annotations":{"openstack-resourceId":"d"}}}`, admission.Repairs{Instance: [...]admission.Fix{admission.FixAsOld, admission.FixAsOld}}))
}

// FuzzRepair takes any two Machines as JSON, and any repairs: reading them never panics, the patch
// applies, what it demands is so afterwards, and everything else is as it was.
func FuzzRepair(f *testing.F) {
	f.Add(lists("aHb", "L"), lists("ab", "-"), uint16(0b0101))
	f.Add(lists("-", "-"), lists("aHb", "L"), uint16(0b0101))
	f.Add(`{"metadata":{"annotations":{"holdfast.dev/etcd-member":"{\"machineUID\":\"u\"}"}}}`, `{"metadata":{"annotations":null},"spec":null}`, uint16(0b01_01_01_01_01))
	f.Add(`{}`, `{"spec":{"lifecycleHooks":{"preDrain":[{"name":"EtcdQuorumOperator"},{}]},"more":[1]},"status":{"providerStatus":{"instanceId":1},"addresses":[{"type":"InternalIP","address":"::1%eth0"}]}}`, uint16(0b10_10_10_11_11))
	f.Fuzz(func(t *testing.T, old, next string, bits uint16) {
		old, next = canonical(old), canonical(next)
		before, err := machineapi.Decode([]byte(old))
		if err != nil {
			return // admission refuses it, and there is nothing to repair
		}
		after, err := machineapi.Decode([]byte(next))
		if err != nil {
			return
		}
		machineapi.Machine(&before.Machine)
		machineapi.Machine(&after.Machine)
		fix := func(shift int) admission.Fix { return admission.Fix(bits >> shift & 3) }
		repairs := admission.Repairs{Hook: fix(0), Latch: fix(2), Evidence: fix(4) % admission.FixPut, Override: fix(6) % admission.FixPut, OverrideBy: fix(8)}

		out := patch(t, before, next, repairs)
		got := decode(t, out)
		for _, c := range []struct {
			old, next, got []machinev1beta1.LifecycleHook
			ours           machinev1beta1.LifecycleHook
			fix            admission.Fix
		}{
			{before.Spec.LifecycleHooks.PreDrain, after.Spec.LifecycleHooks.PreDrain, got.Spec.LifecycleHooks.PreDrain, machinev1beta1.LifecycleHook{Name: quorum.HookName, Owner: quorum.HookOwner}, repairs.Hook},
			{before.Spec.LifecycleHooks.PreTerminate, after.Spec.LifecycleHooks.PreTerminate, got.Spec.LifecycleHooks.PreTerminate, machinev1beta1.LifecycleHook{Name: quorum.LatchName, Owner: quorum.LatchOwner}, repairs.Latch},
		} {
			named := func(all []machinev1beta1.LifecycleHook) (out []machinev1beta1.LifecycleHook) {
				for _, h := range all {
					if h.Name == c.ours.Name {
						out = append(out, h)
					}
				}
				return out
			}
			want := named(c.next)
			switch c.fix {
			case admission.FixAsOld: // of several in a list that the API server would not take, the first
				want = named(c.old)
				want = want[:min(1, len(want))]
			case admission.FixDrop:
				want = nil
			case admission.FixPut:
				want = []machinev1beta1.LifecycleHook{c.ours}
			}
			if !slices.Equal(want, named(c.got)) {
				t.Errorf("%s is %v, want %v", c.ours.Name, named(c.got), want)
			}
		}
		for key, fix := range map[string]admission.Fix{
			quorum.EvidenceAnnotation: repairs.Evidence, quorum.OverrideAnnotation: repairs.Override, quorum.OverrideByAnnotation: repairs.OverrideBy,
		} {
			want := map[admission.Fix]string{
				admission.FixNone: after.Annotations[key], admission.FixAsOld: before.Annotations[key], admission.FixPut: `al"ice`,
			}[fix]
			if got.Annotations[key] != want {
				t.Errorf("%s is %q, want %q", key, got.Annotations[key], want)
			}
		}
		sameJSON(t, others(t, next), others(t, out))
	})
}

// canonical is a document as the API server hands it out: with metadata, and without the doubled keys
// that two decoders read in two ways.
func canonical(doc string) string {
	var v map[string]any
	if json.Unmarshal([]byte(doc), &v) != nil || v == nil {
		return ""
	}
	if v["metadata"] == nil {
		v["metadata"] = map[string]any{}
	}
	out, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(out)
}

// others is all of a Machine that is not the guard's, with what is empty left out.
func others(t *testing.T, doc string) string {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal([]byte(doc), &root); err != nil {
		t.Fatal(err)
	}
	prune := func(of map[string]any, key string, ours func(map[string]any)) {
		child, _ := of[key].(map[string]any)
		if ours(child); len(child) == 0 {
			delete(of, key)
		}
	}
	list := func(of map[string]any, key, name string) {
		entries, _ := of[key].([]any)
		entries = slices.DeleteFunc(entries, func(e any) bool {
			entry, _ := e.(map[string]any)
			return entry["name"] == name
		})
		if of[key] = entries; len(entries) == 0 {
			delete(of, key)
		}
	}
	prune(root, "metadata", func(metadata map[string]any) {
		prune(metadata, "annotations", func(annotations map[string]any) {
			for _, key := range []string{quorum.EvidenceAnnotation, quorum.OverrideAnnotation, quorum.OverrideByAnnotation} {
				delete(annotations, key)
			}
		})
	})
	prune(root, "spec", func(spec map[string]any) {
		prune(spec, "lifecycleHooks", func(hooks map[string]any) {
			if hooks != nil {
				list(hooks, "preDrain", quorum.HookName)
				list(hooks, "preTerminate", quorum.LatchName)
			}
		})
	})
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
