package observe

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Claims are the Machines outside the control plane that have the host of one of its Machines, as the last look found them, to report them: the API server
// keeps new ones from coming about, and their deletion is judged by a look of its own. An Observer's Watch looks now and then, and when the
// control plane's hosts change. Make one with NewClaims.
type Claims struct {
	wake chan struct{} // has one element while the hosts have changed since the last look

	mu    sync.Mutex
	hosts []string // keys of the control plane's hosts at the last look
	names []string
	why   string // they are not known
}

// NewClaims are none.
func NewClaims() *Claims { return &Claims{wake: make(chan struct{}, 1)} }

const (
	claimsEvery = 10 * time.Minute // a look reads every Machine whole
	claimsPause = 2 * time.Second  // between two looks
	// mostClaimants is how many are reported: a person mends one after the other.
	mostClaimants = 10
)

// Watch keeps Claims until the context ends.
func (o *Observer) Watch(ctx context.Context) error {
	for {
		o.Claims.found(o.claims(ctx))
		pause := time.After(claimsPause)
		select {
		case <-ctx.Done():
			return nil
		case <-o.Claims.wake:
		case <-time.After(claimsEvery):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause:
		}
	}
}

// claims looks once.
func (o *Observer) claims(ctx context.Context) (hosts, names []string, err error) {
	s := &quorum.Snapshot{}
	if s.Machines, err = o.Machines(ctx); err != nil {
		return nil, nil, err
	}
	if s.Nodes, err = Nodes(ctx, o.API); err != nil {
		return nil, nil, err
	}
	err = o.each(ctx, func(m *quorum.Machine) {
		if goes, _ := s.LostWith(m); goes != nil && !m.ControlPlane() && len(names) < mostClaimants {
			names = append(names, m.Name)
		}
	})
	return s.HostKeys(), names, err
}

func (c *Claims) found(hosts, names []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why = ""; err != nil {
		c.why, c.hosts = err.Error(), nil
		return
	}
	c.hosts, c.names = hosts, names
}

// known are the names that the last look found, and why they are not known. If the control plane's hosts are others by now, Watch looks again.
func (c *Claims) known(s *quorum.Snapshot) (names []string, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.hosts, s.HostKeys()) {
		Wake(c.wake)
	}
	return c.names, c.why
}
