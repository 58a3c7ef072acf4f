package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// ownedBy is a ring whose membership lock somebody has.
type ownedBy struct {
	lock quorum.Lock
	err  error // of reading the lock's holder
}

func (o *ownedBy) Read(context.Context) quorum.Ring { return quorum.Ring{} }

func (o *ownedBy) LockHolder(context.Context) (quorum.Lock, error) { return o.lock, o.err }

func (o *ownedBy) Lock(context.Context) (*etcd.MembershipLock, error) {
	return nil, errors.New("taken")
}

// TestLockHolder: how long the membership lock has been somebody's counts from when this process first saw that key.
func TestLockHolder(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	must(t, appsv1.AddToScheme(scheme))
	must(t, configv1.Install(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).Build()
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now, ring := clocktesting.NewFakePassiveClock(noon), &ownedBy{}
	r := &Reconciler{Etcd: ring, Observer: &observe.Observer{API: api, Etcd: ring, Namespace: "n", Mode: quorum.ModeFull, Desired: 3, Clock: now}}
	one, two := quorum.Lock{Key: "/holdfast/membership/1", Leased: true}, quorum.Lock{Key: "/holdfast/membership/2", Leased: true}
	for i, step := range []struct {
		at   time.Duration
		has  quorum.Lock
		want time.Duration
	}{
		{0, one, 0}, {50 * time.Second, one, 0}, {61 * time.Second, one, 0},
		{62 * time.Second, two, 62 * time.Second}, {63 * time.Second, quorum.Lock{}, -1}, {64 * time.Second, two, 64 * time.Second},
	} {
		now.SetTime(noon.Add(step.at))
		ring.lock = step.has
		s, err := r.readCluster(t.Context())
		must(t, err)
		want := step.has
		if step.want >= 0 {
			want.Since = noon.Add(step.want)
		}
		if s.Lock != want || s.ForeignLock() != (i == 2) {
			t.Errorf("step %d: %+v, somebody else's: %t", i, s.Lock, s.ForeignLock())
		}
	}
	ring.lock, ring.err = quorum.Lock{}, errors.New("no answer")
	now.SetTime(noon.Add(65 * time.Second))
	if s, err := r.readCluster(t.Context()); err != nil || s.Lock.Key != two.Key || !s.Lock.Since.Equal(noon.Add(64*time.Second)) {
		t.Errorf("while it cannot be read: %+v, %v", s.Lock, err)
	}
	r.Observer.Mode, ring.lock, ring.err = quorum.ModeGuard, one, nil
	if s, err := r.readCluster(t.Context()); err != nil || s.Lock != (quorum.Lock{}) {
		t.Errorf("guard mode, which takes no lock: %+v, %v", s.Lock, err)
	}
}

// TestStaleChange: a change of etcd's members that a second look does not lead to is not made, however fresh the first look is. A look under
// the lock is the second one only for a moment.
func TestStaleChange(t *testing.T) {
	members, err := ring.Start(t.Context(), t.TempDir(), 1)
	must(t, err)
	defer func() { must(t, members.Stop()) }()
	etcd, err := etcd.New(etcd.Config{
		Endpoints: []string{members.Members[0].ClientURL()}, CACert: members.Files.CA, Cert: members.Files.Cert, Key: members.Files.Key, Identity: "the test",
	})
	must(t, err)
	defer etcd.Close()
	scheme := runtime.NewScheme()
	must(t, corev1.AddToScheme(scheme))
	must(t, machinev1beta1.Install(scheme))
	api := fake.NewClientBuilder().WithScheme(scheme).Build()
	r := &Reconciler{Etcd: etcd, Log: logr.Discard(), Observer: &observe.Observer{
		API: api, Etcd: etcd, Namespace: "n", Mode: quorum.ModeFull, Desired: 1, Limits: quorum.DefaultLimits(), Clock: clock.RealClock{},
	}}
	add := membership.Action{Change: membership.AddLearner{PeerURL: members.Ports.PeerURL(members.Next("new").Address)}}
	if got := etcd.Read(t.Context()); !got.Known {
		t.Fatal(got.Why)
	}
	held, err := etcd.Lock(t.Context())
	must(t, err)
	if _, err := r.changeMembership(t.Context(), add, begun(time.Second), held); !errors.Is(err, errChanged) {
		t.Errorf("it is made a while after the look under the lock began: %v", err)
	}
	must(t, held.Unlock(t.Context()))
	if _, err := r.changeMembership(t.Context(), add, begun(0), nil); !errors.Is(err, errChanged) {
		t.Errorf("it is made: %v", err)
	}
	if now := etcd.Read(t.Context()); !now.Known || len(now.Members) != 1 {
		t.Errorf("etcd is %+v", now)
	}
}
