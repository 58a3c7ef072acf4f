package registrations

import (
	"cmp"
	"context"
	"errors"
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

	"github.com/holdfast-dev/holdfast/internal/observe"
)

// Registrar reconciles the registrations with the flags: the webhook configurations, the policies and
// their bindings. (Neither a webhook nor a policy is asked about its own removal.) It checks each of them when it changes
// and every few seconds, and writes it only if something of Holdfast's differs: other
// people's labels and annotations stay. Every replica runs it.
//
// The elected replica decides what the registrations contain. During an upgrade replicas have two versions or different flags,
// and must not fight. So a replica that is not elected creates a registration that is absent, and restores an edited one only
// if no replica is elected and it saw the registration up to date while one was.
//
// Without Options it writes nothing, and reports which of them exist.
type Registrar struct {
	API     client.WithWatch // without a cache
	Metrics *Metrics
	Live    *Live // gets what the webhook configurations contain; nil for none
	Log     logr.Logger

	// What follows is for writing them.
	Options *Options
	// LedAgo is how long ago another replica was seen to be elected. That one may still be elected until LedAgo is longer than Lease.
	LedAgo func() time.Duration
	Lease  time.Duration
	// Annotations name an operator that fills in caBundle. Without them Trust has the bundle.
	Annotations map[string]string
	Trust       *Trust
	// Shared has the path under which the webhooks are called, and shares Trust's certificates among the replicas. Nil:
	// the webhooks are called under their own paths.
	Shared *Shared
	Events events.EventRecorder
	// Proof makes a test call through the API server. Its error says why the API server does not reach the webhooks. The
	// webhooks fail closed (failurePolicy Fail) only after a call has succeeded. Only the elected replica calls it.
	Proof func(context.Context) error

	elected atomic.Bool
	again   time.Duration // how often each is checked, if the watch is silent
	once    sync.Once
	kept    map[string]*memory // by kind and name
	ask     chan struct{}      // wakes prove

	mu     sync.Mutex      // for what follows
	proven map[string]bool // the webhooks that were seen to fail closed, or for which Proof succeeded; by name
	open   []string        // the webhooks that will fail closed once Proof succeeds
	empty  bool            // one of them has no caBundle yet from the operator that Annotations name
	asked  time.Time       // when Proof was last called

	unsure trouble // with Proof
}

// memory is what is known of one registration. Only that registration's loop uses it, except for wake and right.
type memory struct {
	wake      chan struct{}
	limiter   *rate.Limiter // of restores
	trouble   trouble       // with reading and writing it
	want, got any           // at the last write, or when it was last up to date: what was wanted, and what the API server stored
	right     atomic.Bool   // it has been up to date, and no other replica may have changed it since
}

// same reports whether the API server has stored what is wanted. It may have added a default that this version does not know.
func (m *memory) same(want, have any) bool {
	return equality.Semantic.DeepEqual(want, have) || equality.Semantic.DeepEqual(want, m.want) && equality.Semantic.DeepEqual(have, m.got)
}

func (m *memory) remember(want, got any, right bool) {
	m.want, m.got = want, got
	m.right.Store(right)
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
		if k.Options != nil || k.Live != nil {
			list := admissionregistrationv1.SchemeGroupVersion.WithKind(o.kind + "List")
			go observe.Follow(ctx, k.API, list, func() { observe.Wake(wake) }, client.MatchingFields{"metadata.name": o.name})
		}
		loops.Go(func() { _ = every(ctx, k.again, wake, func() { k.check(ctx, o.key()) }) })
	}
	loops.Go(func() { _ = every(ctx, k.again, k.ask, func() { k.prove(ctx) }) })
	loops.Wait()
	return nil
}

// Lead makes it the elected replica's until the context ends.
func (k *Registrar) Lead(ctx context.Context) error {
	k.begin()
	k.mu.Lock()
	k.asked = time.Time{}
	k.mu.Unlock()
	k.elected.Store(true)
	k.wake()
	<-ctx.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.elected.Store(false)
	k.Metrics.reached.Reset() // another replica reports it now
	return nil
}

func (k *Registrar) begin() {
	k.once.Do(func() {
		k.again = cmp.Or(k.again, lookEvery)
		k.kept, k.proven, k.ask = map[string]*memory{}, map[string]bool{}, make(chan struct{}, 1)
		for _, o := range k.objects() {
			// If somebody keeps changing a registration, it is restored each time, but not in a hot loop.
			k.kept[o.key()] = &memory{wake: make(chan struct{}, 1), limiter: rate.NewLimiter(rate.Every(time.Second), 16)}
		}
		if k.Trust != nil {
			k.Trust.OnChange(k.wake)
		}
	})
}

// wake starts a check of each registration.
func (k *Registrar) wake() {
	for _, m := range k.kept {
		observe.Wake(m.wake)
	}
	observe.Wake(k.ask)
}

// objects are the registrations as they are wanted.
func (k *Registrar) objects() []object {
	o := Options{}
	o.Identities.MachineAPI = []string{""} // without Options only kinds and names are asked for
	if k.Options != nil {
		o = *k.Options
	}
	if k.Shared != nil {
		o.Token = k.Shared.Token()
	}
	if k.Trust != nil {
		o.CABundle = k.Trust.Bundle()
	}
	early := k.Shared != nil && o.Token == "" || k.Trust != nil && o.CABundle == nil
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
	if k.Shared != nil && o.called() && (k.elected.Load() || k.Shared.Token() == "") {
		k.Shared.say(ctx, k.Shared.keep(ctx, k.elected.Load()))
		o = k.object(key)
	}
	there, err := k.read(ctx, &o)
	if err == nil {
		if k.Options != nil && !o.early {
			there, err = k.reconcile(ctx, &o, there)
		}
		k.report(&o, there, err == nil)
	} else if apierrors.IsForbidden(err) { // that lasts, and what was true before says nothing
		k.report(&o, false, false)
	}
	k.kept[key].trouble.say(ctx, k.Log, err, "cannot check or repair a webhook registration", "kind", o.kind, "name", o.name)
	if key == validatingKey {
		observe.Wake(k.ask)
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
	right    state = iota // it does not differ
	absent                // it does not exist, and was never seen up to date
	outdated              // it is as Holdfast wrote it, and another content is wanted now
	edited                // somebody changed or deleted it after it was up to date
	another               // it differs, and another replica decides about it
)

// reconcile writes a registration if it is not as wanted, and returns whether it exists then. o.live is what the API server has,
// whether the write succeeded or not.
func (k *Registrar) reconcile(ctx context.Context, o *object, there bool) (bool, error) {
	k.mergeLive(o, there)
	m, elected, ledAgo := k.kept[o.key()], k.elected.Load(), k.LedAgo()
	want, have := k.contents(o.want), k.contents(o.live)
	annotated := maps.Equal(o.live.GetAnnotations(), o.want.GetAnnotations())
	untouched := there && annotated && equality.Semantic.DeepEqual(have, m.got)
	is := absent
	switch {
	case there && annotated && m.same(want, have):
		is = right
	case there && !elected && (ledAgo <= k.Lease || !m.right.Load()):
		is = another
	case m.right.Load() && !untouched:
		is = edited
	case there:
		is = outdated
	}
	switch is {
	case right:
		// Not while the elected replica may be gone: a new one may already have written something else. The rest of the Lease is
		// the time that the new one needs to see what this one saw.
		confirmed := elected || ledAgo < k.Lease/3
		m.remember(want, have, confirmed || m.right.Load())
		return true, nil
	case another:
		if ledAgo <= k.Lease {
			m.right.Store(false) // the elected replica wrote it, or will restore it
		}
		return true, nil
	case edited:
		turn := m.limiter.Reserve()
		if wait := turn.Delay(); wait > 0 {
			turn.Cancel()
			time.AfterFunc(wait, func() { observe.Wake(m.wake) })
			return there, nil
		}
	case absent, outdated: // written at once, without a limit
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
	m.remember(want, k.contents(o.live), elected || m.right.Load())
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
	case absent:
		reason, action, text = "RegistrationCreated", "Create", "created"
	case right, outdated, another:
	}
	k.Log.Info("registration "+text, "kind", o.kind, "name", o.name)
	k.Events.Eventf(&corev1.ObjectReference{
		APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: o.kind, Name: o.name, UID: o.live.GetUID(),
	}, nil, kind, reason, action, "%s %s was %s.", o.kind, o.name, text)
}

// report sets the metrics of a registration: whether it exists and is as wanted.
func (k *Registrar) report(o *object, there, correct bool) {
	present := func(kind, name string, is bool) {
		k.Metrics.present.WithLabelValues(kind, name).Set(one(is && correct))
	}
	switch o.live.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		present("policy", o.name, there)
		return
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		present("binding", o.name, there)
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

// askAgain is how often Proof checks that the API server still reaches the webhooks.
const askAgain = time.Minute

var errEmpty = errors.New("the operator that the annotations name has not filled in the caBundle yet")

// prove asks for Proof. Once that succeeds, the next check writes failurePolicy Fail for the webhooks that are to fail closed. After
// that prove only reports whether the API server still reaches them: failurePolicy stays.
func (k *Registrar) prove(ctx context.Context) {
	if k.Options == nil || !k.elected.Load() || !k.kept[validatingKey].right.Load() {
		return
	}
	k.mu.Lock()
	open, empty, due := k.open, k.empty, len(k.open) > 0 || time.Since(k.asked) >= askAgain
	if due {
		k.asked = time.Now()
	}
	k.mu.Unlock()
	if !due {
		return
	}
	err := errEmpty
	if !empty {
		err = k.Proof(ctx)
	}
	k.mu.Lock() // so that Lead does not end in between: it takes the metric back
	defer k.mu.Unlock()
	if ctx.Err() != nil || !k.elected.Load() {
		return
	}
	if errors.Is(err, errNoMachine) {
		k.Metrics.reached.DeleteLabelValues(ClosedWebhook) // not known
	} else {
		k.Metrics.reached.WithLabelValues(ClosedWebhook).Set(one(err == nil))
	}
	if k.unsure.news(err) && err != nil {
		message := "a call through the API server to the webhooks does not come back"
		if len(open) > 0 {
			message = "the webhooks fail open (failurePolicy Ignore) until a test call through the API server succeeds"
		}
		k.Log.Info(message, "reason", err.Error())
	}
	if err != nil || len(open) == 0 {
		return
	}
	for _, name := range open {
		k.proven[name] = true
	}
	k.open = nil
	k.Log.Info("a call through the API server came back from the webhooks: from now on what must not pass without them is refused while they do not answer (failurePolicy Fail)")
	observe.Wake(k.kept[validatingKey].wake)
}
