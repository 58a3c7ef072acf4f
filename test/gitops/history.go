package gitops

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// What Holdfast keeps on a Machine.
const (
	hookName  = "EtcdQuorumOperator"
	hookOwner = "clusteroperator/etcd"
	latchName = "EtcdQuorumLatch"
	finalizer = "machine.machine.openshift.io"
	evidence  = "holdfast.dev/etcd-member"
	roleLabel = "machine.openshift.io/cluster-api-machine-role"
)

// ownName is the name of a preDrain hook of the tool's own.
const ownName = "Backup"

// guarded are the marks of a guarded Machine; each is a value that is empty where the mark is missing.
func guarded(m *unstructured.Unstructured) map[string]string {
	marks := map[string]string{
		"hook":     entry(m, "preDrain", hookName),
		"latch":    entry(m, "preTerminate", latchName),
		"evidence": m.GetAnnotations()[evidence],
		"role":     m.GetLabels()[roleLabel],
	}
	if slices.Contains(m.GetFinalizers(), finalizer) {
		marks["finalizer"] = finalizer
	}
	return marks
}

// entry is the owner of the entry of that name in a list of lifecycle hooks.
func entry(m *unstructured.Unstructured, list, name string) string {
	entries, _, _ := unstructured.NestedSlice(m.Object, "spec", "lifecycleHooks", list)
	for _, e := range entries {
		if e, ok := e.(map[string]any); ok && e["name"] == name {
			owner, _ := e["owner"].(string)
			return owner
		}
	}
	return ""
}

// history is every state of every Machine that the API server stored since it was begun.
type history struct {
	machines dynamic.ResourceInterface

	mu       sync.Mutex
	of       map[string]*record // by name
	failure  error
	stopping bool
}

// record is the history of one Machine.
type record struct {
	version string // of the last state
	// content is that of the states that differ from the one before in more than their status: a request
	// of a tool cannot change that, and the machine controller does.
	content []string
	marks   map[string]string
	// released says that a person takes the hook off: hook and latch go, and neither returns.
	released bool
	lost     []string // marks that a state lacked after an earlier one had them
}

// watchMachines begins the history.
func watchMachines(t *testing.T, machines dynamic.ResourceInterface) *history {
	t.Helper()
	list, err := machines.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := &history{machines: machines, of: map[string]*record{}}
	for i := range list.Items {
		h.add(&list.Items[i])
	}
	w, err := machines.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			h.see(event)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.stopping && h.failure == nil {
			h.failure = fmt.Errorf("the watch ended before the test")
		}
	}()
	t.Cleanup(func() {
		h.mu.Lock()
		h.stopping = true
		h.mu.Unlock()
		w.Stop()
		<-done
	})
	return h
}

func (h *history) see(event watch.Event) {
	m, ok := event.Object.(*unstructured.Unstructured)
	if !ok || event.Type == watch.Error {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.failure = fmt.Errorf("the watch: %v", event.Object)
		return
	}
	h.add(m)
	if event.Type == watch.Deleted {
		h.mu.Lock()
		defer h.mu.Unlock()
		r := h.of[m.GetName()]
		r.lost = append(r.lost, "the Machine itself")
	}
}

func (h *history) add(m *unstructured.Unstructured) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.of[m.GetName()]
	if r == nil {
		r = &record{marks: map[string]string{}}
		h.of[m.GetName()] = r
	}
	r.version = m.GetResourceVersion()
	if content := withoutStatus(m); len(r.content) == 0 || content != r.content[len(r.content)-1] {
		r.content = append(r.content, content)
	}
	now := guarded(m)
	for mark, was := range r.marks {
		if r.released && (mark == "hook" || mark == "latch") {
			if was == "" && now[mark] != "" { // the latch goes a moment after the hook
				r.lost = append(r.lost, fmt.Sprintf("staying without %s at resourceVersion %s", mark, r.version))
			}
			continue
		}
		if mark == "finalizer" && r.released {
			continue // the machine controller takes it off when it has terminated the instance
		}
		if was != "" && now[mark] != was {
			r.lost = append(r.lost, fmt.Sprintf("%s at resourceVersion %s: %q was %q", mark, r.version, now[mark], was))
		}
	}
	r.marks = now
}

// withoutStatus is everything of a Machine that a write of its status leaves alone.
func withoutStatus(m *unstructured.Unstructured) string {
	m = m.DeepCopy()
	unstructured.RemoveNestedField(m.Object, "status")
	m.SetResourceVersion("")
	m.SetManagedFields(slices.DeleteFunc(m.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
		return e.Subresource == "status"
	}))
	text, err := json.Marshal(m.Object)
	if err != nil { // it came as JSON
		panic(err)
	}
	return string(text)
}

// release has the history hold from now on that a Machine's hook and latch never return.
func (h *history) release(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of[name].released = true
}

// point is where a Machine's history stands.
type point struct {
	content    []string // as in record
	generation int64
	deleting   bool
	own        bool // the tool's own hook is on
	lost       []string
}

// now waits until the history has caught up with the API server.
func (h *history) now(ctx context.Context, t *testing.T, name string) point {
	t.Helper()
	var at point
	eventually(ctx, t, "the history of Machine "+name, func(ctx context.Context) error {
		m, err := h.machines.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.failure != nil {
			t.Fatal(h.failure)
		}
		r := h.of[name]
		if r == nil || r.version != m.GetResourceVersion() {
			return fmt.Errorf("resourceVersion %s was not seen yet", m.GetResourceVersion())
		}
		at = point{content: slices.Clone(r.content), generation: m.GetGeneration(), deleting: m.GetDeletionTimestamp() != nil, own: entry(m, "preDrain", ownName) != "", lost: slices.Clone(r.lost)}
		return nil
	})
	return at
}

// wait waits until a Machine is as it should be.
func (h *history) wait(ctx context.Context, t *testing.T, name, what string, good func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	t.Helper()
	var m *unstructured.Unstructured
	eventually(ctx, t, fmt.Sprintf("Machine %s is to be %s", name, what), func(ctx context.Context) (err error) {
		if m, err = h.machines.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !good(m) {
			return fmt.Errorf("it is %v", describe(m))
		}
		return nil
	})
	return m
}

// marked says whether a Machine has all the marks.
func marked(m *unstructured.Unstructured) bool {
	marks := guarded(m)
	for _, mark := range []string{"hook", "latch", "evidence", "role", "finalizer"} {
		if marks[mark] == "" {
			return false
		}
	}
	return true
}

func describe(m *unstructured.Unstructured) string {
	phase, _, _ := unstructured.NestedString(m.Object, "status", "phase")
	return fmt.Sprintf("in phase %q with %v", phase, guarded(m))
}

// phased says whether a Machine is in that phase.
func phased(phase string) func(*unstructured.Unstructured) bool {
	return func(m *unstructured.Unstructured) bool {
		is, _, _ := unstructured.NestedString(m.Object, "status", "phase")
		return is == phase
	}
}
