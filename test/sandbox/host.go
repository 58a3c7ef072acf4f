package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// host is an instance: a machine with power, a kubelet and the static pod of an etcd.
type host struct {
	cloud *cloud
	name  string
	id    string
	kind  string // the instance type
	zone  string
	// founders is the initial cluster of the ring's first members; nil for a later host.
	founders map[string]string
	dir      string
	log      *slog.Logger

	mu          sync.Mutex
	address     string
	on          bool
	terminating bool
	changed     chan struct{}    // closed when on or etcd changes, and replaced
	etcd        *process.Process // of etcd's container: holdfast verify membership, which becomes etcd; nil while none runs
	ready       bool             // etcd's container, by its probes
	apiServer   *process.Process // nil while none runs
	serves      context.Context  // of the API server, until it is not ready any more; nil while it is not
	pods        int              // pods of etcd that there were, one after the other
	ctx         context.Context  // until it is terminated
	cancel      context.CancelFunc
	workloads   map[string]*workload // containers that run, by the pod's UID
	done        chan struct{}        // closed when both loops have ended
}

// start runs the host until it is terminated or the context ends.
func (h *host) start(ctx context.Context) {
	ctx, h.cancel = context.WithCancel(ctx)
	h.ctx = ctx
	var loops sync.WaitGroup
	loops.Go(func() { h.runFiles(ctx) })
	loops.Go(func() { h.runEtcd(ctx) })
	loops.Go(func() { h.runKubelet(ctx) })
	loops.Go(func() { h.runPods(ctx) })
	loops.Go(func() { h.runAPIServer(ctx) })
	go func() {
		loops.Wait()
		close(h.done)
	}()
}

func (h *host) peerURL() string { return h.cloud.ports.PeerURL(h.at()) }

// at is the host's address.
func (h *host) at() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.address
}

// state is whether the host has power, the member that runs on it, and a
// channel that is closed when either changes.
func (h *host) state() (on bool, etcd *process.Process, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on, h.etcd, h.changed
}

func (h *host) power(on bool) {
	h.change(func() {
		h.on = on
		h.pods++
	})
	h.log.Info("power", "on", on)
}

func (h *host) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	close(h.changed)
	h.changed = make(chan struct{})
}

// runEtcd plays the kubelet and etcd's static pod: while the host has power there is a pod, one after the other.
func (h *host) runEtcd(ctx context.Context) {
	for h.waitForPower(ctx) {
		h.runPod(ctx, h.podNow())
	}
}

// runPod runs one pod as a kubelet does: the init containers to their ends, one after the other, and then etcd, which alone is
// started again when it ends. It returns when the power goes or the host ends. A kubelet's pauses between two starts are longer.
func (h *host) runPod(ctx context.Context, pod int) {
	var containers []func(context.Context) error
	for i := range h.cloud.pod.Spec.InitContainers {
		c := &h.cloud.pod.Spec.InitContainers[i]
		containers = append(containers, func(ctx context.Context) error { return h.initContainer(ctx, pod, c) })
	}
	containers = append(containers, func(ctx context.Context) error { return h.runMember(ctx, pod) })
	const shortest, longest = 250 * time.Millisecond, 5 * time.Second
	pause := shortest
	for i := 0; h.has(pod) && ctx.Err() == nil; {
		started := time.Now()
		err := containers[i](ctx)
		switch {
		case ctx.Err() != nil || !h.has(pod):
			return
		case err == nil && i < len(containers)-1:
			i++
			continue
		case time.Since(started) > 2*longest:
			pause = shortest
		}
		h.log.Warn("etcd", "error", err, "again in", pause)
		over := make(chan struct{})
		timer := time.AfterFunc(pause, func() { close(over) })
		for !closed(over) && h.has(pod) && h.wait(ctx, over, nil) == nil {
		}
		timer.Stop()
		pause = min(2*pause, longest)
	}
}

// podNow is the pod of etcd that the host has while it has power.
func (h *host) podNow() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pods
}

// has says whether the host runs that pod of etcd.
func (h *host) has(pod int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on && h.pods == pod
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

var errPower = errors.New("the power went")

// wait returns when one of the channels does, or the host changes. It fails when
// the host has no power or ends.
func (h *host) wait(ctx context.Context, one, other <-chan struct{}) error {
	on, _, changed := h.state()
	if !on {
		return errPower
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-one:
	case <-other:
	}
	return nil
}

func (h *host) dataDir() string { return filepath.Join(h.dir, "data") }

// runMember runs etcd until it ends by itself (an error), the power goes (none)
// or the host ends.
func (h *host) runMember(ctx context.Context, pod int) error {
	container := &h.cloud.pod.Spec.Containers[0]
	etcd, err := h.startContainer(container, h.cloud.etcdArgs...)
	if err != nil {
		return err
	}
	h.change(func() { h.etcd = etcd })
	h.log.Info("etcd's container runs", "pid", etcd.PID())
	probing, stop := context.WithCancel(ctx)
	sick := make(chan error, 1)
	var probes sync.WaitGroup
	probes.Go(func() {
		if err := runProbes(probing, container, h.askEtcd, h.etcdIs); err != nil {
			sick <- err
		}
	})
	defer h.change(func() { h.etcd, h.ready = nil, false })
	defer probes.Wait()
	defer stop()
	return h.attend(ctx, pod, etcd, ring.Grace, sick)
}

// askEtcd asks as a probe of etcd's static pod does, which is one that StaticPod allows.
func (h *host) askEtcd(ctx context.Context, p *corev1.Probe) error {
	return probeHTTP(ctx, http.DefaultClient, limitOf(p), "http://"+h.etcdHost().Loopback+p.HTTPGet.Path)
}

// etcdIs keeps whether etcd's container is ready.
func (h *host) etcdIs(wrong error) {
	if ok := wrong == nil; h.public().Ready != ok {
		h.change(func() { h.ready = ok })
		h.log.Info("etcd", "ready", ok)
	}
}

// attend waits until a process ends by itself (an error), the power goes (none), something is wrong with it or the host ends. One on a
// host that is terminated has some time to end.
func (h *host) attend(ctx context.Context, pod int, p *process.Process, grace time.Duration, sick <-chan error) error {
	for {
		_, _, changed := h.state()
		if !h.has(pod) {
			return p.Stop(0)
		}
		select {
		case <-ctx.Done():
			if h.isTerminating() {
				return p.Stop(grace)
			}
			// The whole sandbox ends; an etcd that loses quorum meanwhile would take long.
			return p.Stop(0)
		case <-p.Done():
			return p.Err()
		case err := <-sick:
			return errors.Join(err, h.end(ctx, p))
		case <-changed:
		}
	}
}

// end ends a container as a kubelet does: a process that hangs does not hear that it is to end, and is killed. A real one is given
// the pod's terminationGracePeriodSeconds, which is longer.
func (h *host) end(ctx context.Context, p *process.Process) error {
	_ = p.Signal(syscall.SIGTERM) // it may have ended
	grace := time.NewTimer(ring.Grace)
	defer grace.Stop()
	select {
	case <-ctx.Done():
	case <-p.Done():
	case <-grace.C:
	}
	return p.Stop(0)
}

// Host is what a test does to a host beyond what the cloud offers.
type Host struct {
	// Name is that of the instance, the Node and the etcd member.
	Name string
	// Address is the host's own on loopback.
	Address string
	// DataDir is its etcd's data directory.
	DataDir string
	// ClientURL and PeerURL are its etcd's, whether one runs or not.
	ClientURL, PeerURL string
	// MetricsURL is where a scraper on the host reads etcd's metrics. Cutting off the host's address leaves it.
	MetricsURL string
	// Etcd is the process of its etcd now; nil while none runs. Killing it is a
	// crash: the host starts it again. One that hangs is started again when its liveness
	// probe has failed for so long as the static pod allows, which is two minutes.
	Etcd *process.Process
	// Ready says whether etcd's container is, by its readiness probe.
	Ready bool
	// APIServer is the process of its API server, and Serves says whether requests are led there; where each host has one.
	APIServer *process.Process
	Serves    bool
}

func (h *host) public() Host {
	h.mu.Lock()
	etcd, ready, apiServer, serves := h.etcd, h.ready, h.apiServer, h.serves != nil
	h.mu.Unlock()
	if etcd != nil && !runsEtcd(etcd) {
		etcd = nil
	}
	return Host{
		Name: h.name, Address: h.at(), DataDir: h.dataDir(),
		ClientURL: h.cloud.ports.ClientURL(h.at()), PeerURL: h.peerURL(), MetricsURL: "http://" + h.etcdHost().Loopback + "/metrics", Etcd: etcd, Ready: ready,
		APIServer: apiServer, Serves: serves,
	}
}

// runsEtcd says whether holdfast verify membership has become etcd.
func runsEtcd(p *process.Process) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID()))
	return err == nil && strings.TrimSpace(string(name)) == "etcd"
}
