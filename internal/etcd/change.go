package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
)

// ErrAmbiguous means that a change was sent and no answer says what became of it. It may have been applied, or
// may be applied yet. Read again before anything else; never try the next candidate instead.
var ErrAmbiguous = errors.New("it is not known whether etcd applied it")

// AddLearner adds a member that will be found at peerURL, as a learner, and returns its ID. etcd
// refuses with rpctypes.ErrUnhealthy while too few voters have been connected to the leader for 5 s,
// with ErrTooManyLearners beside an unpromoted one, and with ErrPeerURLExist.
func (h *MembershipLock) AddLearner(ctx context.Context, peerURL string) (id quorum.MemberID, err error) {
	// clientv3 checks the same and gives a plain error, which would look as if it had been sent.
	if _, err := types.NewURLs([]string{peerURL}); err != nil {
		return 0, fmt.Errorf("add a learner at %q: %w", peerURL, err)
	}
	err = h.change(ctx, fmt.Sprintf("add a learner at %s", peerURL), func(ctx context.Context, leader *clientv3.Client) error {
		added, err := leader.MemberAddAsLearner(ctx, []string{peerURL})
		if err == nil {
			id = quorum.MemberID(added.Member.GetID())
		}
		return err
	})
	return id, err
}

// Promote makes a learner a voter. etcd refuses with rpctypes.ErrMemberLearnerNotReady before the
// learner has 90 % of the leader's log, with ErrMemberNotLearner and with ErrMemberNotFound.
func (h *MembershipLock) Promote(ctx context.Context, id quorum.MemberID) error {
	return h.change(ctx, fmt.Sprintf("promote learner %x", id), func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MemberPromote(ctx, uint64(id))
		return err
	})
}

// Remove removes a member. etcd refuses with rpctypes.ErrUnhealthy if what remains would lack a
// quorum of voters connected for 5 s, and with ErrMemberNotFound. A dead member may always go.
func (h *MembershipLock) Remove(ctx context.Context, id quorum.MemberID) error {
	return h.change(ctx, fmt.Sprintf("remove member %x", id), func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MemberRemove(ctx, uint64(id))
		return err
	})
}

// MoveLeader hands leadership to the voter with ID to, and returns when it leads. etcd refuses with
// rpctypes.ErrBadLeaderTransferee for a learner or a stranger, with ErrNotLeader if leadership has
// moved by itself. A transferee that does not answer makes it ErrAmbiguous at the deadline.
func (h *MembershipLock) MoveLeader(ctx context.Context, to quorum.MemberID) error {
	return h.change(ctx, fmt.Sprintf("move leadership to %x", to), func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MoveLeader(ctx, uint64(to))
		return err
	})
}

// change sends one change to the leader, within the lease, ctx's deadline and Config.ChangeTimeout.
//
// To the leader, since the endpoint that is asked judges by its own connections whether a change is
// safe, and only the leader knows how far a learner is or can give leadership away.
func (h *MembershipLock) change(ctx context.Context, what string, send func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, h.client.cfg.ChangeTimeout)
	defer cancel()
	ctx, release, err := h.Context(ctx)
	if err != nil {
		return fmt.Errorf("%s: not sent: %w", what, err)
	}
	defer release()
	leader, err := h.ready(ctx)
	if err != nil {
		return fmt.Errorf("%s: not sent: %w", what, err)
	}
	err = deliver(ctx, what, leader, send)
	h.unsure = h.unsure || errors.Is(err, ErrAmbiguous)
	return err
}

// ready finds the leader, and last of all asks it whether the lock is still held: a leader that was cut off cannot say so.
// See the comment on MembershipLock for what can still go wrong after that.
func (h *MembershipLock) ready(ctx context.Context) (*clientv3.Client, error) {
	at, err := h.client.leader(ctx)
	if err != nil {
		return nil, err
	}
	leader, err := h.client.conn(at)
	if err != nil {
		return nil, err
	}
	return leader, h.verify(ctx, leader)
}

// leader is an endpoint at which a member of the cluster that was read says that it leads.
func (c *Client) leader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	c.refresh()
	c.mu.Lock()
	cluster := c.cluster
	c.mu.Unlock()
	_, at, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (*clientv3.StatusResponse, error) {
		status, err := statusOf(ctx, conn)
		if err != nil {
			return nil, err
		}
		if id := status.Header.GetMemberId(); id != status.Leader || status.Header.GetClusterId() != cluster {
			return nil, fmt.Errorf("member %x answers there, and does not lead cluster %x", id, cluster)
		}
		return status, nil
	})
	if err != nil {
		return "", fmt.Errorf("etcd's leader does not answer: %w", err)
	}
	return at, nil
}

// deliver sends one change and says what became of it.
//
// It is sent once. clientv3 repeats no membership call that may have left (and dial allows one
// attempt at all), and gRPC itself only those that the server has not begun to process.
func deliver(ctx context.Context, what string, to *clientv3.Client, send func(context.Context, *clientv3.Client) error) error {
	// The clock is asked, not only ctx.Err(): after the process was stopped and goes on, the timer
	// that ends ctx may not have run yet.
	if by, ok := ctx.Deadline(); ok && !time.Now().Before(by) {
		return fmt.Errorf("%s: not sent: %w", what, context.DeadlineExceeded)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: not sent: %w", what, context.Cause(ctx))
	}
	err := send(ctx, to)
	switch {
	case err == nil:
		return nil
	case refused(err):
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %w", what, ErrAmbiguous, err)
}

// refused reports whether etcd itself said no. A timeout, a change of leader, a shutdown and an error from outside etcd do
// not say whether the change was applied: those are ambiguous.
func refused(err error) bool {
	// Judged before the change is proposed to raft, although its code is that of a passing trouble.
	if errors.Is(err, rpctypes.ErrUnhealthy) {
		return true
	}
	var said rpctypes.EtcdError
	if !errors.As(err, &said) {
		return false
	}
	switch said.Code() {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated:
		return true
	default:
		return false
	}
}
