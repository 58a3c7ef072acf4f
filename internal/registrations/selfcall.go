package registrations

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
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

var errNoMachine = errors.New("there is no control-plane Machine to try it with")

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
