package etcd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// nameAge is how old an answer of DNS may be. A look is taken every second or so.
const nameAge = 30 * time.Second

// lookup is what DNS said of a host name.
type lookup struct {
	at      time.Time
	missing bool // it has no address
}

// keepNames writes into the members which host name of a peer URL has no address any more. An answer that does not come says nothing.
func (c *Client) keepNames(ctx context.Context, members []quorum.Member) {
	for i := range members {
		for _, raw := range members[i].PeerURLs {
			u, err := url.Parse(raw)
			if err != nil || u.Hostname() == "" {
				continue
			}
			if _, err := netip.ParseAddr(u.Hostname()); err != nil && c.missing(ctx, u.Hostname()) {
				members[i].NoAddress = u.Hostname()
			}
		}
	}
}

// missing says whether DNS has no address for a host name.
func (c *Client) missing(ctx context.Context, name string) bool {
	c.mu.Lock()
	known, ok := c.names[name]
	c.mu.Unlock()
	if ok && time.Since(known.at) < nameAge {
		return known.missing
	}
	_, err := c.cfg.LookupHost(ctx, name)
	var said *net.DNSError
	now := lookup{at: time.Now(), missing: errors.As(err, &said) && said.IsNotFound}
	if err != nil && !now.missing {
		now.missing = known.missing // it did not answer: what it said before stands
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[name] = now
	return now.missing
}
