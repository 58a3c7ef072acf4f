package registrations

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// selfCallBound is how long a self-call may take: longer than the API server waits for a webhook.
const selfCallBound = 5 * time.Second

// askAgain is how often Proof checks that the API server still reaches the webhooks.
const askAgain = time.Minute

var errNoMachine = errors.New("there is no control-plane Machine to try it with")
var errNoCA = errors.New("the operator that the annotations name has not filled in the caBundle yet")

// SelfCall is a Proof: it asks the API server to try a change of a guarded Machine, and is refused by
// ClosedWebhook, with a word that only this call knows. Nothing is stored. The client must be a
// custodian's.
func SelfCall(api client.Client, namespace string) func(context.Context) error {
	observer := observe.Observer{API: api, Namespace: namespace}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, selfCallBound)
		defer cancel()
		machines, err := observer.Machines(ctx)
		if err != nil {
			return err
		}
		slices.SortStableFunc(machines, func(a, b quorum.Machine) int { return int(one(a.Deleting())) - int(one(b.Deleting())) }) // live ones first
		err = errNoMachine
		for i := range machines[:min(len(machines), 3)] { // one that another webhook refuses is not the only one
			if err = tryMachine(ctx, api, &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: machines[i].Name}}); err == nil {
				return nil
			}
		}
		return err
	}
}

func tryMachine(ctx context.Context, api client.Client, m *machinev1beta1.Machine) error {
	nonce := rand.Text()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, webhooks.SelfCallAnnotation, nonce)
	err := api.Patch(ctx, m, client.RawPatch(types.MergePatchType, patch), client.DryRunAll)
	if err == nil {
		return fmt.Errorf("a change of Machine %s/%s that %s was to refuse passed: the API server does not reach the webhooks, or has not heard of them yet", m.Namespace, m.Name, ClosedWebhook)
	}
	var refused apierrors.APIStatus
	if errors.As(err, &refused) && webhooks.AnswersSelfCall(refused.Status(), nonce) {
		return nil
	}
	return fmt.Errorf("a change of Machine %s/%s that %s was to refuse failed otherwise: %w", m.Namespace, m.Name, ClosedWebhook, err)
}

// testCalls are the calls of Proof: what they are for, and what they showed.
type testCalls struct {
	wake    chan struct{} // starts prove
	trouble trouble       // with the last one

	mu       sync.Mutex      // for what follows
	proven   map[string]bool // the webhooks that were seen to fail closed, or for which a call succeeded; by name
	unproven []string        // the webhooks that will fail closed once a call succeeds
	noCA     bool            // one of them has no caBundle yet from the operator that Annotations name
	last     time.Time       // when the last one began
}

// prove asks for Proof. Once that succeeds, the next check (mergeLive) writes failurePolicy Fail for the webhooks that are to fail closed. After
// that prove only reports whether the API server still reaches them: failurePolicy stays.
func (k *Registrar) prove(ctx context.Context) {
	if k.Writing == nil || !k.elected.Load() || !k.kept[validatingKey].confirmed.Load() {
		return
	}
	calls := &k.calls
	calls.mu.Lock()
	unproven, noCA, due := calls.unproven, calls.noCA, len(calls.unproven) > 0 || time.Since(calls.last) >= askAgain
	if due {
		calls.last = time.Now()
	}
	calls.mu.Unlock()
	if !due {
		return
	}
	err := errNoCA
	if !noCA {
		err = k.Writing.Proof(ctx)
	}
	calls.mu.Lock() // so that Lead does not end in between: it takes the metric back
	defer calls.mu.Unlock()
	if ctx.Err() != nil || !k.elected.Load() {
		return
	}
	if errors.Is(err, errNoMachine) {
		k.Metrics.reached.DeleteLabelValues(ClosedWebhook) // not known
	} else {
		k.Metrics.reached.WithLabelValues(ClosedWebhook).Set(one(err == nil))
	}
	if calls.trouble.news(err) && err != nil {
		message := "a call through the API server to the webhooks does not come back"
		if len(unproven) > 0 {
			message = "the webhooks fail open (failurePolicy Ignore) until a test call through the API server succeeds"
		}
		k.Log.Info(message, "reason", err.Error())
	}
	if err != nil || len(unproven) == 0 {
		return
	}
	for _, name := range unproven {
		calls.proven[name] = true
	}
	calls.unproven = nil
	k.Log.Info("a call through the API server came back from the webhooks: from now on what must not pass without them is refused while they do not answer (failurePolicy Fail)")
	observe.Wake(k.kept[validatingKey].wake)
}
