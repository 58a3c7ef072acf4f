package main

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
)

// drain is the time between the signal to stop and the stop. API servers go on using the connections that they
// have, and open new ones until they hear that this replica is not ready any more. So it answers meanwhile, and
// has each connection that is used closed after its answer, in order: HTTP/2's GOAWAY. A server that just stops
// closes connections without activity at once, and a request that is on its way to one is lost.
type drain struct {
	delay time.Duration
	begun atomic.Bool
}

func (d *drain) bind(f *pflag.FlagSet) {
	f.DurationVar(&d.delay, "shutdown-delay", 0, "how long to go on answering after the signal to stop, not ready any more, until API servers ask another replica")
}

// context ends the delay after ctx.
func (d *drain) context(ctx context.Context) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		d.begun.Store(true)
		time.AfterFunc(d.delay, cancel)
	})
	return later, func() { stop(); cancel() }
}

// ready is a check for /readyz.
func (d *drain) ready(*http.Request) error {
	if d.begun.Load() {
		return errors.New("this replica is stopping")
	}
	return nil
}

// handler closes connections from the signal on.
func (d *drain) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.begun.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
