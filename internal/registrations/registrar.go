package registrations

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/observe"
)

// Registrar reconciles the registrations with the flags: the webhook configurations, the policies and their bindings. (Neither a webhook
// nor a policy is asked about its own removal.) It checks each of them when it changes and every few seconds, and writes it only if
// something of Holdfast's differs: other people's labels and annotations stay. Every replica runs it.
//
// The elected replica decides what the registrations contain. During an upgrade replicas have two versions or different flags,
// and must not fight. So a replica that is not elected creates a registration that is absent, and restores an edited one only
// if no replica is elected and it saw the registration up to date while one was.
type Registrar struct {
	API     client.WithWatch // without a cache
	Metrics *Metrics
	Live    *Live // gets what the webhook configurations contain; nil for none
	Log     logr.Logger
	Writing *Writing // nil: it writes nothing, and reports which registrations exist

	elected atomic.Bool
	again   time.Duration // how often each is checked, if the watch is silent
	once    sync.Once
	kept    map[string]*memory // by kind and name
	calls   testCalls
}

// Writing is what a Registrar needs to write the registrations.
type Writing struct {
	Options Options
	Events  events.EventRecorder
	// LedAgo is how long ago another replica was seen to be elected. That one may still be elected until LedAgo is longer than Lease.
	LedAgo      func() time.Duration
	Lease       time.Duration
	Annotations map[string]string // name an operator that fills in caBundle; without them Trust has the bundle
	Trust       *Trust            // nil where such an operator fills in caBundle
	Shared      *Shared           // has the path of the webhooks, and shares Trust's certificates among the replicas; nil: their own paths
	// Proof makes a test call through the API server. Its error says why the API server does not reach the webhooks. The
	// webhooks fail closed (failurePolicy Fail) only after a call has succeeded. Only the elected replica calls it.
	Proof func(context.Context) error
}

// current returns Options with the path and the CA as they are now, and whether one of them is not known yet.
func (w *Writing) current() (o Options, early bool) {
	o = w.Options
	if w.Shared != nil {
		o.Token = w.Shared.Token()
	}
	if w.Trust != nil {
		o.CABundle = w.Trust.Bundle()
	}
	return o, w.Shared != nil && o.Token == "" || w.Trust != nil && o.CABundle == nil
}

// memory is what is known of one registration. Only that registration's loop uses it, except for wake and confirmed.
type memory struct {
	wake       chan struct{}
	limiter    *rate.Limiter // of restores
	trouble    trouble       // with reading and writing it
	lastWanted any           // its contents at the last write, or when it was last up to date,
	lastStored any           // and what the API server stored of them
	confirmed  atomic.Bool   // it has been up to date, and no other replica may have changed it since
}

func (m *memory) remember(wanted, stored any, confirmed bool) {
	m.lastWanted, m.lastStored = wanted, stored
	m.confirmed.Store(confirmed)
}

// object is one of the registrations.
type object struct {
	kind, name string
	live       client.Object
	want       client.Object
	early      bool // the path or the CA is not known yet
}

func (o *object) key() string { return o.kind + "/" + o.name }

// called reports whether it has webhooks, which the API server calls.
func (o *object) called() bool { return len(entries(o.want)) > 0 }

// Start checks the registrations, and writes them where that is needed, until the context ends.
func (k *Registrar) Start(ctx context.Context) error {
	k.begin()
	ctx = logr.NewContext(ctx, k.Log)
	var loops sync.WaitGroup
	for _, o := range k.objects() {
		wake := k.kept[o.key()].wake
		if k.Writing != nil || k.Live != nil {
			list := admissionregistrationv1.SchemeGroupVersion.WithKind(o.kind + "List")
			go observe.Follow(ctx, k.API, list, func() { observe.Wake(wake) }, client.MatchingFields{"metadata.name": o.name})
		}
		loops.Go(func() { _ = every(ctx, k.again, wake, func() { k.check(ctx, o.key()) }) })
	}
	loops.Go(func() { _ = every(ctx, k.again, k.calls.wake, func() { k.prove(ctx) }) })
	loops.Wait()
	return nil
}

// Lead makes it the elected replica's until the context ends.
func (k *Registrar) Lead(ctx context.Context) error {
	k.begin()
	k.calls.mu.Lock()
	k.calls.last = time.Time{}
	k.calls.mu.Unlock()
	k.elected.Store(true)
	k.wake()
	<-ctx.Done()
	k.calls.mu.Lock()
	defer k.calls.mu.Unlock()
	k.elected.Store(false)
	k.Metrics.reached.Reset() // another replica reports it now
	return nil
}

func (k *Registrar) begin() {
	k.once.Do(func() {
		k.again = cmp.Or(k.again, lookEvery)
		k.kept, k.calls.proven, k.calls.wake = map[string]*memory{}, map[string]bool{}, make(chan struct{}, 1)
		for _, o := range k.objects() {
			// If somebody keeps changing a registration, it is restored each time, but not in a hot loop.
			k.kept[o.key()] = &memory{wake: make(chan struct{}, 1), limiter: rate.NewLimiter(rate.Every(time.Second), 16)}
		}
		if k.Writing != nil && k.Writing.Trust != nil {
			k.Writing.Trust.OnChange(k.wake)
		}
	})
}

// wake starts a check of each registration.
func (k *Registrar) wake() {
	for _, m := range k.kept {
		observe.Wake(m.wake)
	}
	observe.Wake(k.calls.wake)
}

// objects are the registrations as they are wanted.
func (k *Registrar) objects() []object {
	o, early := Options{Identities: admission.Identities{MachineAPI: []string{""}}}, false // enough for kinds and names
	if k.Writing != nil {
		o, early = k.Writing.current()
	}
	mutating, validating := Registrations(o)
	out := []object{
		{kind: mutating.Kind, name: Name, live: &admissionregistrationv1.MutatingWebhookConfiguration{}, want: mutating, early: early},
		{kind: validating.Kind, name: Name, live: &admissionregistrationv1.ValidatingWebhookConfiguration{}, want: validating, early: early},
	}
	for _, p := range o.policies() {
		b := o.binding(p.Name)
		out = append(out,
			object{kind: p.Kind, name: p.Name, live: &admissionregistrationv1.ValidatingAdmissionPolicy{}, want: p},
			object{kind: b.Kind, name: b.Name, live: &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, want: b})
	}
	return out
}

func (k *Registrar) object(key string) object {
	all := k.objects()
	return all[slices.IndexFunc(all, func(o object) bool { return o.key() == key })]
}

// validatingKey is that of the webhooks that may fail closed.
const validatingKey = "ValidatingWebhookConfiguration/" + Name

// check reads a registration and writes it if it is not as wanted. If it cannot be read or written, the next check tries again.
func (k *Registrar) check(ctx context.Context, key string) {
	o := k.object(key)
	if w := k.Writing; w != nil && w.Shared != nil && o.called() && (k.elected.Load() || w.Shared.Token() == "") {
		w.Shared.say(ctx, w.Shared.keep(ctx, k.elected.Load()))
		o = k.object(key)
	}
	there, err := k.read(ctx, &o)
	if err == nil {
		if k.Writing != nil && !o.early {
			there, err = k.reconcile(ctx, &o, there)
		}
		k.report(&o, there, err == nil)
	} else if apierrors.IsForbidden(err) { // that lasts, and what was true before says nothing
		k.report(&o, false, false)
	}
	k.kept[key].trouble.say(ctx, k.Log, err, "cannot check or repair a webhook registration", "kind", o.kind, "name", o.name)
	if key == validatingKey {
		observe.Wake(k.calls.wake)
	}
}

func (k *Registrar) read(ctx context.Context, o *object) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	err = k.API.Get(ctx, client.ObjectKey{Name: o.name}, o.live)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	if k.Live != nil && o.called() {
		k.Live.saw(o.kind, err == nil, o.live)
	}
	return err == nil, nil
}

// state is how a registration differs from what this replica wants.
type state int

const (
	upToDate state = 1 + iota // it does not differ
	missing                   // it does not exist, and is not confirmed
	outdated                  // it is as Holdfast wrote it, or not confirmed, and another content is wanted now
	edited                    // somebody changed or deleted it after it was confirmed
	notOurs                   // it differs, and another replica decides about it
)

// reconcile writes a registration if it is not as wanted, and returns whether it exists then. o.live is what the API server has,
// whether the write succeeded or not.
func (k *Registrar) reconcile(ctx context.Context, o *object, there bool) (bool, error) {
	k.mergeLive(o, there)
	m, w, elected, ledAgo := k.kept[o.key()], k.Writing, k.elected.Load(), k.Writing.LedAgo()
	want, have := w.contents(o.want), w.contents(o.live)
	equal := equality.Semantic.DeepEqual
	annotated := there && maps.Equal(o.live.GetAnnotations(), o.want.GetAnnotations())
	untouched := annotated && equal(have, m.lastStored)
	is := missing
	switch {
	case annotated && equal(want, have), untouched && equal(want, m.lastWanted): // the API server may add a default that this version does not know
		is = upToDate
	case there && !elected && (ledAgo <= w.Lease || !m.confirmed.Load()):
		is = notOurs
	case m.confirmed.Load() && !untouched:
		is = edited
	case there:
		is = outdated
	}
	switch is {
	case upToDate:
		// Not confirmed while the elected replica may be gone: a new one may already have written something else. The rest of the Lease
		// is the time that the new one needs to see what this one saw.
		m.remember(want, have, elected || ledAgo < w.Lease/3 || m.confirmed.Load())
		return true, nil
	case notOurs:
		if ledAgo <= w.Lease {
			m.confirmed.Store(false) // the elected replica wrote it, or will restore it
		}
		return true, nil
	case edited:
		turn := m.limiter.Reserve()
		if wait := turn.Delay(); wait > 0 {
			turn.Cancel()
			time.AfterFunc(wait, func() { observe.Wake(m.wake) })
			return there, nil
		}
	case missing, outdated: // written at once, without a limit
	}
	ctx, cancel := context.WithTimeout(ctx, writeBound)
	defer cancel()
	// Not server-side apply: it would leave what another manager added, such as one more match condition, which may be "false".
	var err error
	if there {
		err = k.API.Update(ctx, o.want)
	} else {
		err = k.API.Create(ctx, o.want)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return there, nil // somebody else wrote it first; the watch starts the next check
	}
	if err != nil {
		return there, fmt.Errorf("write %s %s: %w", o.kind, o.name, err)
	}
	o.live = o.want
	// A replica that is not elected does not count its own write as up to date: another replica may want something else.
	m.remember(want, w.contents(o.live), elected || m.confirmed.Load())
	k.wrote(o, is)
	return true, nil
}

// wrote reports that a registration was written, by a log line, an Event and, for a restored one, a metric.
func (k *Registrar) wrote(o *object, was state) {
	kind, reason, action, text := corev1.EventTypeNormal, "RegistrationUpdated", "Update", "brought up to date"
	switch was {
	case edited:
		kind, reason, action, text = corev1.EventTypeWarning, "RegistrationRestored", "Restore", "put back as it was: somebody had changed or deleted it"
		k.Metrics.restored.WithLabelValues(o.kind, o.name).Inc()
	case missing:
		reason, action, text = "RegistrationCreated", "Create", "created"
	case upToDate, outdated, notOurs:
	}
	k.Log.Info("registration "+text, "kind", o.kind, "name", o.name)
	k.Writing.Events.Eventf(&corev1.ObjectReference{
		APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: o.kind, Name: o.name, UID: o.live.GetUID(),
	}, nil, kind, reason, action, "%s %s was %s.", o.kind, o.name, text)
}

// report sets the metrics of a registration: whether it exists and is as wanted.
func (k *Registrar) report(o *object, there, correct bool) {
	present := func(kind, name string, is bool) {
		k.Metrics.present.WithLabelValues(kind, name).Set(one(is && correct))
	}
	kinds := map[string]string{"ValidatingAdmissionPolicy": "policy", "ValidatingAdmissionPolicyBinding": "binding"}
	if kind := kinds[o.kind]; kind != "" {
		present(kind, o.name, there)
		return
	}
	live := entries(o.live)
	for name, want := range entries(k.object(o.key()).want) { // o.want has the failure policies of before Proof
		w, registered := live[name]
		present("webhook", name, registered)
		if want.failsClosed() {
			k.Metrics.enforced.WithLabelValues(name).Set(one(registered && w.failsClosed()))
		}
	}
}
