package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// host is an instance: a machine with power, a kubelet and the static pod of an etcd.
type host struct {
	cloud   *cloud
	name    string
	id      string
	kind    string // the instance type
	zone    string
	address string
	// founders is the initial cluster of the ring's first members; nil for a later host.
	founders map[string]string
	dir      string
	log      *slog.Logger

	mu          sync.Mutex
	on          bool
	terminating bool
	changed     chan struct{} // closed when on or etcd changes, and replaced
	etcd        *ring.Member  // nil while none runs
	cancel      context.CancelFunc
	done        chan struct{} // closed when both loops have ended
}

// start runs the host until it is terminated or the context ends.
func (h *host) start(ctx context.Context) {
	ctx, h.cancel = context.WithCancel(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { h.runEtcd(ctx) })
	loops.Go(func() { h.runKubelet(ctx) })
	go func() {
		loops.Wait()
		close(h.done)
	}()
}

func (h *host) peerURL() string { return h.cloud.ports.PeerURL(h.address) }

// state is whether the host has power, the member that runs on it, and a
// channel that is closed when either changes.
func (h *host) state() (on bool, etcd *ring.Member, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on, h.etcd, h.changed
}

func (h *host) power(on bool) {
	h.change(func() { h.on = on })
	h.log.Info("power", "on", on)
}

func (h *host) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

// runEtcd plays etcd's static pod: as long as the host has power it waits to be
// listed, runs etcd and, when etcd ends, sees whether it was removed.
func (h *host) runEtcd(ctx context.Context) {
	var memberID uint64 // the member whose data is in the data directory; 0 while unknown
	const shortest, longest = 250 * time.Millisecond, 5 * time.Second
	pause := shortest
	for {
		if !h.waitForPower(ctx) {
			return
		}
		spec, id, err := h.admission(ctx, memberID)
		if err == nil {
			memberID = id
			started := time.Now()
			memberID, err = h.runMember(ctx, spec, memberID)
			if time.Since(started) > longest {
				pause = shortest
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue // the power went
		}
		h.log.Warn("etcd", "error", err, "again in", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

func (h *host) waitForPower(ctx context.Context) bool {
	for {
		on, _, changed := h.state()
		if on {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// admission decides how etcd may start here, and waits until it may. The rules
// are those of OpenShift's discovery container: data of a member that is listed
// no more is put aside, a member that has started once never starts without its
// data, and a new one starts when its peer URL is listed.
func (h *host) admission(ctx context.Context, memberID uint64) (ring.MemberSpec, uint64, error) {
	spec := ring.MemberSpec{
		Name: h.name, Address: h.address, Ports: h.cloud.ports,
		Dir: h.dir, Log: filepath.Join(h.cloud.logs, "etcd-"+h.name+".log"),
		InitialCluster: h.founders, Existing: h.founders == nil,
	}
	_, err := os.Stat(spec.DataDir())
	hasData := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return spec, 0, err
	}
	if !hasData && h.founders != nil {
		return spec, 0, nil
	}
	if hasData {
		if !h.removed(ctx, memberID) {
			return spec, memberID, nil
		}
		if err := h.archive(spec.DataDir(), memberID); err != nil {
			return spec, 0, err
		}
	}
	h.founders = nil // a founder that was removed comes back like any other
	spec.Existing = true
	said := false
	for {
		list, listChanged := h.cloud.members.latest()
		me := byPeerURL(list, h.peerURL())
		if me != nil && me.Name == "" {
			spec.InitialCluster = map[string]string{}
			for _, m := range list {
				name := m.Name
				if m.ID == me.ID {
					name = h.name
				}
				if name != "" && len(m.PeerURLs) > 0 {
					spec.InitialCluster[name] = m.PeerURLs[0]
				}
			}
			return spec, me.ID, nil
		}
		if !said {
			said = true
			h.log.Info("etcd waits", "peer", h.peerURL(), "listed without its data", me != nil)
		}
		on, _, changed := h.state()
		if !on {
			return spec, 0, errors.New("the power went while waiting to be listed")
		}
		select {
		case <-ctx.Done():
			return spec, 0, ctx.Err()
		case <-changed:
		case <-listChanged:
		}
	}
}

// removed is true if etcd says that it no longer lists the member. Without an
// answer the ring may be down for want of this very one.
func (h *host) removed(ctx context.Context, memberID uint64) bool {
	list, err := h.cloud.members.read(ctx, time.Second)
	return err == nil && memberID != 0 && !listed(list, memberID)
}

func (h *host) archive(data string, memberID uint64) error {
	aside := data + "-removed-" + time.Now().UTC().Format("20060102-150405.000")
	if err := os.Rename(data, aside); err != nil {
		return fmt.Errorf("putting the data of a removed member aside: %w", err)
	}
	h.log.Info("etcd's member was removed, its data was put aside", "member", fmt.Sprintf("%x", memberID), "data", aside)
	return nil
}

// runMember runs etcd until it ends by itself (an error), the power goes (none)
// or the host ends. It returns the member's ID, which a founder learns from the list.
func (h *host) runMember(ctx context.Context, spec ring.MemberSpec, memberID uint64) (uint64, error) {
	etcd, err := ring.StartMember(h.cloud.ca, spec)
	if err != nil {
		return memberID, err
	}
	h.change(func() { h.etcd = etcd })
	defer h.change(func() { h.etcd = nil })
	h.log.Info("etcd runs", "pid", etcd.Process().PID(), "existing", spec.Existing)
	for {
		list, listChanged := h.cloud.members.latest()
		if me := byPeerURL(list, h.peerURL()); me != nil && memberID == 0 {
			memberID = me.ID
		}
		on, _, changed := h.state()
		if !on {
			return memberID, etcd.Kill()
		}
		select {
		case <-ctx.Done():
			if h.isTerminating() {
				return memberID, etcd.Stop()
			}
			// The whole sandbox ends; an etcd that loses quorum meanwhile would take long.
			return memberID, etcd.Kill()
		case <-etcd.Process().Done():
			return memberID, etcd.Process().Err()
		case <-changed:
		case <-listChanged:
		}
	}
}

// Host is what a test does to a host beyond what the cloud offers.
type Host struct {
	// Name is that of the instance, the Node and the etcd member.
	Name string
	// Address is the host's own on loopback.
	Address string
	// ClientURL and PeerURL are its etcd's, whether one runs or not.
	ClientURL, PeerURL string
	// Etcd is the process of its etcd now; nil while none runs. Killing it is a
	// crash: the host starts it again.
	Etcd *process.Process
}

func (h *host) public() Host {
	_, etcd, _ := h.state()
	public := Host{
		Name: h.name, Address: h.address,
		ClientURL: h.cloud.ports.ClientURL(h.address), PeerURL: h.peerURL(),
	}
	if etcd != nil {
		public.Etcd = etcd.Process()
	}
	return public
}
