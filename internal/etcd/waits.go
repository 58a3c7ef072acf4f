package etcd

import (
	"context"
	"fmt"
	"strconv"
	"strings"

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

// Waits has etcd hold for another 15 s that a member's etcd waits on this host, at the peer URL. Call it every few seconds, from one goroutine.
func (c *Client) Waits(ctx context.Context, id quorum.MemberID, peerURL string) error {
	was := c.waiting
	now := waiting{key: fmt.Sprintf("%s%x/%s", waitsPrefix, id, peerURL)}
	lease, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (clientv3.LeaseID, error) {
		if was.key == now.key {
			if kept, err := conn.KeepAliveOnce(ctx, was.lease); err == nil {
				return kept.ID, nil
			}
		}
		granted, err := conn.Grant(ctx, waitsTTL)
		if err != nil {
			return 0, err
		}
		_, err = conn.Put(ctx, now.key, "", clientv3.WithLease(granted.ID))
		return granted.ID, err
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
	c.waiting = waiting{}
	_, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (*clientv3.LeaseRevokeResponse, error) {
		return conn.Revoke(ctx, was.lease)
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", was.key, err)
	}
	return nil
}

// waits reads at which peer URL each member's etcd waits. A member whose etcd waits at two waits at none: its data were copied.
func (c *Client) waits(ctx context.Context) map[quorum.MemberID]string {
	got, _, err := ask(ctx, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (*clientv3.GetResponse, error) {
		return conn.Get(clientv3.WithRequireLeader(ctx), waitsPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
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

// wasUnwell is whether a voter did not answer the last read. Only then somebody may wait.
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
		unwell = unwell || !m.Learner && !m.Healthy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwell = unwell
}
