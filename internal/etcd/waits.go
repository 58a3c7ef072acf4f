package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// waitsPrefix is where hosts say which member's etcd waits on them, a key for each: the member's hex ID, a slash, and the host's peer URL.
const waitsPrefix = quorum.WaitsName + "/"

// waitsTTL is for how many seconds such a key outlasts the host's last word.
const waitsTTL = 15

// waiting is the key that this client keeps, "" for none.
type waiting struct {
	key   string
	lease clientv3.LeaseID
}

// Waits has etcd hold for another 15 s that a member's etcd waits on this host, at the peer URL. Call it every few seconds, and
// neither it nor WaitsNoMore twice at a time.
func (c *Client) Waits(ctx context.Context, id quorum.MemberID, peerURL string) error {
	was := c.waiting
	now := waiting{key: fmt.Sprintf("%s%x/%s", waitsPrefix, id, peerURL)}
	lease, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (clientv3.LeaseID, error) {
		lease, kept := was.lease, false
		if was.key == now.key {
			_, err := conn.KeepAliveOnce(ctx, lease)
			kept = err == nil
		}
		if !kept {
			granted, err := conn.Grant(ctx, waitsTTL)
			if err != nil {
				return 0, err
			}
			lease = granted.ID
		}
		// Also under a lease that is kept: another endpoint, asked at the same time, may have written the key under a lease of its own.
		put, err := conn.Put(ctx, now.key, "", clientv3.WithLease(lease))
		if err == nil {
			err = c.ofThis(put.Header)
		}
		if err != nil {
			_, _ = conn.Revoke(ctx, lease) // else each attempt leaves one
			return 0, err
		}
		return lease, nil
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", now.key, err)
	}
	now.lease = lease
	c.waiting = now
	return nil
}

// WaitsNoMore takes back what Waits said last.
func (c *Client) WaitsNoMore(ctx context.Context) error {
	was := c.waiting
	if was.key == "" {
		return nil
	}
	_, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (*clientv3.DeleteResponse, error) {
		_, _ = conn.Revoke(ctx, was.lease)
		return conn.Delete(ctx, was.key)
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", was.key, err)
	}
	c.waiting = waiting{}
	return nil
}

// ofThis is an error if an answer is of another etcd than that which this client is about.
func (c *Client) ofThis(header *etcdserverpb.ResponseHeader) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := header.GetClusterId(); id != c.cluster {
		return fmt.Errorf("it is of another etcd cluster, %x instead of %x", id, c.cluster)
	}
	return nil
}

// waits reads at which peer URL each member's etcd waits. A member whose etcd waits at two waits at none: its data were copied.
func (c *Client) waits(ctx context.Context) map[quorum.MemberID]string {
	got, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (*clientv3.GetResponse, error) {
		got, err := conn.Get(clientv3.WithRequireLeader(ctx), waitsPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err == nil {
			err = c.ofThis(got.Header)
		}
		return got, err
	})
	if err != nil {
		return nil
	}
	at := map[quorum.MemberID]string{}
	for _, kv := range got.Kvs {
		hex, peerURL, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), waitsPrefix), "/")
		id, err := strconv.ParseUint(hex, 16, 64)
		if err != nil {
			continue
		}
		if _, twice := at[quorum.MemberID(id)]; twice {
			peerURL = ""
		}
		at[quorum.MemberID(id)] = peerURL
	}
	return at
}

// wasUnwell is whether a member did not answer the last read. Only then somebody may wait, and the leader is asked how far the members are.
func (c *Client) wasUnwell() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unwell
}

// keepWaits writes where etcd waits into the members of a read, and keeps whether the next read has to ask.
func (c *Client) keepWaits(ring *quorum.Ring, waits map[quorum.MemberID]string) {
	unwell := false
	for i := range ring.Members {
		m := &ring.Members[i]
		m.WaitsAt = waits[m.ID]
		unwell = unwell || !m.Healthy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwell = unwell
}
