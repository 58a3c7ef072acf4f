package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// What is seen of a replacement, in the order in which Holdfast has it happen. The last steps, from deleted on, are of the old Machine.
const (
	created = iota
	made
	ready
	added
	started
	promoted
	deleted
	removed
	released
	drained
	gone
)

//nolint:gochecknoglobals // its length is a part of types
var steps = [...]string{
	created: "the new Machine is created", made: "it has an instance", ready: "its Node is ready", added: "etcd lists its learner", started: "the learner has started", promoted: "it votes",
	deleted: "the old Machine is deleted", removed: "its member is removed", released: "its hook is released", drained: "its Node is drained", gone: "it is gone",
}

// timeline is when each step was first seen, by the name of the Machine, which is its Node's and its host's.
type timeline struct {
	mu          sync.Mutex
	at          [len(steps)]map[string]time.Time
	there, most int // Machines
}

func (t *timeline) note(step int, name string, seen bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !seen || !t.at[step][name].IsZero() {
		return
	}
	if t.at[step] == nil {
		t.at[step] = map[string]time.Time{}
	}
	t.at[step][name] = time.Now()
}

// phases is, for each replacement, how many seconds each step came after the last of those before it: 0 if it came sooner. The Machine that
// was created first replaces the one that was deleted first.
func (t *timeline) phases(began time.Time) (all [][]float64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	inOrder := func(step int) []string {
		return slices.SortedFunc(maps.Keys(t.at[step]), func(a, b string) int { return t.at[step][a].Compare(t.at[step][b]) })
	}
	news, olds := inOrder(created), inOrder(deleted)
	if len(news) != len(olds) {
		return nil, fmt.Errorf("%v were created, and %v deleted", news, olds)
	}
	last := began
	for i := range news {
		var one []float64
		for step, what := range steps {
			name := news[i]
			if step >= deleted {
				name = olds[i]
			}
			at, seen := t.at[step][name]
			if !seen {
				return nil, fmt.Errorf("of the replacement of %s by %s it was not seen when %s", olds[i], news[i], what)
			}
			one = append(one, max(0, at.Sub(last).Seconds()))
			last = time.Unix(0, max(at.UnixNano(), last.UnixNano()))
		}
		all = append(all, one)
	}
	return all, nil
}

// follow begins to note what happens to Machines, their Nodes and etcd's members, until the context ends.
func (t *timeline) follow(ctx context.Context, work *sync.WaitGroup, c *cluster, etcd *clientv3.Client) error {
	var list machinev1beta1.MachineList
	if err := c.admin.List(ctx, &list, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return err
	}
	t.there = len(list.Items)
	machines, err := c.admin.Watch(ctx, &machinev1beta1.MachineList{}, client.InNamespace(sandbox.MachineNamespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		return err
	}
	nodes, err := c.admin.Watch(ctx, &corev1.NodeList{})
	if err != nil {
		machines.Stop()
		return err
	}
	each := func(w watch.Interface, see func(watch.Event)) {
		work.Go(func() {
			for event := range w.ResultChan() {
				see(event)
			}
		})
	}
	each(machines, t.machine)
	each(nodes, func(event watch.Event) {
		if n, ok := event.Object.(*corev1.Node); ok {
			t.note(ready, n.Name, slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}))
		}
	})
	work.Go(func() { t.members(ctx, c, etcd) })
	return nil
}

func (t *timeline) machine(event watch.Event) {
	m, ok := event.Object.(*machinev1beta1.Machine)
	if !ok {
		return
	}
	if event.Type == watch.Added {
		t.there++
	}
	if event.Type == watch.Deleted {
		t.there--
	}
	t.most = max(t.most, t.there)
	t.note(created, m.Name, event.Type == watch.Added)
	t.note(made, m.Name, m.Spec.ProviderID != nil)
	t.note(deleted, m.Name, m.DeletionTimestamp != nil)
	t.note(released, m.Name, m.DeletionTimestamp != nil && machineapi.Machine(m).Hook == quorum.EntryAbsent)
	t.note(drained, m.Name, slices.ContainsFunc(m.Status.Conditions, func(c machinev1beta1.Condition) bool {
		return c.Type == machinev1beta1.MachineDrained && c.Status == corev1.ConditionTrue
	}))
	t.note(gone, m.Name, event.Type == watch.Deleted)
}

// members asks etcd for its members until the context ends.
func (t *timeline) members(ctx context.Context, c *cluster, etcd *clientv3.Client) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	names := map[uint64]string{} // of the hosts of all members that were listed
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		within, cancel := context.WithTimeout(ctx, time.Second)
		list, err := etcd.MemberList(within)
		cancel()
		if err != nil {
			continue
		}
		listed := map[uint64]bool{}
		for _, m := range list.Members {
			for _, h := range c.Hosts() {
				if slices.Contains(m.GetPeerURLs(), h.PeerURL) {
					names[m.GetID()] = h.Name
				}
			}
			name := names[m.GetID()]
			listed[m.GetID()] = true
			t.note(added, name, true)
			t.note(started, name, m.GetName() != "")
			t.note(promoted, name, !m.GetIsLearner())
		}
		for id, name := range names {
			t.note(removed, name, !listed[id])
		}
	}
}
