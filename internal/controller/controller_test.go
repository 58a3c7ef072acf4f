package controller

import (
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/holdfast-dev/holdfast/internal/etcd"
)

// TestPassing: what etcd refuses for now and what it may have done is no failure; anything else is.
func TestPassing(t *testing.T) {
	for _, err := range []error{
		rpctypes.ErrMemberLearnerNotReady, rpctypes.ErrTooManyLearners, rpctypes.ErrUnhealthy,
		rpctypes.ErrMemberNotFound, etcd.ErrAmbiguous, etcd.ErrLockLost,
	} {
		if !errors.As(transient(fmt.Errorf("promote: %w", err)), new(notYet)) {
			t.Errorf("%v counts as a failure", err)
		}
	}
	if err := transient(rpctypes.ErrPermissionDenied); errors.As(err, new(notYet)) {
		t.Errorf("%v counts as transient", err)
	}
	if err := transient(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}
