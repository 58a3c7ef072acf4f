package controller

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Hedge sends a read again, beside the first, when the API server does not answer, and takes the first good answer. It does so
// for hedgeFor after [Hedge.Begin]: when a member of etcd has just been removed, an API server can hang for seconds on what it had asked
// that member, or until it is connected to another (docs/proof/bench.md, "What clients wait"). At all other times no read is sent twice,
// for that would be more load for an API server that is slow. The zero value is ready, a nil one does nothing.
type Hedge struct{ until atomic.Int64 } // Unix time in nanoseconds

const (
	hedgeFor   = 10 * time.Second
	hedgeAfter = 200 * time.Millisecond // without an answer
	hedgeMost  = 4                      // times that a read is sent
)

// Begin says that a member has just left etcd.
func (h *Hedge) Begin() {
	if h != nil {
		h.until.Store(time.Now().Add(hedgeFor).UnixNano())
	}
}

// Wrap is a transport to the API server that hedges reads. Watches and writes it leaves alone.
func (h *Hedge) Wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet || r.URL.Query().Has("watch") || time.Now().UnixNano() >= h.until.Load() {
			return next.RoundTrip(r)
		}
		return hedge(r, next)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// attempt is one sending of a request.
type attempt struct {
	cancel   context.CancelFunc
	response *http.Response
	err      error
}

// Close ends the attempt: its answer has been read, or is not wanted.
func (a *attempt) Close() error {
	defer a.cancel()
	if a.response == nil {
		return nil
	}
	return a.response.Body.Close()
}

// bad says whether another attempt may get a better answer.
func (a *attempt) bad() bool {
	return a.err != nil || a.response.StatusCode >= http.StatusInternalServerError
}

func hedge(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	var all []*attempt
	answered, pending := make(chan *attempt, hedgeMost), 0
	send := func() {
		ctx, cancel := context.WithCancel(r.Context())
		a := &attempt{cancel: cancel}
		all = append(all, a)
		pending++
		go func() {
			a.response, a.err = next.RoundTrip(r.Clone(ctx)) //nolint:bodyclose // attempt.Close closes it, or the caller who gets it from taken
			answered <- a
		}()
	}
	again := time.NewTicker(hedgeAfter)
	defer again.Stop()
	send()
	for {
		select {
		case <-again.C:
			if len(all) < hedgeMost {
				send()
			}
		case a := <-answered:
			pending--
			if a.bad() && r.Context().Err() == nil && (pending > 0 || len(all) < hedgeMost) {
				_ = a.Close()
				if len(all) < hedgeMost {
					send()
				}
				continue
			}
			for _, other := range all {
				if other != a {
					other.cancel()
				}
			}
			go func() {
				for range pending {
					_ = (<-answered).Close()
				}
			}()
			return a.taken()
		}
	}
}

// taken returns the answer. The attempt ends when the caller closes its body.
func (a *attempt) taken() (*http.Response, error) {
	if a.err != nil {
		a.cancel()
		return nil, a.err
	}
	answer := *a.response
	answer.Body = struct {
		io.Reader
		io.Closer
	}{a.response.Body, a}
	return &answer, nil
}
