package install_test

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
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// pace is how often each kind of request is sent.
const pace = 25 * time.Millisecond

// wrong is an answer that a request should not have got.
type wrong struct {
	at   time.Time
	what string
}

// tally is what became of a load.
type tally struct {
	mu    sync.Mutex
	sent  map[string]int
	wrong []wrong
}

func (l *tally) note(what string, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[what]++
	if err != nil {
		l.wrong = append(l.wrong, wrong{at: time.Now(), what: fmt.Sprintf("%s, after %v: %v", what, took.Round(time.Millisecond), err)})
	}
}

// least is how many requests of the rarest kind were sent.
func (l *tally) least() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Min(slices.Collect(maps.Values(l.sent)))
}

func (l *tally) String() string {
	out := fmt.Sprintf("%v sent, %d answered wrongly", l.sent, len(l.wrong))
	for i, w := range l.wrong {
		if i == 10 {
			return out + "\n..."
		}
		out += "\n" + w.at.Format(time.StampMilli) + " " + w.what
	}
	return out
}

// request is one kind of request of a load, the n-th of it: nil if it was answered as it should be.
type request func(ctx context.Context, n int) error

// requests are of all the webhooks' ways of failing, as trials that change nothing. They must pass and fail if no
// replica answers; or be refused and pass if none does; or be mended, and are refused, by the policy or by failing
// closed, if none does; or be warned of, and pass without a word if none answers. A Machine that is being deleted,
// "" for none, makes another's deletion one to be refused, and its own release one to be mended.
func (f *fixture) requests(deleting string) map[string]request {
	gitops, operator := f.client(sandbox.GitOps), f.client(sandbox.EtcdOperator)
	words := &said{}
	warned := f.clientWith(sandbox.Alice, words)
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "machines.machine.openshift.io"},
	}}
	one := func(name string) *machinev1beta1.Machine {
		m := &machinev1beta1.Machine{}
		m.Namespace, m.Name = sandbox.MachineNamespace, name
		return m
	}
	mended := func(ctx context.Context, c client.Client, name, patch string) error {
		m := one(name)
		if err := c.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll); err != nil {
			return err
		}
		return intact(m)
	}
	out := map[string]request{
		"change of the CRD, to pass": func(ctx context.Context, n int) error {
			patch := fmt.Sprintf(`{"spec":{"names":{"categories":["c%d"]}}}`, n)
			return f.alice.Patch(ctx, crd.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		},
		"strip of hook and evidence, to be mended": func(ctx context.Context, _ int) error {
			return mended(ctx, gitops, live, `{"metadata":{"annotations":{"`+quorum.EvidenceAnnotation+`":null}},"spec":{"lifecycleHooks":null}}`)
		},
	}
	if deleting == "" {
		out["deletion, to be warned of"] = func(ctx context.Context, _ int) error {
			words.forget()
			if err := warned.Delete(ctx, one(live), client.DryRunAll); err != nil {
				return err
			}
			if all := words.all(); !strings.Contains(all, "Holdfast (held)") {
				return fmt.Errorf("it passed without the Warning; said: %q", all)
			}
			return nil
		}
		return out
	}
	out[secondDeletion] = func(ctx context.Context, _ int) error {
		words.forget()
		return f.tooMany(warned.Delete(ctx, one(live), client.DryRunAll), words)
	}
	out["early release by the operator, to be mended"] = func(ctx context.Context, _ int) error {
		return mended(ctx, operator, deleting, `{"spec":{"lifecycleHooks":{"preDrain":null}}}`)
	}
	return out
}

const (
	live           = "master-1" // the Machine that the requests are about: it is not being deleted
	secondDeletion = "second deletion, to be refused"
)

// tooMany is nil if a second deletion was refused as one. On a computer that is busy with all of this, a replica may run out of time as it reads:
// then the hook holds the Machine, and two such answers are no fault.
func (f *fixture) tooMany(err error, words *said) error {
	if all := words.all(); err == nil && strings.Contains(all, "Holdfast (held)") && strings.Contains(all, "could not be read in time") && f.late.Add(1) <= 2 {
		return nil
	}
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "one-too-many") {
		return nil
	}
	if err == nil {
		return fmt.Errorf("it passed; said: %q", words.all()) // nothing, where no replica answered
	}
	return err
}

// heldOrRefused is a second deletion during a downgrade. Manifests of the earlier version take rights from replicas of
// the later one that still run: what they cannot read they do not judge, and the hook holds the Machine.
func (f *fixture) heldOrRefused(ctx context.Context, _ int) error {
	words := &said{}
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, live
	err := f.clientWith(sandbox.Alice, words).Delete(ctx, m, client.DryRunAll)
	if all := words.all(); err == nil && strings.Contains(all, "Holdfast (held)") && strings.Contains(all, "forbidden") {
		return nil
	}
	return f.tooMany(err, words)
}

// intact says what a Machine lacks of hook, latch and evidence.
func intact(m *machinev1beta1.Machine) error {
	switch got := machineapi.Machine(m); {
	case got.Hook != quorum.EntryOurs:
		return errors.New("the hook is gone")
	case got.Latch != quorum.EntryOurs:
		return errors.New("the latch is gone")
	case len(got.OwnEvidence().MemberIDs) == 0:
		return errors.New("the evidence is gone")
	}
	return nil
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

// load sends requests while run runs.
func (f *fixture) load(requests map[string]request, run func()) *tally {
	f.t.Helper()
	l := &tally{sent: map[string]int{}}
	ctx, stop := context.WithCancel(f.t.Context())
	defer stop()
	var senders sync.WaitGroup
	for what := range requests {
		l.sent[what] = 0
	}
	for what, send := range requests {
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
				began := time.Now()
				err := send(limited, n)
				cancel()
				l.note(what, time.Since(began), err)
			}
		})
	}
	run()
	f.Eventually(l.least).Should(gomega.BeNumerically(">", 50))
	stop()
	senders.Wait()
	f.t.Log(l)
	return l
}
