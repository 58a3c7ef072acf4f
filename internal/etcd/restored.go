package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A restore from a snapshot makes another etcd cluster, with an ID of its own. Nothing that etcd says shows that this cluster takes the
// place of the one before: an etcd that somebody starts on a host that was installed anew says the same. The API server shows it,
// because all its objects are in etcd, and it says at which revision they are.

// sighting is another cluster, and a revision at which the API server's store was there.
type sighting struct {
	cluster  uint64
	revision int64
}

// Restored has this client go on with the cluster that etcd was restored as, and returns that cluster's ID; 0 if it does not. It
// goes on if all of this holds:
//   - whoever answers is of one other cluster, and one of them by a linearizable read, so that the cluster has quorum;
//   - the API server is stored there: the revision of its store, which stored asks for, lies between two that this cluster has
//     before and after;
//   - the same held at an earlier call, and at an earlier revision.
//
// The error says why it does not, nil if nobody of another cluster answers. Call it while no read is good.
func (c *Client) Restored(ctx context.Context, stored func(context.Context) (revision int64, err error)) (cluster uint64, err error) {
	at, next, err := c.another(ctx)
	if next == 0 {
		return 0, err
	}
	seen, err := c.storedAt(ctx, at, stored)
	if err != nil {
		return 0, fmt.Errorf("%s is of another etcd cluster, %x: %w", at, next, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.sighted
	c.sighted = sighting{next, seen}
	if before.cluster != next || before.revision >= seen {
		return 0, fmt.Errorf("%s is of another etcd cluster, %x, in which the API server's objects are; this is looked at once more", at, next)
	}
	c.cfg.Logger.Info("etcd was restored: following another cluster", "cluster", fmt.Sprintf("%x", next), "before", fmt.Sprintf("%x", c.cluster), "revision", seen)
	c.cluster, c.sighted, c.voters, c.last = next, sighting{}, nil, ""
	return next, nil
}

// another is the one other cluster that answers, with quorum, and the URL where it does; 0 if there is none.
func (c *Client) another(ctx context.Context) (at string, cluster uint64, err error) {
	c.mu.Lock()
	known := c.cluster
	c.mu.Unlock()
	if known == 0 {
		return "", 0, nil
	}
	for _, contact := range c.Contacts(ctx) {
		switch id := contact.Status.Cluster; {
		case contact.Err != nil:
		case id == known:
			return "", 0, nil // it may get its quorum back
		case cluster != 0 && id != cluster:
			return "", 0, fmt.Errorf("%s and %s are of two etcd clusters, %x and %x", at, contact.URL, cluster, id)
		default:
			at, cluster = contact.URL, id
		}
	}
	if cluster == 0 {
		return "", 0, nil
	}
	within, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), c.cfg.ReadTimeout)
	defer cancel()
	_, at, err = ask(within, c, c.endpoints(), func(ctx context.Context, conn *clientv3.Client) (any, error) {
		list, err := conn.MemberList(ctx)
		if err == nil && list.Header.GetClusterId() != cluster {
			err = errors.New("it is of another etcd cluster now")
		}
		return nil, err
	})
	if err != nil {
		return "", 0, fmt.Errorf("another etcd cluster, %x, has no quorum: %w", cluster, err)
	}
	return at, cluster, nil
}

// storedAt is the revision of the API server's store, if that is between two revisions of the member at this URL.
func (c *Client) storedAt(ctx context.Context, at string, stored func(context.Context) (int64, error)) (int64, error) {
	before, err := c.Status(ctx, at)
	if err != nil {
		return 0, err
	}
	revision, err := stored(ctx)
	if err != nil {
		return 0, err
	}
	// The member may apply a little later what the API server has read already.
	within, cancel := context.WithTimeout(ctx, c.cfg.ReadTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		after, err := c.Status(within, at)
		switch {
		case err == nil && before.Revision <= revision && revision <= after.Revision:
			return revision, nil
		case err == nil && revision < before.Revision:
			return 0, fmt.Errorf("the API server's objects are not there: they are at revision %d, and it is at %d already", revision, before.Revision)
		}
		select {
		case <-within.Done():
			return 0, fmt.Errorf("the API server's objects are not there: they are at revision %d, and it is at %d", revision, max(before.Revision, after.Revision))
		case <-tick.C:
		}
	}
}
