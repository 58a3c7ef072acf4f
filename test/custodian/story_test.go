package custodian_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

// story watches a part of a test from beginning to end, and fails it for every moment at which
// something did not hold. The Machines come from a watch, so no state that the API server stored is
// missed; the members are sampled.
type story struct {
	*cluster
	fewest int // voters

	mu       sync.Mutex
	machines map[string]quorum.Machine // as last stored, by UID
	least    int                       // voters at one time
	samples  int
	states   int
	wrong    []string

	killed   bool              // Holdfast was
	unpaired map[string]string // Machines that got or lost one of hook and latch since then, by UID
}

// watch begins a story that ends with the test. There may never be fewer voters than given.
func (c *cluster) watch(t *testing.T, fewest int) *story {
	t.Helper()
	s := &story{cluster: c, fewest: fewest, machines: map[string]quorum.Machine{}, unpaired: map[string]string{}, least: 99}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var work sync.WaitGroup
	work.Go(func() { s.sample(ctx) })
	work.Go(func() { s.follow(ctx) })
	w := writer.New(c.etcd)
	work.Go(func() { w.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		work.Wait()
		for _, wrong := range s.wrong {
			t.Error(wrong)
		}
		for _, name := range s.unpaired {
			t.Errorf("Machine %s had hook or latch alone since Holdfast was down, and to the end", name)
		}
		reading, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		lost, err := w.Lost(reading)
		if err != nil || lost > 0 {
			t.Errorf("I9: %d acknowledged writes to etcd are lost: %v", lost, err)
		}
		if s.samples == 0 || s.states == 0 || w.Stats().Acked == 0 {
			t.Errorf("the story saw %d samples of the ring, %d states of Machines and %d writes", s.samples, s.states, w.Stats().Acked)
		}
		t.Logf("%d samples of the ring, %d voters at least; %d states of Machines; %d writes to etcd, longest stall %s",
			s.samples, s.least, s.states, w.Stats().Acked, w.Stats().Longest.Round(time.Millisecond))
	})
	return s
}

// restart kills Holdfast and starts it again.
func (s *story) restart(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	s.killed = true
	s.mu.Unlock()
	must(t, s.Holdfast.Restart())
}

func (s *story) fail(format string, args ...any) {
	if len(s.wrong) < 10 {
		s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
	}
}

// sample counts voters again and again: none goes before its replacement votes.
func (s *story) sample(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		members, err := s.members(ctx)
		if err != nil {
			continue // no answer, no observation
		}
		voters := 0
		for _, m := range members {
			if !m.GetIsLearner() {
				voters++
			}
		}
		s.mu.Lock()
		s.samples++
		s.least = min(s.least, voters)
		if voters < s.fewest {
			s.fail("%d voters", voters)
		}
		s.mu.Unlock()
	}
}

// follow sees every state of every Machine that the API server stores.
func (s *story) follow(ctx context.Context) {
	for ctx.Err() == nil {
		watcher, err := s.admin.Watch(ctx, &machinev1beta1.MachineList{}, client.InNamespace(sandbox.MachineNamespace))
		if err != nil {
			continue
		}
		for event := range watcher.ResultChan() {
			switch m, ok := event.Object.(*machinev1beta1.Machine); {
			case !ok:
			case event.Type == watch.Deleted:
				s.mu.Lock()
				delete(s.unpaired, string(m.UID))
				s.mu.Unlock()
			default:
				s.stored(ctx, machineapi.Machine(m))
			}
		}
	}
}

// stored holds a state of a Machine against the one before: the latch is there with the hook and goes
// with it, no live Machine loses it, it never comes back to a deleting one (I6), and it goes from a
// deleting one only when its member is out of etcd (I3). From a learner's Machine the hook goes first.
func (s *story) stored(ctx context.Context, m quorum.Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states++
	before, known := s.machines[m.UID]
	s.machines[m.UID] = m
	if (m.Hook == quorum.EntryOurs) != (m.Latch == quorum.EntryOurs) {
		// Who puts the hook on while Holdfast is down is not asked for a latch, and who takes it off does not take the latch off. When
		// Holdfast is back it puts that right.
		if members, err := s.members(ctx); m.Deleting() && m.Latch == quorum.EntryOurs && err == nil && members[m.Name].GetIsLearner() {
			return
		}
		if s.killed {
			s.unpaired[m.UID] = m.Name
		} else {
			s.fail("Machine %s (deleting: %t) has the hook: %t, and the latch: %t", m.Name, m.Deleting(), m.Hook == quorum.EntryOurs, m.Latch == quorum.EntryOurs)
		}
	} else {
		delete(s.unpaired, m.UID)
	}
	if !known {
		return
	}
	had, has := before.Hook == quorum.EntryOurs, m.Hook == quorum.EntryOurs
	switch {
	case !had && has && before.Deleting():
		s.fail("I6: the hook returned to deleting Machine %s", m.Name)
	case had && !has && !m.Deleting():
		s.fail("live Machine %s lost its hook", m.Name)
	case had && !has:
		if members, err := s.members(ctx); err == nil && members[m.Name] != nil && (!members[m.Name].GetIsLearner() || m.Latch != quorum.EntryOurs) {
			s.fail("I3: Machine %s was released, and etcd lists %v", m.Name, members[m.Name])
		}
	}
}
