package main

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	election "sigs.k8s.io/controller-runtime/pkg/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// terms has one replica at a time lead. An election that is lost, because the API server or etcd does not answer, ends
// what runs on the elected replica and nothing else: the webhooks go on, and this replica stands again. A manager's own
// election ends the process.
//
// A Lease does not fence: lead's context ends before another replica can be elected, by this process' clock, and what
// lead does guards itself besides, with resourceVersions and with the membership lock in etcd.
type terms struct {
	lock    *lease                          // nil leads at once
	lead    func(ctx context.Context) error // returns when all that it began has ended
	elected prometheus.Gauge                // nil for none
	log     logr.Logger
	times   electionTimes
}

// electionTimes are those of a leaderelection.LeaderElectionConfig.
type electionTimes struct{ lease, renew, retry time.Duration }

// lease is the Lease that replicas stand for. Whoever may write it could say in it that it is theirs for years, and
// nobody would be elected; or for no time, and another replica would be elected while this one leads. So each replica
// goes by the duration that all of Holdfast's replicas write, from the moment when it saw the Lease change.
type lease struct {
	resourcelock.Interface
	duration time.Duration
	log      logr.Logger

	mu      sync.Mutex
	record  []byte
	changed time.Time // when it was seen to be another one, or this replica began
}

func newLease(config *rest.Config, namespace string, times electionTimes, recorders recorder.Provider, log logr.Logger) (*lease, error) {
	lock, err := election.NewResourceLock(config, recorders, election.Options{
		LeaderElection: true, LeaderElectionID: "holdfast", LeaderElectionNamespace: namespace, RenewDeadline: times.renew,
	})
	return &lease{Interface: lock, duration: times.lease, log: log, changed: time.Now()}, err
}

// Get reads it.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // the elector asks what kind it is
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seconds := int(l.duration / time.Second)
	if !bytes.Equal(raw, l.record) {
		l.record, l.changed = raw, time.Now()
		if record.LeaseDurationSeconds != seconds && record.HolderIdentity != "" {
			l.log.Info("the election's Lease says another duration than Holdfast writes: somebody has edited it. It counts for as long as Holdfast's own",
				"holder", short(record.HolderIdentity), "seconds", record.LeaseDurationSeconds, "own", seconds)
		}
	}
	record.LeaseDurationSeconds = seconds
	return record, raw, nil
}

// Update writes it.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed = time.Now()
	}
	return err //nolint:wrapcheck // as above
}

// ledAgo is when somebody was last seen to lead: when the Lease changed, as far as this replica saw. Without a Lease it is this replica, now.
func (l *lease) ledAgo() time.Duration {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.changed)
}

// short is a text that anybody may have written, for a log.
func short(text string) string { return text[:min(len(text), 100)] }

// Start stands for election, again and again, until the context ends.
func (e *terms) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, e.term, e.times.retry)
	return nil
}

// term leads once, if it is elected.
func (e *terms) term(ctx context.Context) {
	if e.lock == nil {
		e.work(ctx)
		return
	}
	won := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, Name: "holdfast", LeaseDuration: e.times.lease, RenewDeadline: e.times.renew, RetryPeriod: e.times.retry,
		// The elector would give the Lease up while lead still works, and end lead's context only after that.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				select {
				case won <- leading:
				case <-leading.Done():
				}
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(who string) { e.log.Info("the election's Lease has a holder", "holder", short(who)) },
		},
	})
	if err != nil {
		e.log.Error(err, "this replica cannot be elected")
		return
	}
	// The Lease is renewed until lead has ended, and so for longer than ctx.
	standing, stop := context.WithCancel(logr.NewContext(context.WithoutCancel(ctx), e.log))
	defer stop()
	ended := make(chan struct{})
	go func() { defer close(ended); elector.Run(standing) }()
	lost := false
	select {
	case <-ctx.Done():
	case leading := <-won:
		work, end := context.WithCancel(leading)
		unlink := context.AfterFunc(ctx, end)
		e.log.Info("this replica is elected")
		e.work(work)
		lost = leading.Err() != nil
		unlink()
		end()
	}
	stop()
	<-ended
	if lost {
		e.log.Info("this replica is no longer elected: its webhooks go on, and it stands again")
	} else if elector.IsLeader() {
		e.release(ctx)
	}
}

func (e *terms) work(ctx context.Context) {
	if e.elected != nil {
		e.elected.Set(1)
		defer e.elected.Set(0)
	}
	if err := e.lead(ctx); err != nil && ctx.Err() == nil {
		e.log.Error(err, "what runs on the elected replica has failed, and begins anew")
	}
}

// release gives the Lease up: nothing works under it any more, and another replica need not wait for its end.
func (e *terms) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.times.retry)
	defer cancel()
	held, _, err := e.lock.Get(ctx)
	if err == nil && held.HolderIdentity == e.lock.Identity() {
		now := metav1.Now()
		err = e.lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now,
		})
	}
	if err != nil {
		e.log.Info("the election's Lease is not given up, and runs out", "reason", err.Error())
	}
}
