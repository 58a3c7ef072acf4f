package registrations

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/observe"
)

// Shared is what all replicas have to know of the registrations, and what a new one could learn only from
// the registrations themselves, which anybody may have edited. It is kept in a Secret:
//
//   - the tokens: the first segment of the path under which the webhooks are called. Whoever does not know one gets
//     no answer. Old ones are good for a while after a new one is registered;
//   - the CAs that Trust holds, and until when, so that a replica that starts after a change of the CA knows the one
//     before.
//
// Every replica reads it. The elected one writes it, and registers what it says afterwards; a replica that finds none makes it.
// To have the old tokens and CAs forgotten, a person deletes the Secret.
type Shared struct {
	Secret client.ObjectKey
	API    client.WithWatch // without a cache
	Trust  *Trust           // nil where another operator fills in caBundle
	Clock  clock.PassiveClock
	Log    logr.Logger

	using       sync.Mutex // while the Secret is read or written: what was read before a write is not taken after it
	mu          sync.Mutex // for what follows
	record      record
	uid         types.UID            // of the Secret that was read last, "" before
	seen        map[string]time.Time // since when this replica knows a token of the record
	forgot      []token              // those of a Secret that was deleted
	forgotUntil time.Time            // they are good until the next one is registered
	wake        chan struct{}
	trouble     trouble
}

// record is the Secret's content.
type record struct {
	Tokens      []token      `json:"tokens"` // the newest last
	Authorities []recordedCA `json:"authorities,omitempty"`
}

type token struct {
	Token string    `json:"token"` // a segment of a Service's path takes small letters and digits alone
	Made  time.Time `json:"made"`
}

// recordedCA is a CA that the registrations hold.
type recordedCA struct {
	Certificate string     `json:"certificate"`     // PEM
	Until       *time.Time `json:"until,omitempty"` // nil for one in use
}

const (
	recordKey = "shared.json"
	// tokenLife is how long a token is registered: as long as a certificate that Holdfast issues.
	tokenLife = leafDuration
	// tokenSettle is how long a token is known before it is registered: each replica is to know it by then.
	tokenSettle = 10 * time.Second
	// tokenOverlap is how long the one before is good after that: an API server may not have heard of the new one.
	tokenOverlap = time.Hour
	// tokensMost is how many there are at most.
	tokensMost = 3
	// forgetting is how long what is forgotten may still be in use.
	forgetting = time.Minute
)

// NewShared has read nothing yet.
func NewShared(secret client.ObjectKey, api client.WithWatch, trust *Trust, c clock.PassiveClock, log logr.Logger) *Shared {
	return &Shared{Secret: secret, API: api, Trust: trust, Clock: c, Log: log, wake: make(chan struct{}, 1)}
}

// Start reads the Secret until the context ends.
func (s *Shared) Start(ctx context.Context) error {
	ctx = logr.NewContext(ctx, s.Log)
	secrets := corev1.SchemeGroupVersion.WithKind("SecretList")
	go observe.Follow(ctx, s.API, secrets, func() { observe.Wake(s.wake) }, client.InNamespace(s.Secret.Namespace), client.MatchingFields{"metadata.name": s.Secret.Name})
	return every(ctx, lookEvery, s.wake, func() {
		s.using.Lock()
		_, err := s.read(ctx)
		s.using.Unlock()
		s.say(ctx, err)
	})
}

// say logs why the Secret cannot be read.
func (s *Shared) say(ctx context.Context, err error) {
	s.trouble.say(ctx, s.Log, err, "the Secret that the replicas share is not read: what it held before goes on")
}

// Check returns nil once this replica knows the paths of its webhooks.
func (s *Shared) Check(*http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.record.Tokens) == 0 {
		return fmt.Errorf("the path of the webhooks is not known yet: Secret %s has not been read", s.Secret)
	}
	return nil
}

// Known returns the path of a webhook for that of a request, which begins with a token.
func (s *Shared) Known(path string) (string, bool) {
	first, rest, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	good := func(t token) bool { return t.Token == first }
	ok = ok && (slices.ContainsFunc(s.record.Tokens, good) || s.Clock.Now().Before(s.forgotUntil) && slices.ContainsFunc(s.forgot, good))
	return "/" + rest, ok
}

// Token is the one to register: the newest that each replica has had time to read, else the oldest, "" if there is none.
func (s *Shared) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.record.Tokens) == 0 {
		return ""
	}
	return s.record.Tokens[s.settled()].Token
}

// settled is the index of the token to register; there is one. s.mu is held.
func (s *Shared) settled() int {
	for i, t := range slices.Backward(s.record.Tokens) {
		if s.Clock.Since(s.seen[t.Token]) >= tokenSettle {
			return i
		}
	}
	return 0
}

// read reads the Secret, nil if there is none, and takes what it holds.
func (s *Shared) read(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	secret := &corev1.Secret{}
	if err := s.API.Get(ctx, s.Secret, secret); apierrors.IsNotFound(err) {
		s.forget("")
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", s.Secret, err)
	}
	s.forget(secret.UID)
	r, err := parseRecord(secret.Data[recordKey])
	if err != nil {
		return secret, fmt.Errorf("Secret %s, %s: %w", s.Secret, recordKey, err)
	}
	return secret, s.take(r)
}

var errNoToken = errors.New("it holds no token")

func parseRecord(text []byte) (record, error) {
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("it cannot be read: %w", err)
	}
	for _, t := range r.Tokens {
		if len(t.Token) < 20 || strings.Trim(t.Token, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			return r, errors.New("a token in it is none: at least 20 small letters and digits of base32")
		}
	}
	if len(r.Tokens) == 0 {
		return r, errNoToken
	}
	return r, nil
}

// take makes a record this replica's own.
func (s *Shared) take(r record) error {
	s.mu.Lock()
	now := s.Clock.Now()
	seen := map[string]time.Time{}
	for _, t := range r.Tokens {
		seen[t.Token] = now
		if was, ok := s.seen[t.Token]; ok {
			seen[t.Token] = was
		} else if len(s.record.Tokens) == 0 {
			seen[t.Token] = now.Add(-tokenSettle) // nothing was known: whoever has made these has waited
		}
	}
	s.record, s.seen = r, seen
	s.mu.Unlock()
	if s.Trust == nil {
		return nil
	}
	return s.Trust.recall(r.Authorities)
}

// forget forgets what a Secret held if another one has taken its place, or none: somebody has deleted it.
func (s *Shared) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uid != "" && s.uid != uid {
		s.forgot, s.forgotUntil = s.record.Tokens, s.Clock.Now().Add(forgetting)
		s.record, s.seen = record{}, nil
		if s.Trust != nil {
			s.Trust.forget()
		}
	}
	s.uid = uid
}

// keep puts into the Secret what this replica registers next. A replica that is not elected only makes a Secret that is absent: what it
// would put in place of one that cannot be read lacks the token that the others are called with.
func (s *Shared) keep(ctx context.Context, elected bool) error {
	s.using.Lock()
	defer s.using.Unlock()
	secret, err := s.read(ctx)
	if secret == nil && err != nil || secret != nil && !elected {
		return err
	}
	next := s.next()
	data, marshalErr := json.Marshal(next)
	if marshalErr != nil {
		return fmt.Errorf("make Secret %s: %w", s.Secret, marshalErr)
	}
	if secret != nil && bytes.Equal(secret.Data[recordKey], data) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	switch {
	case secret == nil:
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Secret.Namespace, Name: s.Secret.Name, Labels: map[string]string{"app.kubernetes.io/managed-by": "holdfast"}},
			Data:       map[string][]byte{recordKey: data},
		}
		err = s.API.Create(ctx, secret)
	case ptr.Deref(secret.Immutable, false):
		// It cannot be mended. The next round makes another.
		if err := remove(ctx, s.API, secret); err != nil {
			return err
		}
		s.Log.Info("a Secret that somebody made immutable was deleted, to be made anew", "secret", s.Secret.String())
		return nil
	default:
		secret.Data = map[string][]byte{recordKey: data}
		err = s.API.Update(ctx, secret)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil // somebody was quicker; the next round reads it
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", s.Secret, err)
	}
	s.forget(secret.UID)
	return s.take(next)
}

// remove deletes an object as it was read.
func remove(ctx context.Context, api client.Writer, o client.Object) error {
	err := api.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID()), ResourceVersion: new(o.GetResourceVersion())})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return nil
}

// next is what the Secret is to hold now.
func (s *Shared) next() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Clock.Now()
	out := record{Tokens: slices.Clone(s.record.Tokens)}
	if i := s.settled(); i > 0 && s.Clock.Since(s.seen[out.Tokens[i].Token]) >= tokenSettle+tokenOverlap {
		out.Tokens = out.Tokens[i:] // those before are in no registration for long
	}
	if n := len(out.Tokens); n == 0 || now.Sub(out.Tokens[n-1].Made).Abs() >= tokenLife {
		out.Tokens = append(out.Tokens, token{Token: strings.ToLower(rand.Text()), Made: now.UTC().Truncate(time.Second)})
	}
	out.Tokens = out.Tokens[max(0, len(out.Tokens)-tokensMost):]
	if s.Trust != nil {
		out.Authorities = s.Trust.record()
	}
	return out
}
