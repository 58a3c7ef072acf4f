package gitops

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/client-go/dynamic"
)

const (
	namespace = "openshift-machine-api"
	voter     = "master-0" // the sandbox's Machine

	// Syncs is how often each manifest is applied to a live Machine, and again to the deleting one.
	Syncs = 20
)

// Manifest is what Git has of a Machine.
type Manifest string

// The manifests. Hook, latch and evidence are on the Machine in all cases.
const (
	NoHooks       Manifest = "no hooks"
	OwnHook       Manifest = "a hook of its own"
	HookInGit     Manifest = "the hook copied into Git"
	LastApplied   Manifest = "hook in last-applied" // no hooks in Git; a person once applied a manifest with the hook
	OlderRevision Manifest = "an older revision"    // no hooks in Git; the tool itself synced a revision with the hook before

	// For tools that replace: what is not in Git is taken out.
	WithFinalizer Manifest = "a hook of its own, and the finalizer"
	Exported      Manifest = "a whole export" // hook, latch, evidence and finalizer among it

	// For tools that may force: what Holdfast refuses must not be made way for by a delete.
	OtherRole Manifest = "another role"

	// Of the etcd voter's Machine: all that the machine controller wrote, but instead of what Holdfast
	// keeps a hook of its own.
	Voter Manifest = "the voter's export, with a hook of its own"
)

// Manifests are those that a tool which merges is tried with.
func Manifests() []Manifest {
	return []Manifest{NoHooks, OwnHook, HookInGit, LastApplied, OlderRevision, Voter}
}

// Replaced are those that a tool which replaces is tried with: it does not remember what it did before.
func Replaced() []Manifest { return []Manifest{NoHooks, OwnHook, WithFinalizer, Exported, Voter} }

// Tool is one way to bring a manifest into the cluster.
type Tool struct {
	Name      string
	Manifests []Manifest // to try it with
	// Sync syncs once, as the tool does when it holds that the Machine has drifted, so whether it has
	// or not, unless the tool itself looks first in the midst of it.
	Sync func(context.Context, *unstructured.Unstructured) error
	// Drifted says whether the tool reports the Machine as different from its manifest.
	Drifted func(context.Context, *unstructured.Unstructured) (bool, error)
	// Drifts are the manifests for which it is known to report drift for ever, Refused those that are
	// known not to get in, and Withheld those whose own hook it is known to keep from the Machine.
	Drifts, Refused, Withheld []Manifest
}

// row is what came of one manifest on a live or on a deleting Machine.
type row struct {
	tool     string
	manifest Manifest
	machine  string
	writes   int64 // requests in Syncs syncs, dry runs not counted
	first    int   // new states by the first sync
	rest     int   // new states by the others
	bumps    int64
	refused  int
	lost     []string
	deleting bool
	own      bool // its own hook is on the Machine
	drift    bool
}

// The Machines of the rows.
const (
	live     = "live"
	deleting = "deleting"
	released = "released" // deleting, and a person has taken the hook off
)

// brake is a finalizer that keeps a released Machine from vanishing.
const brake = "holdfast.dev/test-of-gitops"

type run struct {
	cluster  *Cluster
	machines func(identity string) dynamic.ResourceInterface
	history  *history
	rows     []row
}

// Run runs the matrix for each tool: each manifest on a Machine of its own, live and then deleting.
// Those Machines have no instance, and evidence of a member that is not in etcd. The Machine of the
// one etcd voter, whose evidence Holdfast writes itself, is had by one tool after the other.
func Run(t *testing.T, c *Cluster, tools ...Tool) {
	t.Helper()
	r := &run{cluster: c, machines: func(identity string) dynamic.ResourceInterface {
		client, err := dynamic.NewForConfig(c.Config(t, identity))
		if err != nil {
			t.Fatal(err)
		}
		return client.Resource(schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}).Namespace(namespace)
	}}
	r.history = watchMachines(t, r.machines(admin))
	var voters []Tool
	for i, tool := range tools {
		for j, manifest := range tool.Manifests {
			if manifest == Voter {
				voters = append(voters, tool)
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", tool.Name, manifest), func(t *testing.T) {
				r.cell(t, []Tool{tool}, manifest, fmt.Sprintf("m-%d-%d", i, j))
			})
		}
	}
	t.Run(string(Voter), func(t *testing.T) { r.cell(t, voters, Voter, voter) })
	t.Log(table(r.rows))
}

// cell is one manifest on one Machine.
func (r *run) cell(t *testing.T, tools []Tool, manifest Manifest, name string) {
	ctx := t.Context()
	target := r.prepare(ctx, t, tools[0], manifest, name)
	for _, tool := range tools {
		r.judge(t, tool, r.sync(ctx, t, tool, manifest, target, live))
	}
	if err := r.machines(alice).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.history.wait(ctx, t, name, "deleting", phased("Deleting"))
	if manifest != Voter { // Holdfast marks it once
		r.history.wait(ctx, t, name, "marked", func(m *unstructured.Unstructured) bool {
			return m.GetAnnotations()["holdfast.dev/hosts-no-member"] != ""
		})
	}
	for _, tool := range tools {
		r.judge(t, tool, r.sync(ctx, t, tool, manifest, target, deleting))
	}
	if manifest == HookInGit {
		r.release(ctx, t, name)
		r.judge(t, tools[0], r.sync(ctx, t, tools[0], manifest, target, released))
	}
}

// release is a person's escape hatch, after which the machine controller terminates the Machine. Only
// the brake keeps it, so that there is something to sync.
func (r *run) release(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	r.history.release(name)
	r.edit(ctx, t, alice, "kubectl-edit", name, func(m *unstructured.Unstructured) {
		unstructured.RemoveNestedField(m.Object, "spec", "lifecycleHooks", "preDrain")
	})
	r.history.wait(ctx, t, name, "terminated", func(m *unstructured.Unstructured) bool {
		return slices.Equal(m.GetFinalizers(), []string{brake})
	})
}

// judge holds a row against the bar.
func (r *run) judge(t *testing.T, tool Tool, got row) {
	t.Helper()
	r.rows = append(r.rows, got)
	what := fmt.Sprintf("%s, %s Machine", got.tool, got.machine)
	if len(got.lost) > 0 {
		t.Errorf("%s: stored without %s", what, strings.Join(got.lost, "; "))
	}
	if got.machine == live && got.deleting {
		t.Errorf("%s: the tool deleted it", what)
	}
	if got.rest > 0 || got.bumps > 0 {
		t.Errorf("%s: it does not converge: after the first sync %d new resourceVersions, the generation went up by %d", what, got.rest, got.bumps)
	}
	if want := slices.Contains(tool.Refused, got.manifest); want != (got.refused == Syncs) || !want && got.refused > 0 {
		t.Errorf("%s: %d of %d syncs refused", what, got.refused, Syncs)
	}
	hasOwn := slices.Contains([]Manifest{OwnHook, WithFinalizer, Voter}, got.manifest)
	if want := hasOwn && !slices.Contains(slices.Concat(tool.Refused, tool.Withheld), got.manifest); want != got.own {
		t.Errorf("%s: its own hook is on the Machine: %v, not %v", what, got.own, want)
	}
	// What is refused is drift, or cannot even be compared. A released Machine differs from a manifest
	// with the hook, rightly, until it is gone.
	if want := slices.Contains(tool.Drifts, got.manifest); want != got.drift && got.machine != released && got.refused == 0 {
		t.Errorf("%s: the tool reports drift: %v, not %v", what, got.drift, want)
	}
}

// sync syncs many times.
func (r *run) sync(ctx context.Context, t *testing.T, tool Tool, manifest Manifest, target *unstructured.Unstructured, machine string) row {
	t.Helper()
	name := target.GetName()
	got := row{tool: tool.Name, manifest: manifest, machine: machine}
	begin, writes := r.history.now(ctx, t, name), r.cluster.writes.Load()
	var first point
	for i := range Syncs {
		err := tool.Sync(ctx, target.DeepCopy())
		for tries := 0; tries < 5 && err != nil && strings.Contains(err.Error(), "the object has been modified"); tries++ {
			err = tool.Sync(ctx, target.DeepCopy()) // the engine was late to see somebody else's write; nobody refused it
		}
		if err != nil {
			if got.refused == 0 {
				t.Logf("%s, %s Machine: sync %d was refused: %v", tool.Name, machine, i+1, err)
			}
			got.refused++
		}
		if i == 0 {
			first = r.history.now(ctx, t, name)
		}
	}
	end := r.history.now(ctx, t, name)
	got.writes = r.cluster.writes.Load() - writes
	got.first, got.rest = len(first.content)-len(begin.content), len(end.content)-len(first.content)
	for i := len(first.content); i < len(end.content) && machine != released; i++ {
		t.Logf("%s, %s Machine: after the first sync\n%s\nbecame\n%s", tool.Name, machine, end.content[i-1], end.content[i])
	}
	got.bumps = end.generation - first.generation
	got.lost, got.deleting, got.own = end.lost, end.deleting, end.own
	drift, err := tool.Drifted(ctx, target.DeepCopy())
	if err != nil && got.refused == 0 { // where syncs are refused, a comparison by dry run is as well
		t.Errorf("%s, %s Machine: comparing: %v", tool.Name, machine, err)
	}
	got.drift = drift
	return got
}

// prepare makes a Machine under guard, and what Git has of it.
func (r *run) prepare(ctx context.Context, t *testing.T, tool Tool, manifest Manifest, name string) *unstructured.Unstructured {
	t.Helper()
	if name != voter {
		if _, err := r.machines(admin).Create(ctx, machine(name), metav1.CreateOptions{FieldManager: "installer"}); err != nil {
			t.Fatal(err)
		}
		r.history.wait(ctx, t, name, "as far as it comes", phased("Failed"))
	}
	// The part of the operator that guard mode is run beside.
	r.edit(ctx, t, etcdOperator, "cluster-etcd-operator", name, func(m *unstructured.Unstructured) {
		hooks(m, hookName, hookOwner)
	})
	if name != voter {
		r.edit(ctx, t, holdfast, "holdfast", name, func(m *unstructured.Unstructured) {
			m.SetAnnotations(map[string]string{evidence: fmt.Sprintf(
				`{"machineUID":%q,"machine":%q,"memberIDs":["1234abcd"],"peerAddresses":["127.1.2.3"]}`, m.GetUID(), name)})
		})
	}
	if manifest == HookInGit {
		// Flux takes over what managers named kubectl own, and would take the brake off.
		r.edit(ctx, t, alice, "brake", name, func(m *unstructured.Unstructured) {
			m.SetFinalizers(append(m.GetFinalizers(), brake))
		})
	}
	return r.inGit(ctx, t, tool, manifest, r.history.wait(ctx, t, name, "guarded", marked))
}

// inGit is what Git has of a Machine under guard, after what the manifest says was applied before.
func (r *run) inGit(ctx context.Context, t *testing.T, tool Tool, manifest Manifest, guarded *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	bare := machine(guarded.GetName())
	own, hooked := bare.DeepCopy(), bare.DeepCopy()
	hooks(own, ownName, "platform-team")
	hooks(hooked, hookName, hookOwner)
	switch manifest {
	case NoHooks:
		return bare
	case OwnHook:
		return own
	case HookInGit:
		return hooked
	case LastApplied:
		if err := r.cluster.Kubectl(alice, "apply")(ctx, hooked); err != nil {
			t.Fatal(err)
		}
		return bare
	case OlderRevision:
		if err := tool.Sync(ctx, hooked); err != nil {
			t.Fatal(err)
		}
		return bare
	case OtherRole:
		labels := bare.GetLabels()
		labels[roleLabel] = "worker"
		bare.SetLabels(labels)
		return bare
	case WithFinalizer:
		own.SetFinalizers([]string{finalizer})
		return own
	case Exported:
		return export(guarded)
	case Voter:
		m := export(guarded)
		annotations := m.GetAnnotations()
		delete(annotations, evidence)
		m.SetAnnotations(annotations)
		unstructured.RemoveNestedField(m.Object, "spec", "lifecycleHooks")
		hooks(m, ownName, "platform-team")
		return m
	}
	t.Fatalf("no such manifest: %q", manifest)
	return nil
}

// edit patches a Machine as somebody, once more where others were quicker.
func (r *run) edit(ctx context.Context, t *testing.T, identity, manager, name string, change func(*unstructured.Unstructured)) {
	t.Helper()
	machines := r.machines(identity)
	eventually(ctx, t, "editing Machine "+name, func(ctx context.Context) error {
		m, err := machines.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		before := m.DeepCopy()
		before.SetResourceVersion("") // so that it is in the patch, which then fails where others were quicker
		change(m)
		patch, err := difference(before, m)
		if err != nil {
			t.Fatal(err)
		}
		_, err = machines.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		return err
	})
}

// machine is a Machine's manifest without hooks. But for the voter's it lacks what would give it an
// instance, so that it goes to phase Failed, in which the machine controller leaves a live one alone.
func machine(name string) *unstructured.Unstructured {
	value := map[string]any{"apiVersion": "process.holdfast.dev/v1", "kind": "ProcessMachineProviderSpec"}
	if name == voter {
		value["instanceType"] = "m5.large"
	}
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1",
		"kind":       "Machine",
		"spec":       map[string]any{"providerSpec": map[string]any{"value": value}},
	}}
	m.SetName(name)
	m.SetNamespace(namespace)
	m.SetLabels(map[string]string{
		"machine.openshift.io/cluster-api-cluster": "sandbox",
		roleLabel: "master",
		"machine.openshift.io/cluster-api-machine-type": "master",
	})
	return m
}

// hooks makes one entry the whole preDrain list.
func hooks(m *unstructured.Unstructured, name, owner string) {
	list := []any{map[string]any{"name": name, "owner": owner}}
	if err := unstructured.SetNestedSlice(m.Object, list, "spec", "lifecycleHooks", "preDrain"); err != nil {
		panic(err) // of the two ways of building m neither has a spec that is no object
	}
}

// export is what people put into Git when they are told to export first: all but the fields that the
// API server owns.
func export(guarded *unstructured.Unstructured) *unstructured.Unstructured {
	m := guarded.DeepCopy()
	unstructured.RemoveNestedField(m.Object, "status")
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"} {
		unstructured.RemoveNestedField(m.Object, "metadata", field)
	}
	return m
}

// table is the outcome for people, in Markdown.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	line := func(cells ...any) {
		format := "|" + strings.Repeat(" %v\t|", len(cells)) + "\n"
		_, _ = fmt.Fprintf(w, format, cells...)
	}
	line("tool", "manifest", "Machine", "syncs", "refused", "write requests", "new versions by 1st", "by the others", "guarded in every state", "still reports drift")
	line("---", "---", "---", "---", "---", "---", "---", "---", "---", "---")
	for _, r := range rows {
		always := "yes"
		if len(r.lost) > 0 {
			always = "NO"
		}
		drift := "no"
		if r.drift || r.refused > 0 {
			drift = "yes"
		}
		line(r.tool, r.manifest, r.machine, Syncs, r.refused, r.writes, r.first, r.rest, always, drift)
	}
	_ = w.Flush()
	return b.String()
}

// difference is the merge patch from one object to another.
func difference(from, to *unstructured.Unstructured) ([]byte, error) {
	old, err := from.MarshalJSON()
	if err != nil {
		return nil, err
	}
	current, err := to.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return jsonmergepatch.CreateThreeWayJSONMergePatch(old, current, old)
}
