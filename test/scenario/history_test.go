package scenario_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

// history watches a cluster from beginning to end and fails the test for every moment at which
// something did not hold. The Machines come from a watch, so no state that the API server stored is
// missed; the members are sampled.
type history struct {
	mu       sync.Mutex
	machines map[string]quorum.Machine // as last stored, by UID
	kept     map[string]bool           // live Machines of a ControlPlaneMachineSet, by UID
	most     int                       // voters at one time
	least    int
	fewest   int // voters that there may be now
	learners int // the most at a time
	samples  int
	leaders  *leaders
	detached string // the one Machine whose instance a person may take off
	wrong    []string
}

func (h *history) fail(format string, args ...any) {
	if len(h.wrong) < 20 {
		h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
	}
}

// watch begins a history that ends with the test. Voters may be as few as the given number: one less
// than desired where a dead voter has to go before its replacement can come.
func (c *cluster) watch(t *testing.T, fewest int) *history {
	t.Helper()
	h := &history{machines: map[string]quorum.Machine{}, kept: map[string]bool{}, least: int(c.desired.Load()), fewest: fewest, leaders: newLeaders()}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	work.Go(func() { h.sample(ctx, c) })
	work.Go(func() { h.follow(ctx, c) })
	work.Go(func() { h.count(ctx, c) })
	w := writer.New(c.etcd)
	work.Go(func() { w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		work.Wait()
		for _, w := range h.wrong {
			t.Error(w)
		}
		if h.samples == 0 || len(h.machines) == 0 {
			t.Errorf("the history saw %d samples of the ring and %d Machines", h.samples, len(h.machines))
		}
		if len(h.leaders.of) == 0 {
			t.Error("the history saw no leader of etcd")
		}
		if h.leaders.scrapes == 0 {
			t.Error("the history read no metrics of a member, and should read those of each, once a second")
		}
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		lost, err := w.Lost(reading)
		wrote := w.Stats()
		if err != nil || lost > 0 || wrote.Acked == 0 {
			t.Errorf("I9: %d of %d acknowledged writes are lost: %v", lost, wrote.Acked, err)
		}
		t.Logf("%d samples of the ring: %d to %d voters; leaders of %d terms, by status and %d scrapes, whose metrics count %d elections; %d writes acknowledged, longest stall %s, %d attempts failed: %v",
			h.samples, h.least, h.most, len(h.leaders.of), h.leaders.scrapes, h.leaders.elections(), wrote.Acked, wrote.Longest.Round(time.Millisecond), wrote.Failed, wrote.Last)
	})
	return h
}

// sample looks at the members again and again: I4, and I2 with what the watch has seen.
func (h *history) sample(ctx context.Context, c *cluster) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	voted, before := map[uint64]bool{}, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		within, cancel := context.WithTimeout(ctx, 2*time.Second)
		list, err := c.etcd.MemberList(within)
		cancel()
		if err != nil {
			continue // no answer, no observation; what is lost by it the writer sees
		}
		var doubtful []*etcdserverpb.Member
		h.mu.Lock()
		h.samples++
		voters := 0
		for _, m := range list.Members {
			if m.GetIsLearner() {
				voted[m.GetID()] = false
				continue
			}
			voters++
			if was, known := voted[m.GetID()]; known && !was && !h.hooked(m.GetName()) && m.GetName() != quorum.BootstrapName {
				doubtful = append(doubtful, m)
			}
			voted[m.GetID()] = true
		}
		h.most, h.least, h.learners = max(h.most, voters), min(h.least, voters), max(h.learners, len(list.Members)-voters)
		if desired := int(c.desired.Load()); voters > desired+1 && voters > before && before > 0 || voters < h.fewest {
			h.fail("I4: %d voters, %d wanted", voters, desired)
		}
		before = voters
		h.mu.Unlock()
		for _, m := range doubtful {
			// The API server's watch may be a second behind what it has stored.
			switch hooked, err := h.hookedNow(ctx, c, m.GetName()); {
			case err != nil:
				voted[m.GetID()] = false // it does not answer: ask again
			case !hooked:
				h.mu.Lock()
				h.fail("I2: %s became a voter while no hooked Machine of that name was stored", m.GetName())
				h.mu.Unlock()
			}
		}
	}
}

// atLeast says that from now on there may be so few voters, and no fewer.
func (h *history) atLeast(fewest int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fewest = fewest
}

// detaches lets a person take the instance, and the Machine API the Node, off a Machine.
func (h *history) detaches(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.detached = name
}

// mostLearners is how many there were at a time, at most, since it was asked last.
func (h *history) mostLearners() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	most := h.learners
	h.learners = 0
	return most
}

// hookedNow asks the API server whether a hooked Machine of that name is stored.
func (h *history) hookedNow(ctx context.Context, c *cluster, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	m := &machinev1beta1.Machine{}
	err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: name}, m)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	return err == nil && machineapi.Machine(m).Hook == quorum.EntryOurs, nil
}

func (h *history) hooked(name string) bool {
	for _, m := range h.machines {
		if m.Name == name && m.Hook == quorum.EntryOurs {
			return true
		}
	}
	return false
}

// follow sees every state of every Machine that the API server stores: I6, and that latch and hook go together.
func (h *history) follow(ctx context.Context, c *cluster) {
	for ctx.Err() == nil {
		watcher, err := c.as(sandbox.Admin).(client.WithWatch).Watch(ctx, &machinev1beta1.MachineList{}, client.InNamespace(sandbox.MachineNamespace))
		if err != nil {
			continue
		}
		h.mu.Lock()
		h.kept = map[string]bool{} // the watch begins with all that are there
		h.mu.Unlock()
		for event := range watcher.ResultChan() {
			if m, ok := event.Object.(*machinev1beta1.Machine); ok {
				h.keeps(m, event.Type, int(c.desired.Load()))
			}
			if m, ok := event.Object.(*machinev1beta1.Machine); ok && event.Type != watch.Deleted {
				h.stored(machineapi.Machine(m))
			}
		}
	}
}

// keeps counts the live Machines of a set: never more than one above what is wanted.
func (h *history) keeps(m *machinev1beta1.Machine, event watch.EventType, wanted int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uid := string(m.UID)
	owner := metav1.GetControllerOf(m)
	if event == watch.Deleted || m.DeletionTimestamp != nil || owner == nil || owner.Kind != "ControlPlaneMachineSet" {
		delete(h.kept, uid)
		return
	}
	h.kept[uid] = true
	if _, known := h.machines[uid]; !known && len(h.kept) > wanted+1 {
		h.fail("Machine %s is the set's live Machine number %d, and %d are wanted", m.Name, len(h.kept), wanted)
	}
}

func (h *history) stored(m quorum.Machine) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, known := h.machines[m.UID]
	h.machines[m.UID] = m
	if !known {
		return
	}
	if before.Deleting() && before.Hook != quorum.EntryOurs && m.Hook == quorum.EntryOurs {
		h.fail("I6: the hook returned to deleting Machine %s", m.Name)
	}
	if before.Hook == quorum.EntryOurs && m.Hook != quorum.EntryOurs && !m.Deleting() {
		h.fail("live Machine %s lost its hook", m.Name)
	}
	if before.Latch == quorum.EntryOurs && m.Latch != quorum.EntryOurs && m.Hook == quorum.EntryOurs {
		h.fail("Machine %s lost its latch alone", m.Name)
	}
	if !before.Held() || !m.Held() {
		return
	}
	detached := m.Name == h.detached
	if before.ProviderID != "" && before.ProviderID != m.ProviderID && (!detached || m.ProviderID != "") {
		h.fail("hooked Machine %s was given another instance: %s, and it had %s", m.Name, m.ProviderID, before.ProviderID)
	}
	if before.Finalizer && !m.Finalizer {
		h.fail("hooked Machine %s lost its finalizer", m.Name)
	}
	if before.ControlPlane() && !m.ControlPlane() {
		h.fail("hooked Machine %s is no control-plane Machine any more", m.Name)
	}
	if before.NodeName != "" && m.NodeName == "" && !detached {
		h.fail("hooked Machine %s lost its Node", m.Name)
	}
}
