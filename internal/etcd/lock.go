package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

const (
	// lockPrefix is where the lock is kept in etcd.
	lockPrefix = quorum.LockName

	// lockTTL is the lease's: how long others wait for a holder that died.
	lockTTL = 10 * time.Second

	// lockMargin is how much of the lease is never used. It covers what the deadline of a call does
	// not: that etcd counts a call's time from its arrival, and that two clocks run at two speeds.
	lockMargin = 3 * time.Second

	// lockPoll is how often somebody who waits looks whether the lock is free. Only rounds that are
	// about to change a member take it, so waiting is rare.
	lockPoll = 100 * time.Millisecond
)

// ErrLockLost means that the lock was held and no longer is, or that it is too late to be sure. Nothing was sent.
var ErrLockLost = errors.New("the membership lock is lost")

// MembershipLock is etcd's membership lock while this process holds it. It is for one goroutine, for one round, and ends with Unlock.
//
// etcd's membership calls cannot carry a condition, so the lock cannot be part of the change. What
// keeps a holder that was overtaken from changing members is, in this order:
//
//  1. [MembershipLock.Context] ends before the lease can: it counts from before the last renewal was sent, on
//     this process' monotonic clock, less a margin. A process that was stopped finds it over when it
//     goes on. gRPC sends the time that is left with the call, and etcd gives up a call whose time
//     is over.
//  2. Right before each change is sent, the leader is asked by a linearizable read whether the lock's key
//     is still this holder's. That also holds where the clock stood still with the process, as in a
//     virtual machine that was paused.
//  3. The lock, the end of its lease and the members live in one raft log. A change that is in the
//     log before the lease's end is seen by whoever takes the lock next, since its first read is
//     linearizable; one that is lost with its leader stays lost.
//
// What remains is a change that is proposed to raft after the lease's end. For that the virtual
// machine has to be paused for longer than the lease between 2 and the sending, microseconds apart;
// or a leader has to be stopped with the call in its socket, be replaced, go on after the new leader
// ended the lease (which that one starts anew when it is elected), and then forward the call before
// it reads, behind it in the same connection, that it was cancelled. Either change then still has to
// pass etcd's own check that a quorum stays connected.
type MembershipLock struct {
	client  *Client
	own     *clientv3.Client // of this lock alone, so that nothing else can close it
	session *concurrency.Session
	mutex   *concurrency.Mutex
	unsure  bool // a change was ErrAmbiguous
}

// Lock takes the membership lock at the leader's endpoint. Read first: only a cluster that was read has one. It waits for another holder until ctx or
// Config.ChangeTimeout ends; the error then names the holder and is a concurrency.ErrLocked.
func (c *Client) Lock(ctx context.Context) (*MembershipLock, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ChangeTimeout)
	defer cancel()
	at, err := c.leader(ctx)
	if err != nil {
		return nil, fmt.Errorf("membership lock: %w", err)
	}
	c.mu.Lock()
	own, err := c.dial(at)
	c.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("membership lock: %w", err)
	}
	lease, err := own.Grant(ctx, int64(lockTTL/time.Second))
	if err != nil {
		_ = own.Close()
		return nil, fmt.Errorf("membership lock: lease: %w", err)
	}
	session, err := concurrency.NewSession(own, concurrency.WithLease(lease.ID))
	if err != nil {
		_ = own.Close()
		return nil, fmt.Errorf("membership lock: session: %w", err)
	}
	h := &MembershipLock{client: c, own: own, session: session, mutex: concurrency.NewMutex(session, lockPrefix)}
	if err := h.acquire(ctx); err != nil {
		// Whatever was written hangs on the lease, and if this fails as well the lease runs out.
		return nil, errors.Join(fmt.Errorf("membership lock: %w", err), h.Unlock(ctx))
	}
	return h, nil
}

// acquire tries until the lock is this holder's. Not Mutex.Lock: when its context ends it cleans up
// under one without a deadline, and would hang with the endpoint.
func (h *MembershipLock) acquire(ctx context.Context) error {
	for {
		err := h.mutex.TryLock(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, concurrency.ErrLocked) {
			return err
		}
		if err := h.wait(ctx); err != nil {
			return err
		}
	}
	// Sign it, for those who wait. The key's creation, by which it is owned, stays the same.
	signed, err := h.own.Txn(ctx).If(h.mutex.IsOwner()).
		Then(clientv3.OpPut(h.mutex.Key(), h.client.cfg.Identity, clientv3.WithLease(h.session.Lease()))).Commit()
	if err != nil {
		return err
	}
	if !signed.Succeeded {
		return ErrLockLost
	}
	return nil
}

// wait returns when the lock is free, or with the holder's name at the end of ctx.
func (h *MembershipLock) wait(ctx context.Context) error {
	holder := "another replica"
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		got, err := h.own.Get(ctx, lockPrefix+"/", clientv3.WithFirstCreate()...)
		if err == nil && len(got.Kvs) == 0 {
			return nil
		}
		if err == nil && len(got.Kvs[0].Value) > 0 {
			holder = string(got.Kvs[0].Value)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: held by %s", concurrency.ErrLocked, holder)
		case <-h.session.Done():
			return ErrLockLost
		case <-tick.C:
		}
	}
}

// LockHolder is who has the membership lock now, whoever that is; since when is not known. It is for people:
// the lock itself is what counts.
func (c *Client) LockHolder(ctx context.Context) (quorum.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	got, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (*clientv3.GetResponse, error) {
		return conn.Get(clientv3.WithRequireLeader(ctx), lockPrefix+"/", clientv3.WithFirstCreate()...)
	})
	if err != nil {
		return quorum.Lock{}, fmt.Errorf("who has the membership lock: %w", err)
	}
	if len(got.Kvs) == 0 {
		return quorum.Lock{}, nil
	}
	kv := got.Kvs[0]
	return quorum.Lock{Key: strings.ToValidUTF8(string(kv.Key), "?"), Holder: strings.ToValidUTF8(string(kv.Value[:min(len(kv.Value), 100)]), "?"), Leased: kv.Lease != 0}, nil
}

// Context renews the lease and returns a context under parent that ends before the lease can, or as
// soon as its loss is known; context.Cause is then ErrLockLost. The error is ErrLockLost as well if
// the lock is gone already or cannot be renewed. Use it for all that is read to decide on a change.
func (h *MembershipLock) Context(parent context.Context) (context.Context, context.CancelFunc, error) {
	within, stop := context.WithTimeout(parent, h.client.cfg.ReadTimeout)
	defer stop()
	// Before it is sent: the lease runs anew from its arrival, which is later.
	from := time.Now()
	renewed, err := h.own.KeepAliveOnce(within, h.session.Lease())
	if err != nil {
		return nil, nil, fmt.Errorf("%w: its lease cannot be renewed: %w", ErrLockLost, err)
	}
	left := time.Duration(renewed.TTL)*time.Second - lockMargin

	ctx, cancel := context.WithCancelCause(parent)
	lost := context.AfterFunc(h.session.Ctx(), func() { cancel(ErrLockLost) })
	ctx, end := context.WithDeadlineCause(ctx, from.Add(left), ErrLockLost)
	return ctx, func() { lost(); end(); cancel(nil) }, nil
}

// verify asks a member whether the lock is still this holder's. What the transaction reads is of no use but one: etcd
// answers one that reads nothing from the member's own data, which may be old.
func (h *MembershipLock) verify(ctx context.Context, at *clientv3.Client) error {
	owner, err := at.Txn(ctx).If(h.mutex.IsOwner()).Then(clientv3.OpGet(h.mutex.Key())).Commit()
	if err != nil {
		return fmt.Errorf("%w: its owner cannot be read: %w", ErrLockLost, err)
	}
	if !owner.Succeeded {
		return fmt.Errorf("%w: its key is gone from etcd", ErrLockLost)
	}
	return nil
}

// Unlock gives the lock up, also if ctx is over, within Config.ReadTimeout. After an error the lock
// stays taken until its lease runs out. So it does, on purpose, after an ErrAmbiguous change: whoever
// is next must not decide while that change may still be on its way to raft.
func (h *MembershipLock) Unlock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.client.cfg.ReadTimeout)
	defer cancel()
	h.session.Orphan()
	defer func() { _ = h.own.Close() }()
	if h.unsure {
		return nil
	}
	// At any endpoint: the one that it was taken at may just have been removed. The key goes with its
	// lease.
	_, _, err := ask(ctx, h.client, h.client.endpoints(), func(ctx context.Context, conn *clientv3.Client) (struct{}, error) {
		_, err := conn.Revoke(ctx, h.session.Lease())
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			err = nil
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("membership lock: release: %w", err)
	}
	return nil
}
