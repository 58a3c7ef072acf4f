package certmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onsi/gomega"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// pace is how often each kind of request is sent.
const pace = 25 * time.Millisecond

// tally is what became of a load.
type tally struct {
	mu    sync.Mutex
	sent  map[string]int
	wrong []string
}

func (l *tally) note(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[what]++
	if err != nil {
		l.wrong = append(l.wrong, time.Now().Format(time.StampMilli)+" "+what+": "+err.Error())
	}
}

// least is how many requests of the rarest kind were sent.
func (l *tally) least() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Min(slices.Collect(maps.Values(l.sent)))
}

// requests are trials that change nothing: one that is to pass and fails where no replica answers; one that is to
// be refused and passes where none does; and one that is to be mended and is refused, by the policy, where none does.
func (f *fixture) requests() map[string]request {
	words := &said{}
	warned := f.client(sandbox.Alice, words)
	return map[string]request{
		"change of the CRD, to pass": f.changeCRD,
		"second deletion, to be refused": func(ctx context.Context, _ int) error {
			words.forget()
			err := warned.Delete(ctx, one(), client.DryRunAll)
			if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "one-too-many") {
				return nil
			}
			if err == nil {
				return fmt.Errorf("it passed; said: %q", words.all()) // nothing, where no replica answered
			}
			return err
		},
		"strip of the hook, to be mended": f.strip,
	}
}

// said are the Warnings of the request under way.
type said struct {
	mu    sync.Mutex
	lines []string
}

// HandleWarningHeader makes it client-go's rest.WarningHandler.
func (s *said) HandleWarningHeader(_ int, _, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, text)
}

func (s *said) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = nil
}

func (s *said) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "; ")
}

// requestsWhileDown are those of which it is known how they are answered with or without a replica, and in between.
func (f *fixture) requestsWhileDown() map[string]request {
	either := func(send request, refusal string) request {
		return func(ctx context.Context, n int) error {
			if err := send(ctx, n); err != nil && !strings.Contains(err.Error(), refusal) {
				return err
			}
			return nil
		}
	}
	return map[string]request{
		"change of the CRD, to pass or to be refused":      either(f.changeCRD, `failed calling webhook "`+registrations.HomeWebhook+`"`),
		"strip of the hook, to be mended or to be refused": either(f.strip, `ValidatingAdmissionPolicy '`+registrations.MachinePolicy+`'`),
	}
}

// request is one of a kind, the n-th: nil if it was answered as it should be.
type request func(ctx context.Context, n int) error

func one() *machinev1beta1.Machine {
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, "master-1"
	return m
}

func (f *fixture) changeCRD(ctx context.Context, n int) error {
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "machines.machine.openshift.io"},
	}}
	patch := fmt.Sprintf(`{"spec":{"names":{"categories":["c%d"]}}}`, n)
	return f.alice.Patch(ctx, crd, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
}

func (f *fixture) strip(ctx context.Context, _ int) error {
	m := one()
	if err := f.gitops.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`)), client.DryRunAll); err != nil {
		return err
	}
	if got := machineapi.Machine(m); got.Hook != quorum.EntryOurs || got.Latch != quorum.EntryOurs {
		return errors.New("hook or latch is gone")
	}
	return nil
}

// load sends requests while run runs, and some before and after it.
func (f *fixture) load(kinds map[string]request, run func()) *tally {
	f.t.Helper()
	l := &tally{sent: map[string]int{}}
	for what := range kinds {
		l.sent[what] = 0
	}
	ctx, stop := context.WithCancel(f.t.Context())
	defer stop()
	var senders sync.WaitGroup
	for what, send := range kinds {
		senders.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				// Not the load's own end: what is under way is answered.
				limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
				err := send(limited, n)
				cancel()
				l.note(what, err)
			}
		})
	}
	f.Eventually(l.least).Should(gomega.BeNumerically(">", 20))
	run()
	f.Eventually(l.least).Should(gomega.BeNumerically(">", l.least()+20))
	stop()
	senders.Wait()
	f.t.Logf("%v sent, %d answered wrongly", l.sent, len(l.wrong))
	return l
}
