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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Reconciler runs rounds. Set its fields, and use it for one Run: its memory starts empty with each election.
type Reconciler struct {
	Client      client.Client
	Etcd        Etcd
	Observer    *observe.Observer
	QuorumGuard *QuorumGuard // in guard mode cluster-etcd-operator's, which is only read; nil where none is kept
	// ReportOnly makes it report and change nothing. Where the rules are not enforced, anybody can write what releases are decided by.
	ReportOnly bool
	// StandDown makes full mode leave etcd's members alone while cluster-etcd-operator exists.
	StandDown bool
	Log       logr.Logger
	Reports

	observations
	outcomes
	changed atomic.Bool // something that is watched has changed since the last round
}

// Reports are where a Reconciler says what it sees and does.
type Reports struct {
	Events            events.EventRecorder
	Metrics           *Metrics
	Publisher         *Publisher                                       // of the membership, to etcd's hosts and clients; nil for none
	RingView          *RingView                                        // of the ring, to people and the plugin; nil for none
	ClusterOperator   *ClusterOperator                                 // of the conditions; nil for none
	OperatorCondition *OperatorCondition                               // to OLM: whether it may upgrade Holdfast; nil for none
	Seen              func(s *quorum.Snapshot, news []membership.News) // gets what has changed since the last round; nil for none

	reported map[noteKey]lastReport // the notes in force
	started  time.Time              // the first look
	answered bool                   // etcd has answered since then
}

// observations are what a Reconciler saw in earlier rounds.
type observations struct {
	memory     observe.Memory
	changes    membership.Changes
	machineCRD machineCRD
	lock       quorum.Lock // who had the membership lock in the last round: it has another key each time that it is taken
}

// outcomes are what became of the actions of a Reconciler's earlier rounds.
type outcomes struct {
	attempts     attempts            // of the plan's actions
	ambiguous    []membership.Action // sent, with unknown outcome: the answer was lost or timed out
	writeTimeout writeTimeout
	etcdWait     etcdWait
}

// noteKey identifies a note: one with the same key updates it.
type noteKey struct {
	reason  membership.Reason
	machine string
}

// lastReport is the last log line and Event of a note.
type lastReport struct {
	message string
	at      time.Time
}

// Run runs rounds until the context ends and the last one has. Only the elected replica calls it.
func (r *Reconciler) Run(ctx context.Context, api client.WithWatch) error {
	defer r.Metrics.forget()
	return observe.Run(ctx, "ring", r, newBackoff[reconcile.Request](), r.Log, func(ctx context.Context, wake func()) {
		changed := func() {
			r.changed.Store(true)
			wake()
		}
		observe.FollowControlPlane(ctx, api, r.Observer.Namespace, changed)
		if r.QuorumGuard != nil && r.Observer.Mode == quorum.ModeFull {
			r.QuorumGuard.follow(ctx, changed)
		}
	})
}

// Reconcile runs one round, and further ones while one change of etcd's members follows another. It returns the errors of all:
// controller-runtime logs and counts them, and tries again after longer and longer pauses.
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

// round reads the cluster, decides and acts once. held is the membership lock if the round before kept it, else nil. With it the cluster
// is read under the lock.
func (r *Reconciler) round(ctx context.Context, held *etcd.MembershipLock) (did outcome, err error) {
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
	s, err := r.readCluster(ctx)
	if err != nil {
		err = fmt.Errorf("the cluster could not be read, so nothing is done: %w", err)
		if ctx.Err() == nil { // not while shutting down, when every call fails
			err = errors.Join(err, r.unread(ctx, err))
		}
		return outcome{}, err
	}
	plan := membership.Decide(s)
	if news := r.changes.Update(plan.Join); r.Seen != nil {
		r.Seen(s, news)
	}
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
	if wrote || errors.As(unkept, new(notYet)) {
		return outcome{again: requeueNow}, nil // plan again: a release may only be added to a ledger that has not changed since it was read
	}
	plan.NoteWriteErrors(unrecorded, unkept)
	r.Metrics.observe(&plan)
	r.reportNotes(s, plan.Notes)
	did, err = r.act(ctx, s, &plan, held)
	err = errors.Join(unrecorded, unkept, err)
	if did.chained {
		return did, err // publish after the next round that makes no chained change
	}
	if !s.Ring.Known {
		err = errors.Join(err, fmt.Errorf("etcd could not be read: %s", s.Ring.Why))
	}
	unpublished := r.Publisher.Publish(ctx, plan.Join, r.snapshot)
	if unpublished == nil {
		r.beginEtcdWait(s, &plan, did.tried)
	}
	err = errors.Join(err, unpublished, r.RingView.report(ctx, s), r.report(ctx, &plan))
	if left, steadying := s.SteadyIn(); held == nil && s.Mode == quorum.ModeFull && steadying && left <= requeueSoon && !s.ForeignLock() {
		// A promotion is next: take the lock now, so that the next round reads under it.
		var busy error
		if did.heldLock, busy = r.Etcd.Lock(ctx); busy != nil {
			r.Log.V(1).Info("not yet", "reason", busy.Error())
		}
	}
	return did, err
}

// unread reads only etcd, and reports that the rest of the cluster cannot be read: the API server may be down because etcd is, or
// Holdfast has lost a right.
func (r *Reconciler) unread(ctx context.Context, why error) error {
	within, cancel := context.WithTimeout(ctx, observe.EtcdTimeout)
	s := &quorum.Snapshot{Mode: r.Observer.Mode, Ring: r.Etcd.Read(within), Now: r.Observer.Clock.Now(), Limits: r.Observer.Limits}
	cancel()
	plan := membership.Unreadable(s, errors.New(quorum.Clip(why.Error(), mostWhy)))
	r.Metrics.unread(s.Ring, plan.Notes)
	return r.report(ctx, &plan)
}

// firstLook is how long etcd may take to answer after a start, before the conditions say that it does not answer.
const firstLook = 5 * time.Second

// report publishes the conditions on the ClusterOperator and for OLM.
func (r *Reconciler) report(ctx context.Context, p *membership.Plan) error {
	s := p.Join.Snapshot()
	if r.started.IsZero() {
		r.started = s.Now
	}
	if r.answered = r.answered || s.Ring.Known; !r.answered && s.Now.Before(r.started.Add(firstLook)) {
		return nil // what was published before stands
	}
	now := membership.Conditions(p)
	return errors.Join(r.ClusterOperator.report(ctx, now, s.Now), r.OperatorCondition.report(ctx, now, s.Now))
}

// outcome is the result of a round.
type outcome struct {
	again    time.Duration        // until the next round
	tried    bool                 // an action was tried
	chained  bool                 // a change of members usually follows what was done
	heldLock *etcd.MembershipLock // the membership lock, kept for the next round; nil without it
}

// act carries out the actions of a plan. Those that fail are reported.
func (r *Reconciler) act(ctx context.Context, s *quorum.Snapshot, plan *membership.Plan, held *etcd.MembershipLock) (did outcome, failed error) {
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
	r.attempts.forgetExcept(plan.Tries)
	for _, a := range plan.Actions {
		if r.attempts.pausing(a.Describe(), s.Now) {
			continue
		}
		locks := a.Locks(s)
		if locks && did.heldLock != nil {
			continue // the next round reads under the lock that is kept, and plans it again if it is still needed
		}
		var err error
		did.tried = true
		if locks {
			did.heldLock, err = r.changeMembership(ctx, a, s, held)
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

// reportAmbiguous reports the actions whose answers were lost and that the cluster shows as done. The others are in the next plan
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

func (r *Reconciler) machine(name, uid string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine",
		Namespace: r.Observer.Namespace, Name: name, UID: types.UID(uid),
	}
}

// reportNotes logs each note when it is new, when its message changes (at most once in noteInterval), and when it is gone.
// A note about a Machine also becomes an Event on that Machine.
func (r *Reconciler) reportNotes(s *quorum.Snapshot, notes []membership.Note) {
	now := map[noteKey]lastReport{}
	for _, n := range notes {
		key := noteKey{n.Reason, n.Machine}
		if _, twice := now[key]; twice {
			continue
		}
		before, known := r.reported[key]
		if known && (before.message == n.Message || s.Now.Sub(before.at) < noteInterval) {
			now[key] = before
			continue
		}
		now[key] = lastReport{n.Message, s.Now}
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
	for key, was := range r.reported {
		if _, still := now[key]; !still {
			r.Log.Info("no longer: "+was.message, "reason", key.reason)
		}
	}
	r.reported = now
}
