package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Etcd is the ring: read by anybody, changed only by the holder of its membership lock.
type Etcd interface {
	observe.Ring
	Lock(ctx context.Context) (*etcd.MembershipLock, error)
	// LockHolder is who has that lock now, the zero value if it is free.
	LockHolder(ctx context.Context) (quorum.Lock, error)
}

// notYet is an action that does not go through now, for a reason that passes. Look again.
type notYet struct{ err error }

func (n notYet) Error() string { return n.err.Error() }

func (n notYet) Unwrap() error { return n.err }

// written is the result of a write: a notYet if the object has changed since it was read. That it exists, or does not, may be so for long:
// one that Holdfast may not read cannot be created.
func written(err error, what string) error {
	switch {
	case apierrors.IsConflict(err):
		return notYet{err}
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

var errChanged = notYet{errors.New("the plan is out of date: look again")}

// apply carries out one action that does not change etcd's membership. An error that is a notYet is no failure.
func (r *Reconciler) apply(ctx context.Context, a membership.Action, s *quorum.Snapshot) (err error) {
	if a.Kind() == membership.KindReleaseHook || a.Kind() == membership.KindDeleteGuardPod { // cannot be taken back
		if err := r.confirm(ctx, a, s.Began); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.writeTimeout.next())
	defer cancel()
	defer func() { r.writeTimeout.after(err) }()
	switch c := a.Change.(type) {
	case membership.ReleaseHook:
		return r.release(ctx, a, c)
	case membership.MarkIdle:
		return r.changeMachine(ctx, a, func(m *machinev1beta1.Machine) error {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, quorum.IdleAnnotation, a.UID)
			return nil
		})
	case membership.RecordRelease:
		return r.record(ctx, s, c.Release)
	case membership.AddHook:
		return r.changeMachine(ctx, a, func(m *machinev1beta1.Machine) error {
			if !m.DeletionTimestamp.IsZero() {
				return fmt.Errorf("Machine %s is deleting: %w", m.Name, errChanged)
			}
			var evidence *quorum.Evidence
			if len(c.Evidence.MemberIDs) > 0 {
				evidence = &c.Evidence
			}
			machineapi.Put(m, c.Hook, c.Latch, evidence)
			return nil
		})
	case membership.SizeGuard:
		return r.QuorumGuard.writeBudget(ctx, c.MinAvailable, c.Version)
	case membership.CreateGuardPod:
		return r.QuorumGuard.createPod(ctx, c.Node, c.Address)
	case membership.DeleteGuardPod:
		return r.QuorumGuard.deletePod(ctx, c.Pod, c.PodUID)
	case membership.AddLearner, membership.Promote, membership.RemoveLearner, membership.RemoveVoter, membership.MoveLeader: // changeMembership's
	}
	return fmt.Errorf("action %s is not one that can be applied", a.Describe())
}

// release takes hook and latch off, as the change says, and before that the Node's guard pod away.
func (r *Reconciler) release(ctx context.Context, a membership.Action, off membership.ReleaseHook) error {
	if off.Pod != "" {
		if err := r.QuorumGuard.deletePod(ctx, off.Pod, off.PodUID); err != nil {
			return err
		}
	}
	return r.changeMachine(ctx, a, func(m *machinev1beta1.Machine) error {
		if m.DeletionTimestamp.IsZero() {
			return fmt.Errorf("Machine %s is not deleting: %w", m.Name, errChanged)
		}
		machineapi.Release(m, off.Hook, off.Latch)
		return nil
	})
}

// writeTimeout is for how long a change of a Kubernetes object is waited for. An API server may ask an etcd member that has
// just been removed, and hang: the next attempt asks another. One that is slow gets more time at each. The zero value is new.
type writeTimeout struct{ hung int } // attempts in a row

const maxWriteTimeout = 5 * time.Second // at most

func (p *writeTimeout) next() time.Duration { return min(time.Second<<p.hung, maxWriteTimeout) }

func (p *writeTimeout) after(err error) {
	if !errors.Is(err, context.DeadlineExceeded) {
		p.hung = 0
	} else if p.next() < maxWriteTimeout {
		p.hung++
	}
}

// justSeen is how old a look may be, from its beginning, when an action is carried out that cannot be taken back: if it is older, confirm
// looks again.
const justSeen = 500 * time.Millisecond

// confirm looks a second time and wants the same action, unless the first look began a moment ago: it, or the round's other actions and
// writes, may have taken long.
func (r *Reconciler) confirm(ctx context.Context, a membership.Action, began time.Time) error {
	// By both clocks: the monotonic one may stand still with a computer that is suspended, the wall clock may be put back.
	now := r.Observer.Clock.Now()
	if age := now.Round(0).Sub(began.Round(0)); age >= 0 && max(age, now.Sub(began)) < justSeen {
		return nil
	}
	s, err := r.readCluster(ctx)
	if err != nil {
		return err
	}
	for _, again := range membership.Decide(s).Actions {
		if a.Same(again) {
			return nil
		}
	}
	return errChanged
}

// changeMachine reads a Machine, and patches it with that resourceVersion: a patch replaces the whole list of
// hooks, so it must fail if somebody changed the Machine in between.
func (r *Reconciler) changeMachine(ctx context.Context, a membership.Action, change func(*machinev1beta1.Machine) error) error {
	var m machinev1beta1.Machine
	key := client.ObjectKey{Namespace: r.Observer.Namespace, Name: a.Machine}
	if err := r.Observer.API.Get(ctx, key, &m); apierrors.IsNotFound(err) {
		return errChanged
	} else if err != nil {
		return fmt.Errorf("read Machine %s: %w", a.Machine, err)
	}
	if string(m.UID) != a.UID {
		return errChanged
	}
	before := m.DeepCopy()
	if err := change(&m); err != nil {
		return err
	}
	was, wanted := machineapi.Machine(before), machineapi.Machine(&m)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err := r.Client.Patch(ctx, &m, patch)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || errors.Is(err, context.DeadlineExceeded) {
		return notYet{err} // whether it was applied is seen by the next look
	}
	if err != nil {
		return fmt.Errorf("change Machine %s: %w", a.Machine, err)
	}
	stored := machineapi.Machine(&m)
	if wanted.Hook != was.Hook && stored.Hook != wanted.Hook || wanted.Latch != was.Latch && stored.Latch != wanted.Latch ||
		wanted.EvidenceRaw != was.EvidenceRaw && stored.EvidenceRaw != wanted.EvidenceRaw {
		return fmt.Errorf("the API server took the change of Machine %s, and a webhook has undone it: see which change Machines (kubectl get mutatingwebhookconfigurations)", a.Machine)
	}
	return nil
}

// changeMembership makes an action that Locks. Leader election does not fence, so it works under the membership lock, and only if a plan
// made under that lock a moment ago still has the action. held is that lock if this round planned under it; if nil, it takes the lock and
// looks again. It returns the lock after a promotion or a leader move, because another change usually follows. It does not after a removal:
// the lock may have been taken at the removed member's endpoint.
func (r *Reconciler) changeMembership(ctx context.Context, a membership.Action, s *quorum.Snapshot, held *etcd.MembershipLock) (keep *etcd.MembershipLock, err error) {
	began := s.Began
	if held == nil {
		began = time.Time{} // not under the lock
		if held, err = r.Etcd.Lock(ctx); err != nil {
			return nil, notYet{err}
		}
		defer func() {
			if keep == nil {
				r.unlock(ctx, held)
			}
		}()
		within, release, err := held.Context(ctx)
		if err != nil {
			return nil, notYet{err}
		}
		defer release()
		ctx = within
	}
	if err := r.confirm(ctx, a, began); err != nil {
		return nil, err
	}
	if err := r.change(ctx, a, held); err != nil {
		return nil, transient(err)
	}
	if a.Kind() == membership.KindPromote || a.Kind() == membership.KindMoveLeader {
		return held, nil
	}
	return nil, nil
}

func (r *Reconciler) unlock(ctx context.Context, held *etcd.MembershipLock) {
	if err := held.Unlock(ctx); err != nil {
		r.Log.V(1).Info("the membership lock goes with its lease", "reason", err.Error())
	}
}

// change makes an action under the lock.
func (r *Reconciler) change(ctx context.Context, a membership.Action, held *etcd.MembershipLock) (err error) {
	switch c := a.Change.(type) {
	case membership.AddLearner:
		_, err = held.AddLearner(ctx, c.PeerURL)
	case membership.Promote:
		err = held.Promote(ctx, c.Member.ID)
	case membership.RemoveLearner:
		if c.GivesWay && c.Node != "" {
			if err := r.markGaveWay(ctx, c.Node); err != nil {
				return err
			}
		}
		err = held.Remove(ctx, c.Member.ID)
	case membership.RemoveVoter:
		err = held.Remove(ctx, c.Member.ID)
	case membership.MoveLeader:
		err = held.MoveLeader(ctx, c.To.ID)
	case membership.ReleaseHook:
		err = r.release(ctx, a, c)
	case membership.SizeGuard:
		err = r.QuorumGuard.writeBudget(ctx, c.MinAvailable, c.Version)
	case membership.AddHook, membership.MarkIdle, membership.RecordRelease, membership.CreateGuardPod, membership.DeleteGuardPod:
		err = fmt.Errorf("%s is not done under the membership lock", a.Describe())
	}
	return err
}

// transient turns an error into notYet if etcd refuses the change only for now, or may have made it. It returns other errors as they are.
func transient(err error) error {
	for _, known := range [...]error{
		rpctypes.ErrMemberLearnerNotReady, rpctypes.ErrTooManyLearners, rpctypes.ErrMemberNotLearner, rpctypes.ErrMemberNotFound,
		rpctypes.ErrUnhealthy, rpctypes.ErrPeerURLExist, rpctypes.ErrMemberNotEnoughStarted, rpctypes.ErrNotLeader,
		etcd.ErrAmbiguous, etcd.ErrLockLost,
	} {
		if errors.Is(err, known) {
			return notYet{err}
		}
	}
	return err
}

// markGaveWay sends a Node to the end of the queue of those that wait for a member.
func (r *Reconciler) markGaveWay(ctx context.Context, name string) error {
	node := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	node.Name = name
	before := node.DeepCopy()
	node.Annotations = map[string]string{quorum.GaveWayAnnotation: r.Observer.Clock.Now().UTC().Format(time.RFC3339)}
	if err := r.Client.Patch(ctx, node, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("annotate Node %s: %w", name, err)
	}
	return nil
}

// keepRecords writes the records if they differ from what was read, or if some could not be read; nil writes nothing. On a conflict
// it returns notYet: the other writer saw newer state.
func (r *Reconciler) keepRecords(ctx context.Context, s *quorum.Snapshot, records []quorum.Evidence) error {
	data := machineapi.RecordInstalled(machineapi.FormatRecords(records), max(s.Installed, s.Configured))
	if records == nil || s.RecordsWhy == "" && maps.Equal(data, machineapi.RecordInstalled(machineapi.FormatRecords(s.Records), s.Installed)) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxWriteTimeout)
	defer cancel()
	cm := &corev1.ConfigMap{Data: data}
	cm.Namespace, cm.Name, cm.ResourceVersion = r.Observer.Namespace, machineapi.RecordsName, s.RecordsVersion
	var err error
	if s.RecordsVersion == "" {
		err = r.Client.Create(ctx, cm)
	} else if err = r.Client.Update(ctx, cm); apierrors.IsInvalid(err) {
		r.Log.Info("the records were made immutable, and are made anew", "name", cm.Name)
		if err = r.Client.Delete(ctx, cm, client.Preconditions{ResourceVersion: &s.RecordsVersion}); err == nil {
			cm.ResourceVersion = ""
			err = r.Client.Create(ctx, cm)
		}
	}
	return written(err, fmt.Sprintf("keep the records in ConfigMap %s", client.ObjectKeyFromObject(cm)))
}
