package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Reconciler runs rounds. Make one with its fields set, for one Run: what it remembers is of that time.
type Reconciler struct {
	Client      client.Client
	Etcd        Etcd
	Observer    *observe.Observer
	QuorumGuard *QuorumGuard // in guard mode cluster-etcd-operator's, which is only read; nil where none is kept
	// ReportOnly has it carry out nothing, and report. Where the rules are not enforced anybody may write what a release is decided by.
	ReportOnly bool
	// StandDown has full mode leave etcd's members alone where cluster-etcd-operator is here.
	StandDown bool
	Events    events.EventRecorder
	Metrics   *Metrics
	Log       logr.Logger
	// Publisher tells etcd's hosts and clients of the membership; nil for nobody.
	Publisher *Publisher
	// RingView tells people of the ring; nil for nobody.
	RingView *RingView
	// ClusterOperator is where the conditions are told; nil for nowhere.
	ClusterOperator *ClusterOperator
	// OperatorCondition is where OLM is told whether it may upgrade Holdfast; nil for nowhere.
	OperatorCondition *OperatorCondition
	// Seen is told what is new in a look; nil for nobody.
	Seen func(s *quorum.Snapshot, news []membership.Seen)

	memory       observe.Memory
	changes      membership.Changes
	toldNotes    map[noteKey]lastTold // the notes in force
	writeTimeout writeTimeout
	ambiguous    []membership.Action // sent, with unknown outcome: the answer was lost or timed out
	etcdWait     etcdWait
	attempts     attempts // of the plan's actions
	machineCRD   machineCRD
	lock         quorum.Lock // who had the membership lock at the last look: each time that it is taken it has another key
	changed      atomic.Bool // something that is watched has changed since the last look
}

// noteKey is what makes a note the same note.
type noteKey struct {
	reason  membership.Reason
	machine string
}

// lastTold is how a note was told last.
type lastTold struct {
	message string
	at      time.Time
}

// Run runs rounds until the context ends and the last one has. Only the elected replica calls it. api is without a cache: all
// that is wanted of a change is that there was one, and workers' Machines and Nodes are not to be kept.
func (r *Reconciler) Run(ctx context.Context, api client.WithWatch) error {
	defer r.Metrics.forget()
	// There is one thing to reconcile, whichever object changed.
	ring := reconcile.Request{NamespacedName: types.NamespacedName{Name: "ring"}}
	wake := func(q queue) func() {
		return func() {
			r.changed.Store(true)
			q.Add(ring)
		}
	}
	c, err := controller.NewUnmanaged("ring", controller.Options{
		Reconciler: r, RateLimiter: newBackoff[reconcile.Request](), Logger: r.Log,
		SkipNameValidation: new(true), // another term has another controller of that name
	})
	if err != nil {
		return fmt.Errorf("set up the reconciler: %w", err)
	}
	sources := []source.Source{source.Func(r.watch(api, wake))}
	if r.QuorumGuard != nil && r.Observer.Mode == quorum.ModeFull {
		sources = append(sources, source.Func(r.QuorumGuard.watch(wake)))
	}
	for _, s := range sources {
		if err := c.Watch(s); err != nil {
			return fmt.Errorf("set up the reconciler: %w", err)
		}
	}
	return c.Start(ctx)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// watch wakes the reconciler whenever a control-plane Machine or Node changes. Each of the labels that make
// one is a watch of its own: a selector cannot say "or".
func (r *Reconciler) watch(api client.WithWatch, wake func(queue) func()) func(context.Context, queue) error {
	return func(ctx context.Context, q queue) error {
		changed := wake(q)
		changed() // look at once
		for _, label := range [...]string{quorum.RoleLabel, quorum.TypeLabel} {
			selector, err := observe.LabelIn(label, quorum.ControlPlaneRoles()...)
			if err != nil {
				return err
			}
			go observe.Follow(ctx, api, machinev1beta1.GroupVersion.WithKind("MachineList"), changed, client.InNamespace(r.Observer.Namespace), client.MatchingLabelsSelector{Selector: selector})
		}
		for _, label := range observe.NodeLabels() {
			go observe.Follow(ctx, api, corev1.SchemeGroupVersion.WithKind("NodeList"), changed, client.HasLabels{label})
		}
		return nil
	}
}

// Reconcile runs one round, and more while one change of etcd's members follows another. It returns what failed:
// controller-runtime logs and counts that, and tries again after longer and longer pauses.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if r.etcdWaitLasts(ctx) {
		return reconcile.Result{RequeueAfter: requeueSoon}, nil
	}
	did, err := r.round(ctx, nil)
	for did.heldLock != nil {
		var more error
		did, more = r.round(ctx, did.heldLock)
		err = errors.Join(err, more)
	}
	if err != nil && ctx.Err() == nil { // not while shutting down, when every call fails
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: did.again}, nil
}

// round looks, decides and acts once. held is the membership lock where the round before kept it: what is seen now is seen
// under it.
func (r *Reconciler) round(ctx context.Context, held *etcd.Held) (did outcome, err error) {
	if held != nil {
		defer func() {
			if did.heldLock == nil {
				r.unlock(ctx, held)
			}
		}()
		within, release, err := held.Context(ctx)
		if err != nil {
			return outcome{again: requeueNow}, nil
		}
		defer release()
		ctx = within
	}
	s, err := r.look(ctx)
	if err != nil {
		err = fmt.Errorf("the cluster could not be read, so nothing is done: %w", err)
		if ctx.Err() == nil { // not while shutting down, when every call fails
			err = errors.Join(err, r.unread(ctx, err))
		}
		return outcome{}, err
	}
	r.tellNews(s)
	plan := membership.Decide(s)
	if r.ReportOnly {
		plan.Actions, plan.Ledger, plan.Records = nil, nil, nil
	}
	r.reportAmbiguous(s)
	// Before any action: once a Machine is gone, nothing else says what it hosted.
	unrecorded := r.keepRecords(ctx, s, plan.Records)
	if errors.As(unrecorded, new(notYet)) {
		return outcome{again: requeueNow}, nil
	}
	wrote, unkept := r.keepLedger(ctx, s, plan.Ledger)
	if wrote {
		return outcome{again: requeueNow}, nil // plan again: a release may only be added to the ledger as it was read
	}
	plan.NoteWriteErrors(unrecorded, unkept)
	r.Metrics.observe(s, &plan)
	r.tellNotes(s, plan.Notes)
	did, err = r.act(ctx, s, &plan, held)
	err = errors.Join(unrecorded, unkept, err)
	if did.chained {
		return did, err // publish after the next round that makes no chained change
	}
	if !s.Ring.Known {
		err = errors.Join(err, fmt.Errorf("etcd could not be read: %s", s.Ring.Why))
	}
	unpublished := r.Publisher.Publish(ctx, s, r.snapshot)
	if unpublished == nil {
		r.beginEtcdWait(s, &plan, did.tried)
	}
	err = errors.Join(err, unpublished, r.RingView.tell(ctx, s), r.tell(ctx, s, &plan))
	if left, steadying := s.SteadyIn(); held == nil && s.Mode == quorum.ModeFull && steadying && left <= requeueSoon && !s.ForeignLock() {
		// A promotion is next: have the lock by then, and look under it at once.
		var busy error
		if did.heldLock, busy = r.Etcd.Lock(ctx); busy != nil {
			r.Log.V(1).Info("not yet", "reason", busy.Error())
		}
	}
	return did, err
}

// unread reads etcd alone, and tells that the rest of the cluster cannot be read: the API server may be down because etcd is, or
// Holdfast has lost a right.
func (r *Reconciler) unread(ctx context.Context, why error) error {
	within, cancel := context.WithTimeout(ctx, observe.EtcdTimeout)
	s := &quorum.Snapshot{Mode: r.Observer.Mode, Ring: r.Etcd.Read(within), Now: r.Observer.Clock.Now(), Limits: r.Observer.Limits}
	cancel()
	plan := membership.Unreadable(s, errors.New(sentence(why)))
	r.Metrics.unread(s.Ring, plan.Notes)
	return r.tell(ctx, s, &plan)
}

// tell tells the conditions wherever somebody looks for them.
func (r *Reconciler) tell(ctx context.Context, s *quorum.Snapshot, p *membership.Plan) error {
	return errors.Join(r.ClusterOperator.tell(ctx, s, p), r.OperatorCondition.tell(ctx, s, p))
}

// outcome is what came of a round.
type outcome struct {
	again    time.Duration // when to look again
	tried    bool          // an action was
	chained  bool          // something was done that another change of members usually follows
	heldLock *etcd.Held    // the membership lock for that one, for the next round
}

// act makes a plan's actions happen, or tells why not.
func (r *Reconciler) act(ctx context.Context, s *quorum.Snapshot, plan *membership.Plan, held *etcd.Held) (did outcome, failed error) {
	did.again = requeueIdle
	if plan.InProgress {
		did.again = requeueSoon
	}
	if left, steadying := s.SteadyIn(); steadying {
		did.again = requeueSoon
		if left <= requeueSoon {
			did.again = requeueAgain
		}
	}
	r.attempts.keep(plan.Tries)
	for _, a := range plan.Actions {
		if r.attempts.pausing(a.Describe(), s.Now) {
			continue
		}
		locks := a.Locks(s)
		if locks && did.heldLock != nil {
			continue // the next round looks under the lock that is kept, and has it if it is still to do
		}
		var err error
		did.tried = true
		if locks {
			did.heldLock, err = r.changeMembership(ctx, a, held)
		} else {
			err = r.apply(ctx, a, s)
		}
		r.attempts.after(actionFailure(a, err), s.Now, err, errors.As(err, new(notYet)))
		switch {
		case err == nil:
			r.done(a)
			did.again = requeueNow
			did.chained = did.chained || a.Kind().Membership() || a.Kind() == membership.KindReleaseHook
		case errors.As(err, new(notYet)):
			r.Metrics.actions.WithLabelValues(a.Kind().String(), "not-yet").Inc()
			r.Log.V(1).Info("not yet", "action", a.Describe(), "reason", err.Error())
			if errors.Is(err, etcd.ErrAmbiguous) || errors.Is(err, context.DeadlineExceeded) {
				r.ambiguous = append(r.ambiguous, a)
			}
		default:
			r.Metrics.actions.WithLabelValues(a.Kind().String(), "failed").Inc()
			failed = errors.Join(failed, fmt.Errorf("%s: %w", a.Describe(), err))
		}
	}
	if len(plan.Actions) > 0 && !did.tried && !plan.InProgress {
		did.again = r.attempts.resume(s.Now)
	}
	return did, failed
}

// reportAmbiguous reports the actions whose answers were lost and that this look shows as done. The others are in the next plan
// again.
func (r *Reconciler) reportAmbiguous(s *quorum.Snapshot) {
	if !s.Ring.Known {
		return
	}
	for _, a := range r.ambiguous {
		if membership.Shows(s, a) {
			r.done(a)
		}
	}
	r.ambiguous = nil
}

// done reports an action that went through.
func (r *Reconciler) done(a membership.Action) {
	r.Metrics.actions.WithLabelValues(a.Kind().String(), "done").Inc()
	r.Log.Info(a.Describe(), "step", a.Step, "why", a.Why)
	if a.Kind() == membership.KindMarkIdle {
		r.memory.Mark(a.UID)
	}
	if a.Machine == "" {
		return
	}
	reason := map[membership.Kind]string{
		membership.KindAddHook: "HookAdded", membership.KindReleaseHook: "HookReleased", membership.KindMarkIdle: "MemberLeft", membership.KindRecordRelease: "ReleaseRecorded", membership.KindRemoveLearner: "LearnerRemoved",
		membership.KindMoveLeader: "LeaderMoved", membership.KindRemoveVoter: "MemberRemoved", membership.KindPromote: "LearnerPromoted",
		membership.KindAddLearner: "LearnerAdded",
	}[a.Kind()]
	r.Events.Eventf(r.machine(a.Machine, a.UID), nil, corev1.EventTypeNormal, reason, a.Kind().String(), "Holdfast: %s: %s", a.Describe(), a.Why)
}

// tellNews keeps what is new in a look, for people who ask later.
func (r *Reconciler) tellNews(s *quorum.Snapshot) {
	if news := r.changes.Since(s); r.Seen != nil {
		r.Seen(s, news)
	}
}

func (r *Reconciler) machine(name, uid string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine",
		Namespace: r.Observer.Namespace, Name: name, UID: types.UID(uid),
	}
}

// tellNotes logs each note when it is new, when its message changes (at most once in noteInterval), and when it is gone.
// A note about a Machine also becomes an Event on that Machine.
func (r *Reconciler) tellNotes(s *quorum.Snapshot, notes []membership.Note) {
	now := map[noteKey]lastTold{}
	for _, n := range notes {
		key := noteKey{n.Reason, n.Machine}
		if _, twice := now[key]; twice {
			continue
		}
		before, known := r.toldNotes[key]
		if known && (before.message == n.Message || s.Now.Sub(before.at) < noteInterval) {
			now[key] = before
			continue
		}
		now[key] = lastTold{n.Message, s.Now}
		r.Log.Info(n.Message, "reason", n.Reason)
		machines := slices.Concat(s.Machines, s.Claimants)
		if i := slices.IndexFunc(machines, func(m quorum.Machine) bool { return m.Name == n.Machine }); i >= 0 {
			kind := corev1.EventTypeNormal
			if n.Reason.Degrades() {
				kind = corev1.EventTypeWarning
			}
			r.Events.Eventf(r.machine(n.Machine, machines[i].UID), nil, kind, string(n.Reason), "observe", "%s", n.Message)
		}
	}
	for key, was := range r.toldNotes {
		if _, still := now[key]; !still {
			r.Log.Info("no longer: "+was.message, "reason", key.reason)
		}
	}
	r.toldNotes = now
}
