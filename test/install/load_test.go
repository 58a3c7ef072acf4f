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

func (l *tally) note(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[what]++
	if err != nil {
		l.wrong = append(l.wrong, wrong{at: time.Now(), what: what + ": " + err.Error()})
	}
}

// least is how many requests of the rarest kind were sent.
func (l *tally) least() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) < 3 {
		return 0
	}
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

// load sends requests of all the webhooks' ways of failing while run runs, as trials that change nothing:
// one that must pass and fails if no replica answers; one that must be refused and passes if none does; and
// one that must be mended and is refused, by the policy, if none does.
func (f *fixture) load(run func()) *tally {
	f.t.Helper()
	gitops := f.client(sandbox.GitOps)
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "machines.machine.openshift.io"},
	}}
	one := func(name string) *machinev1beta1.Machine {
		m := &machinev1beta1.Machine{}
		m.Namespace, m.Name = sandbox.MachineNamespace, name
		return m
	}
	l := &tally{sent: map[string]int{}}
	ctx, stop := context.WithCancel(f.t.Context())
	defer stop()
	var senders sync.WaitGroup
	for what, send := range map[string]func(context.Context, int) error{
		"change of the CRD, to pass": func(ctx context.Context, n int) error {
			patch := fmt.Sprintf(`{"spec":{"names":{"categories":["c%d"]}}}`, n)
			return f.alice.Patch(ctx, crd.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		},
		"second deletion, to be refused": func(ctx context.Context, _ int) error {
			err := f.alice.Delete(ctx, one("master-1"), client.DryRunAll)
			if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "one-too-many") {
				return nil
			}
			if err == nil {
				return errors.New("it passed")
			}
			return err
		},
		"strip of the hook, to be mended": func(ctx context.Context, _ int) error {
			m := one("master-1")
			if err := gitops.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`)), client.DryRunAll); err != nil {
				return err
			}
			if got := machineapi.Machine(m); got.Hook != quorum.Ours || got.Latch != quorum.Ours {
				return errors.New("hook or latch is gone")
			}
			return nil
		},
	} {
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
				limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
				err := send(limited, n)
				cancel()
				l.note(what, err)
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
