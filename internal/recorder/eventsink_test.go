package recorder

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// TestAgain: client-go gives up after a status, and so not after what may go better next time.
func TestAgain(t *testing.T) {
	resource := schema.GroupResource{Resource: "events"}
	for _, c := range []struct {
		err   error
		later bool
	}{
		{apierrors.NewInternalError(errors.New("etcdserver: request timed out")), true},
		{apierrors.NewServerTimeout(resource, "create", 1), true},
		{apierrors.NewTimeoutError("slow", 1), true},
		{apierrors.NewServiceUnavailable("etcdserver: leader changed"), true},
		{apierrors.NewTooManyRequestsError("later"), true},
		{apierrors.NewAlreadyExists(resource, "e"), false},
		{apierrors.NewForbidden(resource, "e", nil), false},
		{apierrors.NewNotFound(resource, "e"), false},
	} {
		if got := again(c.err); !errors.Is(got, c.err) || (got.Error() != c.err.Error()) != c.later {
			t.Errorf("%v becomes %v", c.err, got)
		}
	}
	if err := again(nil); err != nil {
		t.Errorf("no error becomes %v", err)
	}
}

// timesOut answers the first Event as an API server does that has lost its etcd member, and takes the next.
type timesOut struct{ asked atomic.Int64 }

func (o *timesOut) RoundTrip(*http.Request) (*http.Response, error) {
	asked := o.asked.Add(1)
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	if asked == 1 {
		answer.WriteHeader(http.StatusInternalServerError)
		_, err := answer.WriteString(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcdserver: request timed out","reason":"InternalError","code":500}`)
		return answer.Result(), err
	}
	answer.WriteHeader(http.StatusCreated)
	_, err := answer.WriteString(`{"kind":"Event","apiVersion":"events.k8s.io/v1"}`)
	return answer.Result(), err
}

// TestEventIsNotLost: an Event that the API server could not take is written later.
func TestEventIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &timesOut{}
		ctx, cancel := context.WithCancel(t.Context())
		broadcaster, err := NewEventBroadcaster(ctx, &rest.Config{Host: "http://api"}, &http.Client{Transport: server})
		must(t, err)
		machine := &corev1.ObjectReference{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: where, Name: "m"}
		broadcaster.NewRecorder(clientgoscheme.Scheme, "holdfast").Eventf(machine, nil, corev1.EventTypeNormal, "MemberRemoved", "remove-voter", "gone")
		<-time.After(time.Minute) // by the bubble's clock
		if asked := server.asked.Load(); asked != 2 {
			t.Errorf("the API server was asked %d times", asked)
		}
		broadcaster.Shutdown()
		cancel()
	})
}
