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

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/observe"
)

// Registrar keeps the registrations as the flags have them: the webhook configurations, the policies and
// their bindings. Neither a webhook nor a policy sees its own removal. It looks when one of them changes
// and every few seconds, at each on its own, and writes only where something of Holdfast's differs: other
// people's labels and annotations stay. Every replica runs it.
//
// The elected replica decides what they are like. Replicas may be of two versions or have other flags, as in
// an upgrade, and must not fight. So one that is not elected makes what is absent, and puts back what
// is edited only while nobody is elected, and only if it was right for this replica when somebody was last.
//
// Without Options it only looks, and tells which are there.
type Registrar struct {
	API     client.WithWatch // without a cache
	Metrics *Metrics
	Live    *Live // is told what the webhook configurations hold; nil for none
	Log     logr.Logger

	// What follows is for keeping.
	Options *Options
	// LedAgo is when another replica was last seen to be elected. It may still be until Lease after that, and no longer.
	LedAgo func() time.Duration
	Lease  time.Duration
	// Annotations make somebody else fill in caBundle, which is then theirs alone; else it is Trust's.
	Annotations map[string]string
	Trust       *Trust
	// Shared has the path under which the webhooks are called, and what another replica is to know of Trust. Nil:
	// they are called under their own paths.
	Shared *Shared
	Events events.EventRecorder
	// Proof shows that the API server reaches the webhooks, so that what must not pass without them may be
	// refused: an error says why it is not shown. The elected replica asks for it.
	Proof func(context.Context) error

	elected atomic.Bool
	again   time.Duration // how often it looks, whatever the watch says
	once    sync.Once
	kept    map[string]*memory // by kind and name
	ask     chan struct{}      // wakes prove

	mu     sync.Mutex      // for what follows
	proven map[string]bool // by the name of a webhook that is to fail closed: it was seen to do so, or Proof was given
	open   []string        // the webhooks that are to fail closed, and do not for want of proof
	empty  bool            // the injector has not filled in the caBundle of one of them
	unsure string          // why there is no proof, as it was said last
	asked  time.Time       // for Proof
}

// memory is what is known of a kind and name. Its loop alone uses it, but for wake and right.
type memory struct {
	wake      chan struct{}
	limiter   *rate.Limiter // of what is put back
	trouble   trouble       // with reading and writing it
	want, got any           // what was wanted when it was right last, or was written, and what the API server made of that
	right     atomic.Bool   // it has been right, and no other replica may have changed it since
}

// same says whether the API server holds what is wanted. It may have filled in a default that this version does not know.
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

// called says whether it has the API server call somebody.
func (o *object) called() bool { return len(entries(o.want)) > 0 }

// Start looks, and keeps, until the context ends.
func (k *Registrar) Start(ctx context.Context) error {
	k.begin()
	ctx = logr.NewContext(ctx, k.Log)
	var loops sync.WaitGroup
	for _, o := range k.objects() {
		wake := k.kept[o.key()].wake
		if k.Options != nil || k.Live != nil {
			list := admissionregistrationv1.SchemeGroupVersion.WithKind(o.kind + "List")
			go observe.Follow(ctx, k.API, list, func() { kick(wake) }, client.MatchingFields{"metadata.name": o.name})
		}
		loops.Go(func() { _ = every(ctx, k.again, wake, func() { k.look(ctx, o.key()) }) })
	}
	loops.Go(func() { _ = every(ctx, k.again, k.ask, func() { k.prove(ctx) }) })
	loops.Wait()
	return nil
}

// Lead has it keep as the elected replica until the context ends.
func (k *Registrar) Lead(ctx context.Context) error {
	k.begin()
	k.mu.Lock()
	k.unsure, k.asked = "", time.Time{}
	k.mu.Unlock()
	k.elected.Store(true)
	k.wake()
	<-ctx.Done()
	k.elected.Store(false)
	k.Metrics.reached.Reset() // another replica tells
	return nil
}

func (k *Registrar) begin() {
	k.once.Do(func() {
		k.again = cmp.Or(k.again, lookEvery)
		k.kept, k.proven, k.ask = map[string]*memory{}, map[string]bool{}, make(chan struct{}, 1)
		for _, o := range k.objects() {
			// Whoever keeps changing a registration is answered, but not in a hot loop.
			k.kept[o.key()] = &memory{wake: make(chan struct{}, 1), limiter: rate.NewLimiter(rate.Every(time.Second), 16)}
		}
		if k.Trust != nil {
			k.Trust.OnChange(k.wake)
		}
	})
}

// wake has each of them looked at.
func (k *Registrar) wake() {
	for _, m := range k.kept {
		kick(m.wake)
	}
	kick(k.ask)
}

// objects are the registrations, as they are wanted where they are kept.
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
	for _, p := range Policies(o) {
		switch p := p.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			out = append(out, object{kind: p.Kind, name: p.Name, live: &admissionregistrationv1.ValidatingAdmissionPolicy{}, want: p})
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			out = append(out, object{kind: p.Kind, name: p.Name, live: &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, want: p})
		}
	}
	return out
}

func (k *Registrar) object(key string) object {
	all := k.objects()
	return all[slices.IndexFunc(all, func(o object) bool { return o.key() == key })]
}

// validatingKey is that of the webhooks that may fail closed.
const validatingKey = "ValidatingWebhookConfiguration/" + Name

// look looks at a registration and puts right what is not. One that cannot be read or written stays as it is until the
// next look.
func (k *Registrar) look(ctx context.Context, key string) {
	o := k.object(key)
	if k.Shared != nil && o.called() && (k.elected.Load() || k.Shared.Token() == "") {
		k.Shared.say(ctx, k.Shared.keep(ctx))
		o = k.object(key)
	}
	there, err := k.read(ctx, &o)
	if err == nil {
		if k.Options != nil && !o.early {
			there, err = k.keep(ctx, &o, there)
		}
		k.tell(&o, there, err == nil)
	}
	k.kept[key].trouble.say(ctx, k.Log, err, "cannot check or repair a webhook registration", "kind", o.kind, "name", o.name)
	if key == validatingKey {
		kick(k.ask)
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

// state is what a registration is like for a replica that is to put it right.
type state int

const (
	right    state = iota
	absent         // and it never was right
	outdated       // as Holdfast left it, which now wants something else
	edited         // somebody changed or deleted what was right
	another        // another replica is to say whether it is right
)

// keep puts a registration right, and says whether it is there then: o.live is what is there, whether it
// could be written or not.
func (k *Registrar) keep(ctx context.Context, o *object, there bool) (bool, error) {
	k.complete(o, there)
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
		// Not while the elected replica may be gone: what another one has made since is not known to be right. The rest of
		// the Lease is for that other one to see what this one saw.
		confirmed := elected || ledAgo < k.Lease/3
		m.remember(want, have, confirmed || m.right.Load())
		return true, nil
	case another:
		if ledAgo <= k.Lease {
			m.right.Store(false) // the elected replica's doing, or for it to put back
		}
		return true, nil
	case edited:
		turn := m.limiter.Reserve()
		if wait := turn.Delay(); wait > 0 {
			turn.Cancel()
			time.AfterFunc(wait, func() { kick(m.wake) })
			return there, nil
		}
	case absent, outdated: // written at once
	}
	ctx, cancel := context.WithTimeout(ctx, writeBound)
	defer cancel()
	// Not server-side apply: that leaves what another manager has added, such as one more condition, which may be "false".
	var err error
	if there {
		err = k.API.Update(ctx, o.want)
	} else {
		err = k.API.Create(ctx, o.want)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return there, nil // somebody was quicker; the watch wakes us
	}
	if err != nil {
		return there, fmt.Errorf("write %s %s: %w", o.kind, o.name, err)
	}
	o.live = o.want
	// What a replica has made that is not elected is not right for that: another one may have seen it otherwise.
	m.remember(want, k.contents(o.live), elected || m.right.Load())
	k.wrote(o, is)
	return true, nil
}

// wrote says that a registration was written, and how often one was put back.
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

// tell sets the metrics of an object: whether it is present, and correct.
func (k *Registrar) tell(o *object, there, correct bool) {
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
	names := webhookNames()[1:]
	if o.key() != validatingKey {
		names = webhookNames()[:1]
	}
	live := entries(o.live)
	for _, name := range names {
		w, registered := live[name]
		present("webhook", name, registered)
		if (name == ClosedWebhook || name == HomeWebhook) && (k.Options == nil || k.Options.Enforcement == admission.Enforce) {
			k.Metrics.enforced.WithLabelValues(name).Set(one(registered && w.failsClosed()))
		}
	}
}

// askAgain is how often it is looked whether the API server still reaches the webhooks.
const askAgain = time.Minute

var errEmpty = errors.New("the operator that the annotations name has not filled in the caBundle yet")

// prove has the webhooks that are to fail closed do so from the next look on, once it is shown that the
// API server reaches them. From then on it tells whether it still does, and lowers nothing.
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
	if ctx.Err() != nil || !k.elected.Load() {
		return
	}
	if errors.Is(err, errNoMachine) {
		k.Metrics.reached.DeleteLabelValues(ClosedWebhook) // not known
	} else {
		k.Metrics.reached.WithLabelValues(ClosedWebhook).Set(one(err == nil))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		if text := err.Error(); text != k.unsure {
			k.unsure = text
			message := "a call through the API server to the webhooks does not come back"
			if len(open) > 0 {
				message = "the webhooks fail open (failurePolicy Ignore) until a test call through the API server succeeds"
			}
			k.Log.Info(message, "reason", text)
		}
		return
	}
	k.unsure = ""
	if len(open) == 0 {
		return
	}
	for _, name := range open {
		k.proven[name] = true
	}
	k.open = nil
	k.Log.Info("a call through the API server came back from the webhooks: from now on what must not pass without them is refused while they do not answer (failurePolicy Fail)")
	kick(k.kept[validatingKey].wake)
}
