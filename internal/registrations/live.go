package registrations

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// lookEvery is how often the registrations are read, whatever the watch says.
	lookEvery = 5 * time.Second
	// readBound is how long the API server may take to tell of them all.
	readBound = 2 * time.Second
)

// Live is what the registrations hold now, as this replica read it last. Where the API server does not
// answer, the last answer stands. Every replica runs it.
type Live struct {
	API client.WithWatch // without a cache
	Log logr.Logger

	mu      sync.Mutex
	known   bool
	absent  string            // a configuration that is not there, "" if both are
	bundles map[string][]byte // by the webhook's name
	changed []func()
}

// NeedLeaderElection says that every replica runs it.
func (*Live) NeedLeaderElection() bool { return false }

// OnChange has a function called, which must not block, after each look.
func (l *Live) OnChange(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, f)
}

// Start looks until the context ends.
func (l *Live) Start(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	for _, kind := range [...]string{"MutatingWebhookConfigurationList", "ValidatingWebhookConfigurationList"} {
		go follow(ctx, l.API, l.Log, admissionregistrationv1.SchemeGroupVersion.WithKind(kind), client.ObjectKey{Name: Name}, func() { kick(wake) })
	}
	return every(ctx, lookEvery, wake, func() {
		if err := l.look(ctx); err != nil && ctx.Err() == nil {
			l.Log.V(1).Info("the registrations could not be read", "reason", err.Error())
		}
	})
}

// look reads both configurations.
func (l *Live) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	var (
		mutating   admissionregistrationv1.MutatingWebhookConfiguration
		validating admissionregistrationv1.ValidatingWebhookConfiguration
		absent     string
	)
	for kind, into := range map[string]client.Object{"MutatingWebhookConfiguration": &mutating, "ValidatingWebhookConfiguration": &validating} {
		if err := l.API.Get(ctx, client.ObjectKey{Name: Name}, into); apierrors.IsNotFound(err) {
			absent = kind + " " + Name
		} else if err != nil {
			return fmt.Errorf("read %s %s: %w", kind, Name, err)
		}
	}
	bundles := map[string][]byte{}
	for i := range mutating.Webhooks {
		bundles[mutating.Webhooks[i].Name] = mutating.Webhooks[i].ClientConfig.CABundle
	}
	for i := range validating.Webhooks {
		bundles[validating.Webhooks[i].Name] = validating.Webhooks[i].ClientConfig.CABundle
	}
	l.mu.Lock()
	l.known, l.absent, l.bundles = true, absent, bundles
	changed := slices.Clone(l.changed)
	l.mu.Unlock()
	for _, f := range changed {
		f()
	}
	return nil
}

var errUnread = errors.New("the registrations have not been read yet: the API server does not answer, or does not let this user get them")

// trusts says why the registrations do not vouch for a certificate, nil if all that are there do: where
// one is missing, nobody calls.
func (l *Live) trusts(c *tls.Certificate, host string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.known {
		return errUnread
	}
	for _, name := range slices.Sorted(maps.Keys(l.bundles)) {
		if err := verify(c, host, l.bundles[name], now); err != nil {
			return fmt.Errorf("the caBundle of webhook %s does not vouch for the certificate that this replica serves for %s: %w", name, host, err)
		}
	}
	return nil
}

// registered says what is not registered at all, nil if both configurations are there. One webhook more
// or less in them is no matter: the elected replica may be of another version.
func (l *Live) registered() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.known:
		return errUnread
	case l.absent != "":
		return fmt.Errorf("%s does not exist yet; Holdfast makes it", l.absent)
	case len(l.bundles) == 0:
		return errors.New("no webhook is registered; Holdfast puts them back")
	}
	return nil
}

// uncalled says whether no API server calls this, because nothing is registered.
func (l *Live) uncalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known && len(l.bundles) == 0
}

func webhookNames() []string {
	return []string{RepairWebhook, ClosedWebhook, OpenWebhook, HomeWebhook, KeeperWebhook}
}

// kick wakes whoever waits on a channel of one place.
func kick(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
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

// follow calls a function whenever the object of that kind and name changes, and when a watch begins,
// until the context ends: a new watch tells nothing of an object that was deleted before it. Why there is
// no watch is logged once.
func follow(ctx context.Context, api client.WithWatch, log logr.Logger, kind schema.GroupVersionKind, key client.ObjectKey, changed func()) {
	again := time.NewTicker(2 * time.Second)
	defer again.Stop()
	said := ""
	for {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if watcher, err := api.Watch(ctx, list, client.InNamespace(key.Namespace), client.MatchingFields{"metadata.name": key.Name}); err == nil {
			said = ""
			changed()
			for range watcher.ResultChan() {
				changed()
			}
			watcher.Stop()
		} else if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			log.Info("it cannot be watched, and is only looked at every few seconds", "kind", strings.TrimSuffix(kind.Kind, "List"), "name", key.Name, "reason", text)
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}
