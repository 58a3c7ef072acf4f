package registrations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	wakes   map[string]chan struct{} // of the loops, by kind and name
	ask     chan struct{}            // wakes prove

	mu     sync.Mutex        // for what follows; not held while the API server is asked
	kept   map[string]memory // by kind and name
	proven map[string]bool   // by the name of a webhook that is to fail closed: it was seen to do so, or Proof was given
	empty  bool              // the injector has not filled in the caBundle of one that is to fail closed
	unsure string            // why there is no proof, as it was said last
	asked  time.Time         // for Proof
}

// memory is what a kind and name was like when it was right.
type memory struct {
	limiter  *rate.Limiter // of what is put back
	want     any           // what was asked for, without what others write
	got      any           // what the API server made of it
	right    bool          // it has been right
	failed   string
	reported time.Time
}

// object is one of the registrations.
type object struct {
	kind, name string
	live       client.Object
	want       client.Object
}

func (o *object) key() string { return o.kind + "/" + o.name }

// called says whether it has the API server call somebody.
func (o *object) called() bool {
	return o.kind == "MutatingWebhookConfiguration" || o.kind == "ValidatingWebhookConfiguration"
}

// NeedLeaderElection says that every replica runs it.
func (*Registrar) NeedLeaderElection() bool { return false }

// Start looks, and keeps, until the context ends.
func (k *Registrar) Start(ctx context.Context) error {
	k.begin()
	var loops sync.WaitGroup
	for _, o := range k.objects() {
		wake := k.wakes[o.key()]
		if k.Options != nil {
			go follow(ctx, k.API, k.Log, admissionregistrationv1.SchemeGroupVersion.WithKind(o.kind+"List"), client.ObjectKey{Name: o.name}, func() { kick(wake) })
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
		k.kept, k.proven = map[string]memory{}, map[string]bool{}
		k.wakes, k.ask = map[string]chan struct{}{}, make(chan struct{}, 1)
		for _, o := range k.objects() {
			// Whoever keeps changing a registration is answered, but not in a hot loop.
			k.kept[o.key()] = memory{limiter: rate.NewLimiter(rate.Every(time.Second), 16)}
			k.wakes[o.key()] = make(chan struct{}, 1)
		}
		if k.Trust != nil {
			k.Trust.OnChange(k.wake)
		}
	})
}

// wake has each of them looked at.
func (k *Registrar) wake() {
	for _, wake := range k.wakes {
		kick(wake)
	}
	kick(k.ask)
}

// objects are the registrations, as they are wanted where they are kept.
func (k *Registrar) objects() []object {
	o := k.Options
	if o == nil {
		o = &Options{}
		o.Identities.MachineAPI = []string{""} // only kinds and names are asked for
	}
	mutating, validating := Registrations(*o)
	out := []object{
		{kind: "MutatingWebhookConfiguration", name: Name, live: &admissionregistrationv1.MutatingWebhookConfiguration{}, want: mutating},
		{kind: "ValidatingWebhookConfiguration", name: Name, live: &admissionregistrationv1.ValidatingWebhookConfiguration{}, want: validating},
	}
	for _, p := range Policies(*o) {
		switch p := p.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			out = append(out, object{kind: p.Kind, name: p.Name, live: &admissionregistrationv1.ValidatingAdmissionPolicy{}, want: p})
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			out = append(out, object{kind: p.Kind, name: p.Name, live: &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, want: p})
		}
	}
	return out
}

// look looks at a registration and puts right what is not. One that cannot be read or written stays as it is until the
// next look.
func (k *Registrar) look(ctx context.Context, key string) {
	all := k.objects()
	o := all[slices.IndexFunc(all, func(o object) bool { return o.key() == key })]
	there, err := k.read(ctx, o.name, o.live)
	if err == nil {
		if k.Options != nil {
			there, err = k.keep(ctx, &o, there)
		}
		k.tell(&o, there, err == nil)
	}
	k.report(&o, err)
	if o.key() == validatingKey {
		kick(k.ask)
	}
}

// validatingKey is that of the webhooks that may fail closed.
const validatingKey = "ValidatingWebhookConfiguration/" + Name

// remembered is what a registration was like when it was right.
func (k *Registrar) remembered(o *object) memory {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[o.key()]
}

// remember changes that.
func (k *Registrar) remember(o *object, change func(*memory)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := k.kept[o.key()]
	change(&m)
	k.kept[o.key()] = m
}

// report says that something went wrong, when it is something else or some minutes later.
func (k *Registrar) report(o *object, err error) {
	k.remember(o, func(m *memory) {
		if err == nil || apierrors.IsConflict(err) {
			if err == nil {
				m.failed = ""
			}
		} else if text := err.Error(); text != m.failed || time.Since(m.reported) > time.Minute {
			m.failed, m.reported = text, time.Now()
			k.Log.Error(err, "cannot check or repair a webhook registration", "kind", o.kind, "name", o.name)
		}
	})
}

func (k *Registrar) read(ctx context.Context, name string, into client.Object) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	err = k.API.Get(ctx, client.ObjectKey{Name: name}, into)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// keep puts a registration right, and says whether it is there then: o.live is what is there, whether it
// could be written or not.
func (k *Registrar) keep(ctx context.Context, o *object, there bool) (bool, error) {
	if k.Shared != nil && o.called() && (k.elected.Load() || k.Shared.Token() == "") {
		k.Shared.say(ctx, k.Shared.keep(ctx))
	}
	k.mu.Lock()
	filled := k.fill(o)
	k.mu.Unlock()
	if !filled {
		return there, nil
	}
	was, want, have, elected := k.remembered(o), contents(o.want), contents(o.live), k.elected.Load()
	if there && k.annotated(o.live) {
		if equality.Semantic.DeepEqual(want, have) || equality.Semantic.DeepEqual(want, was.want) && equality.Semantic.DeepEqual(have, was.got) {
			// Not while the elected replica may be gone: what another one has made since is not known to be right. The rest of
			// the Lease is for that other one to see what this one saw.
			confirmed := elected || k.LedAgo() < k.Lease/3
			k.remember(o, func(m *memory) { m.want, m.got, m.right = want, have, confirmed || m.right })
			return true, nil
		}
	}
	if there && !elected {
		if k.LedAgo() <= k.Lease {
			k.remember(o, func(m *memory) { m.right = false }) // the elected replica's doing, or for it to put back
			return true, nil
		}
		if !was.right {
			return true, nil
		}
	}
	// It was right, and it is gone, or nothing else is wanted since, or it differs in what never changes:
	// somebody has changed it.
	restored := was.right && (!there || equality.Semantic.DeepEqual(want, was.want) || !equality.Semantic.DeepEqual(bare(have), bare(was.got)))
	if restored {
		turn := was.limiter.Reserve()
		if wait := turn.Delay(); wait > 0 {
			turn.Cancel()
			time.AfterFunc(wait, func() { kick(k.wakes[o.key()]) })
			return there, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	var err error
	next := k.next(o, there)
	if there {
		err = k.API.Update(ctx, next)
	} else {
		err = k.API.Create(ctx, next)
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return there, nil // somebody was quicker; the watch wakes us
	}
	if err != nil {
		return there, fmt.Errorf("write %s %s: %w", o.kind, o.name, err)
	}
	o.live = next
	// What a replica has made that is not elected is not right for that: another one may have seen it otherwise.
	k.remember(o, func(m *memory) { m.want, m.got, m.right = want, contents(o.live), elected || m.right })
	k.wrote(o, there, restored)
	return true, nil
}

// wrote says that a registration was written, and how often one was put back.
func (k *Registrar) wrote(o *object, was, restored bool) {
	kind, reason, action, text := corev1.EventTypeNormal, "RegistrationUpdated", "Update", "brought up to date"
	switch {
	case restored:
		kind, reason, action, text = corev1.EventTypeWarning, "RegistrationRestored", "Restore", "put back as it was: somebody had changed or deleted it"
		k.Metrics.restored.WithLabelValues(o.kind, o.name).Inc()
	case !was:
		reason, action, text = "RegistrationCreated", "Create", "created"
	}
	k.Log.Info("registration "+text, "kind", o.kind, "name", o.name)
	k.Events.Eventf(&corev1.ObjectReference{
		APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: o.kind, Name: o.name, UID: o.live.GetUID(),
	}, nil, kind, reason, action, "%s %s was %s.", o.kind, o.name, text)
}

// tell sets the metrics of an object: whether it is present, and correct.
func (k *Registrar) tell(o *object, there, right bool) {
	present := func(kind, name string, is bool) { k.Metrics.present.WithLabelValues(kind, name).Set(one(is && right)) }
	switch live := o.live.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		present("webhook", RepairWebhook, slices.ContainsFunc(live.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == RepairWebhook }))
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for _, name := range webhookNames()[1:] {
			i := slices.IndexFunc(live.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == name })
			present("webhook", name, i >= 0)
			if name == ClosedWebhook || name == HomeWebhook {
				k.Metrics.enforced.WithLabelValues(name).Set(one(i >= 0 && live.Webhooks[i].FailurePolicy != nil && *live.Webhooks[i].FailurePolicy == admissionregistrationv1.Fail))
			}
		}
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		present("policy", o.name, there)
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		present("binding", o.name, there)
	}
}

// askAgain is how often it is looked whether the API server still reaches the webhooks.
const askAgain = time.Minute

var errEmpty = errors.New("the operator that the annotations name has not filled in the caBundle yet")

// prove has the webhooks that are to fail closed do so from the next look on, once it is shown that the
// API server reaches them. From then on it tells whether it still does, and lowers nothing.
func (k *Registrar) prove(ctx context.Context) {
	k.mu.Lock()
	proven, empty := k.proven[ClosedWebhook] && k.proven[HomeWebhook], k.empty
	if k.Options == nil || !k.elected.Load() || !k.kept[validatingKey].right || proven && time.Since(k.asked) < askAgain {
		k.mu.Unlock()
		return
	}
	k.asked = time.Now()
	k.mu.Unlock()
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
			message := "the webhooks fail open (failurePolicy Ignore) until a test call through the API server succeeds"
			if proven {
				message = "a call through the API server to the webhooks does not come back"
			}
			k.Log.Info(message, "reason", text)
		}
		return
	}
	k.unsure = ""
	if proven {
		return
	}
	k.proven[ClosedWebhook], k.proven[HomeWebhook] = true, true
	k.Log.Info("a call through the API server came back from the webhooks: from now on what must not pass without them is refused while they do not answer (failurePolicy Fail)")
	kick(k.wakes[validatingKey])
}
