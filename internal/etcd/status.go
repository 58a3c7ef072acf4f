package etcd

import (
	"context"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Status is what one member says of itself.
type Status struct {
	Member  quorum.MemberID // its ID
	Cluster uint64          // its cluster's ID
	Leader  quorum.MemberID // the leader's ID, 0 if it knows of none
	Learner bool
	DBSize  int64 // of its database file, in bytes

	Term     uint64 // raft's
	Commit   uint64 // raft's committed index, read after Revision
	Revision int64  // of the keys
}

// Status asks the member at a client URL about itself. The answer is the member's own view, which may
// be behind the ring's.
func (c *Client) Status(ctx context.Context, at string) (Status, error) {
	conn, err := c.conn(at)
	if err != nil {
		return Status{}, err
	}
	s, err := statusOf(ctx, conn)
	if err != nil {
		return Status{}, failure{at, err}
	}
	return Status{
		Member: quorum.MemberID(s.Header.GetMemberId()), Cluster: s.Header.GetClusterId(), Leader: quorum.MemberID(s.Leader), Learner: s.IsLearner, DBSize: s.DbSize,
		Term: s.RaftTerm, Commit: s.RaftIndex, Revision: s.Header.GetRevision(),
	}, nil
}

// Linearizable asks the member at a client URL for a linearizable read, for which it must hear from
// the leader, and the leader from a quorum.
func (c *Client) Linearizable(ctx context.Context, at string) error {
	conn, err := c.conn(at)
	if err != nil {
		return err
	}
	if err := quorate(ctx, conn); err != nil {
		return failure{at, err}
	}
	return nil
}

// Past is a key as it was at a revision, by the data of the member at a client URL alone; nil if there
// was none. known is false if that member does not say, because it compacted the revision or does not
// let this client read.
func (c *Client) Past(ctx context.Context, at string, key []byte, revision int64) (value *mvccpb.KeyValue, known bool, err error) {
	conn, err := c.conn(at)
	if err != nil {
		return nil, false, err
	}
	got, err := conn.Get(ctx, string(key), clientv3.WithRev(revision), clientv3.WithSerializable())
	if err != nil {
		if quiet(err) {
			return nil, false, failure{at, err}
		}
		return nil, false, nil // it answered that it does not say
	}
	if len(got.Kvs) == 0 {
		return nil, true, nil
	}
	return got.Kvs[0], true, nil
}
