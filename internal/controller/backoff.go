package controller

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

// How soon to look again. Changes of Machines and Nodes wake the reconciler besides; etcd notifies
// no watcher of its own progress, so that is polled.
const (
	requeueNow   = time.Millisecond       // something was just done
	requeueAgain = 50 * time.Millisecond  // a second look is all that is missing
	requeueSoon  = 100 * time.Millisecond // something is under way
	requeueIdle  = 10 * time.Second       // at rest
	noteInterval = 5 * time.Second        // between two messages of one note
)

// newBackoff is how long to wait before what failed is tried again: requeueSoon, doubled at each failure, up to requeueIdle. There are
// two: that of the workqueue, for a round that could not look at all, and one for each action that a plan has and that fails
// (attempts), so that one does not slow the others down.
func newBackoff[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](requeueSoon, requeueIdle)
}
