package controller

import (
	"errors"
	"maps"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"k8s.io/client-go/util/workqueue"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// attempts remembers actions that failed: since when each has failed, why, and when to try it again. Each action has its own
// pause, so that one that fails does not delay the others. The zero value is ready.
type attempts struct {
	backoff workqueue.TypedRateLimiter[string]
	failed  map[string]trial // by the name of the action
}

type trial struct {
	quorum.Failure
	fails bool      // it counts as a failure, not as a short delay
	pause time.Time // when to try again
}

// actionFailure is what the next plans know of an action that failed, all but since when and why. Refused, which lets later steps go ahead,
// is set only if etcd refuses to add a member because its voters are not connected; a refused removal does not set it.
func actionFailure(a membership.Action, err error) quorum.Failure {
	return quorum.Failure{
		Reason: string(membership.ReasonActionFails), What: a.Describe(), Machine: a.Machine,
		Refused: a.Kind() == membership.KindAddLearner && errors.Is(err, rpctypes.ErrUnhealthy),
	}
}

// mostWhy is how many bytes of an error are kept: a webhook's may be long.
const mostWhy = 500

// longDelay is how long an error that is expected to pass may last until it counts as a failure.
const longDelay = 10 * time.Second

// pausing reports whether it is too early to try something again.
func (a *attempts) pausing(what string, now time.Time) bool { return now.Before(a.failed[what].pause) }

// resume is how long to wait until the first action may be tried again, at most requeueIdle.
func (a *attempts) resume(now time.Time) time.Duration {
	first := requeueIdle
	for _, one := range a.failed {
		if left := one.pause.Sub(now); left > 0 {
			first = min(first, left)
		}
	}
	return max(first, requeueSoon)
}

// after records the result of an attempt. passes: the error is expected to pass by itself (notYet), and there is no pause until it
// has lasted for longDelay.
func (a *attempts) after(f quorum.Failure, now time.Time, err error, passes bool) {
	if a.failed == nil {
		a.backoff, a.failed = newBackoff[string](), map[string]trial{}
	}
	if err == nil {
		a.forget(f.What)
		return
	}
	was, again := a.failed[f.What]
	f.Since, f.Why = now, quorum.Clip(err.Error(), mostWhy)
	if again {
		f.Since = was.Since
	}
	one := trial{Failure: f, fails: !passes || now.Sub(f.Since) >= longDelay}
	if one.fails {
		one.pause = now.Add(a.backoff.When(f.What))
	}
	a.failed[f.What] = one
}

func (a *attempts) forget(what string) {
	if a.failed != nil {
		delete(a.failed, what)
		a.backoff.Forget(what)
	}
}

// forgetExcept forgets the failures of all actions that are no longer due.
func (a *attempts) forgetExcept(due func(what string) bool) {
	for what := range a.failed {
		if !due(what) {
			a.forget(what)
		}
	}
}

// failures are the actions that count as failed.
func (a *attempts) failures() []quorum.Failure {
	var out []quorum.Failure
	for _, what := range slices.Sorted(maps.Keys(a.failed)) {
		if one := a.failed[what]; one.fails {
			out = append(out, one.Failure)
		}
	}
	return out
}
