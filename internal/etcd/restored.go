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
	at       time.Time // without the monotonic clock, which stands still while a computer sleeps
}

// A sighting counts for so long, and one look at another cluster may take so long; both by the wall clock.
const (
	sightingValid = time.Minute
	lookBound     = 5 * time.Second
)

// Restored has this client go on with the cluster that etcd was restored as, and returns that cluster's ID; 0 if it does not. It
// goes on if all of this holds:
//   - whoever answers is of one other cluster, and one of them by a linearizable read, so that the cluster has quorum;
//   - the API server is stored there: the revision of its store, which stored asks for, lies between two that this cluster has
//     before and after;
//   - the same held at a call in the last minute, at an earlier revision;
//   - no read was good meanwhile.
//
// The error says why it does not, nil if no member of another cluster answers. Call it while no read is good.
func (c *Client) Restored(ctx context.Context, stored func(context.Context) (revision int64, err error)) (cluster uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	c.mu.Lock()
	known, answered, before := c.cluster, c.at, c.sighted
	c.sighted = sighting{} // whatever contradicts it ends it
	c.mu.Unlock()
	began := time.Now().Round(0)
	next, seen, err := c.sight(ctx, known, stored)
	if next == 0 || err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now().Round(0)
	if c.cluster != known || !c.at.Equal(answered) || now.Sub(began) > 2*lookBound || now.Before(began) {
		return 0, nil // it has been answered, or this process slept: look again
	}
	c.sighted = sighting{next, seen, now}
	if before.cluster != next || before.revision >= seen || now.Sub(before.at) > sightingValid || now.Before(before.at) {
		return 0, fmt.Errorf("the API server's objects are in another etcd cluster, %x; this is looked at once more", next)
	}
	c.cfg.Logger.Info("etcd was restored: following another cluster", "cluster", fmt.Sprintf("%x", next), "before", fmt.Sprintf("%x", c.cluster), "revision", seen)
	c.cluster, c.sighted, c.voters, c.last = next, sighting{}, nil, ""
	return next, nil
}

// sight is the one other cluster in which the API server's objects are, and at which revision; 0 if no member answers there, or one of the
// known cluster does.
func (c *Client) sight(ctx context.Context, known uint64, stored func(context.Context) (int64, error)) (cluster uint64, revision int64, err error) {
	at, cluster, err := c.another(ctx, known)
	if cluster == 0 {
		return 0, 0, err
	}
	if revision, err = c.storedAt(ctx, at, cluster, stored); err != nil {
		return 0, 0, fmt.Errorf("%s is of another etcd cluster, %x: %w", at, cluster, err)
	}
	_, again, err := c.another(ctx, known)
	if again != cluster {
		return 0, 0, err
	}
	return cluster, revision, nil
}

// another is the one other cluster that answers, with quorum, and the URL where it does; 0 if there is none.
func (c *Client) another(ctx context.Context, known uint64) (at string, cluster uint64, err error) {
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
func (c *Client) storedAt(ctx context.Context, at string, cluster uint64, stored func(context.Context) (int64, error)) (int64, error) {
	status := func(ctx context.Context) (int64, error) {
		s, err := c.Status(ctx, at)
		if err == nil && s.Cluster != cluster {
			err = errors.New("it is of another etcd cluster now")
		}
		return s.Revision, err
	}
	before, err := status(ctx)
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
	after := before
	for {
		now, err := status(within)
		if err == nil {
			after = now
		}
		switch {
		case err == nil && before <= revision && revision <= after:
			return revision, nil
		case revision < before:
			return 0, fmt.Errorf("the API server's objects are not there: they are at revision %d, and it is at %d already", revision, before)
		}
		select {
		case <-within.Done():
			return 0, fmt.Errorf("the API server's objects are not there: they are at revision %d, and it is at %d", revision, after)
		case <-tick.C:
		}
	}
}
