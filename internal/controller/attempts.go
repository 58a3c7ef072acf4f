package controller

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/client-go/util/workqueue"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// attempts are what is tried and does not get done: since when, why not, and when each is tried again. One that fails does not
// slow the others down. The zero value is none.
type attempts struct {
	backoff workqueue.TypedRateLimiter[string]
	failed  map[string]trial // by what is tried
}

type trial struct {
	quorum.Failure
	fails bool      // it is no delay, or one that lasts
	pause time.Time // when to try again
}

// longDelay is how long a reason that passes may last until it counts as a failure.
const longDelay = 10 * time.Second

// pausing says whether it is too early to try something again.
func (a *attempts) pausing(what string, now time.Time) bool { return now.Before(a.failed[what].pause) }

// resume is when the first of what is tried is tried again, and no later than requeueIdle from now.
func (a *attempts) resume(now time.Time) time.Duration {
	first := requeueIdle
	for _, one := range a.failed {
		if left := one.pause.Sub(now); left > 0 {
			first = min(first, left)
		}
	}
	return max(first, requeueSoon)
}

// after notes what came of an attempt; passes says that what kept it from getting done is expected to pass.
func (a *attempts) after(f quorum.Failure, now time.Time, err error, passes bool) {
	if a.failed == nil {
		a.backoff, a.failed = newBackoff[string](), map[string]trial{}
	}
	if err == nil {
		a.forget(f.What)
		return
	}
	was, again := a.failed[f.What]
	f.Since, f.Why = now, sentence(err)
	if again {
		f.Since = was.Since
	}
	one := trial{Failure: f, fails: !passes || now.Sub(f.Since) >= longDelay}
	if one.fails {
		one.pause = now.Add(a.backoff.When(f.What))
	}
	a.failed[f.What] = one
}

// sentence is an error that others had a part in, as of a webhook, fit for an Event, a message and a file.
func sentence(err error) string {
	const most = 500
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(err.Error(), "?"))
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	return text
}

func (a *attempts) forget(what string) {
	if a.failed != nil {
		delete(a.failed, what)
		a.backoff.Forget(what)
	}
}

// keep forgets what is not to be done any more.
func (a *attempts) keep(due func(what string) bool) {
	for what := range a.failed {
		if !due(what) {
			a.forget(what)
		}
	}
}

// failures are those that are more than a delay.
func (a *attempts) failures() []quorum.Failure {
	var out []quorum.Failure
	for _, what := range slices.Sorted(maps.Keys(a.failed)) {
		if one := a.failed[what]; one.fails {
			out = append(out, one.Failure)
		}
	}
	return out
}
