package registrations

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// lookEvery is how often the registrations are read, whatever the watch says.
	lookEvery = 5 * time.Second
	// readBound is how long the API server may take for one of them.
	readBound = 2 * time.Second
	// writeBound is how long it may take to store one: it compiles all conditions, which takes seconds where the host is busy.
	writeBound = 10 * time.Second
)

// Live is what the webhook configurations hold now, as this replica's Registrar read them last. Where the API server does not
// answer, the last answer stands.
type Live struct {
	mu      sync.Mutex
	bundles map[string]map[string][]byte // by the configuration's kind, then by the webhook's name; nil for one that does not exist
}

// saw takes what was read.
func (l *Live) saw(kind string, there bool, o client.Object) {
	var bundles map[string][]byte
	if there {
		bundles = map[string][]byte{}
		for name, w := range entries(o) {
			bundles[name] = w.client.CABundle
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bundles == nil {
		l.bundles = map[string]map[string][]byte{}
	}
	l.bundles[kind] = bundles
}

var errUnread = errors.New("the registrations have not been read yet: the API server does not answer, or does not let this user get them")

// all are the bundles by the webhooks' names, once both configurations have been read.
func (l *Live) all() (bundles map[string][]byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.bundles) < 2 {
		return nil, errUnread
	}
	bundles = map[string][]byte{}
	for _, of := range l.bundles {
		maps.Copy(bundles, of)
	}
	return bundles, nil
}

// trusts says why the registrations do not vouch for a certificate, nil if all that are there do: where
// one is missing, the API server does not call.
func (l *Live) trusts(c *tls.Certificate, host string, now time.Time) error {
	bundles, err := l.all()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(bundles)) {
		if err := verify(c, host, bundles[name], now); err != nil {
			return fmt.Errorf("the caBundle of webhook %s does not vouch for the certificate that this replica serves for %s: %w", name, host, err)
		}
	}
	return nil
}

// registered says what is not registered at all, nil if both configurations are there. One webhook more
// or less in them is no matter: the elected replica may be of another version.
func (l *Live) registered() error {
	bundles, err := l.all()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(l.bundles)) {
		if l.bundles[kind] == nil {
			return fmt.Errorf("%s %s does not exist yet; Holdfast makes it", kind, Name)
		}
	}
	if len(bundles) == 0 {
		return errors.New("no webhook is registered; Holdfast puts them back")
	}
	return nil
}

// uncalled reports whether no API server calls this, because nothing is registered.
func (l *Live) uncalled() bool {
	bundles, err := l.all()
	return err == nil && len(bundles) == 0
}

// every calls a function at once, at each tick and whenever it is woken, until the context ends.
func every(ctx context.Context, interval time.Duration, wake <-chan struct{}, do func()) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-tick.C:
		}
	}
}

// trouble is an error that may last.
type trouble struct {
	mu   sync.Mutex
	text string
	said time.Time
}

// news reports whether to log an error, nil for none: the first one, one that differs from the last, and once a minute one that lasts.
func (t *trouble) news(err error) bool {
	text := fmt.Sprint(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	if text == t.text && (err == nil || time.Since(t.said) < time.Minute) {
		return false
	}
	t.text, t.said = text, time.Now()
	return true
}

// say logs an error that is news. The end of the context is none.
func (t *trouble) say(ctx context.Context, log logr.Logger, err error, message string, about ...any) {
	if ctx.Err() == nil && t.news(err) && err != nil {
		log.Error(err, message, about...)
	}
}
