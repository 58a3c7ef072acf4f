package recorder

import (
	"context"
	"fmt"
	"net/http"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
)

// NewEventBroadcaster writes Events until it is shut down. Unlike a manager's own it tries again after an answer such
// as "etcdserver: request timed out": Events of a change of etcd's members come at the very moment at which the API
// server is given such answers.
func NewEventBroadcaster(ctx context.Context, config *rest.Config, connection *http.Client) (events.EventBroadcaster, error) {
	api, err := eventsclient.NewForConfigAndClient(config, connection)
	if err != nil {
		return nil, fmt.Errorf("set up Events: %w", err)
	}
	broadcaster := events.NewBroadcaster(eventSink{&events.EventSinkImpl{Interface: api}})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("set up Events: %w", err)
	}
	return broadcaster, nil
}

// eventSink has client-go try an Event again where it would take the API server's answer for the last word.
type eventSink struct{ events.EventSink }

// Create writes a new Event.
func (s eventSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	out, err := s.EventSink.Create(ctx, e)
	return out, again(err)
}

// Patch makes an Event a series, or a series longer.
func (s eventSink) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	out, err := s.EventSink.Patch(ctx, e, patch)
	return out, again(err)
}

// again is the error in a form that client-go tries again after, if the next attempt may go better.
func again(err error) error {
	if apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("the API server cannot now: %w", err)
	}
	return err
}
