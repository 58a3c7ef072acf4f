package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/test/metrics"
	"github.com/holdfast-dev/holdfast/test/process"
)

// holdfastPorts are a replica's, on Holdfast's own address.
type holdfastPorts struct{ webhook, metrics, probe int }

// replica is one of Holdfast's.
type replica struct {
	component *Component
	ports     holdfastPorts
	ready     atomic.Pointer[process.Process] // the process that passed its last readiness probe
}

// serves reports whether new connections may be led to it.
func (r *replica) serves() bool {
	proc := r.ready.Load()
	return proc != nil && proc == r.component.Process() && !closed(proc.Done())
}

// prepareReplicas gives each replica its ports and its component.
func (s *Sandbox) prepareReplicas() error {
	for i := range s.options.HoldfastReplicas {
		ports, err := s.freeHoldfastPorts()
		if err != nil {
			return err
		}
		name := "holdfast"
		if i > 0 {
			name += "-" + strconv.Itoa(i+1)
		}
		spec := func() (process.Spec, error) { return s.holdfastSpec(name, ports) }
		s.holdfasts = append(s.holdfasts, &replica{
			ports:     ports,
			component: &Component{Name: name, spec: spec, failed: s.fail, revive: s.reviver(name)},
		})
	}
	s.Holdfast, s.webhookPort = s.holdfasts[0].component, s.holdfasts[0].ports.webhook
	return nil
}

func (s *Sandbox) freeHoldfastPorts() (holdfastPorts, error) {
	ports, err := s.block.FreePorts(3)
	if err != nil {
		return holdfastPorts{}, fmt.Errorf("ports for Holdfast: %w", err)
	}
	return holdfastPorts{webhook: ports[0], metrics: ports[1], probe: ports[2]}, nil
}

// Holdfasts are the replicas of Holdfast.
func (s *Sandbox) Holdfasts() []*Component {
	var all []*Component
	for _, r := range s.holdfasts {
		all = append(all, r.component)
	}
	return all
}

// reviver has a replica started again that a signal killed, or that ended after it lost its election, say: what a
// kubelet does. Where that would hide a defect the sandbox fails: before Holdfast is ready for the first time, and
// after a panic (exit status 2).
func (s *Sandbox) reviver(name string) func(*process.Process) bool {
	return func(proc *process.Process) bool {
		if status, exited := proc.ExitCode(); exited && (status == 2 || !s.holdfastStood.Load()) {
			return false
		}
		s.cloud.log.Warn("Holdfast ended", "name", name, "pid", proc.PID(), "how", proc.Ended(), "again in", restartDelay)
		s.progress("%s (process %d) ended: %s; it is started again in %s", name, proc.PID(), proc.Ended(), restartDelay)
		return true
	}
}

// startBalancer plays the Service before several replicas, until the sandbox stops.
func (s *Sandbox) startBalancer() error {
	if len(s.holdfasts) == 1 {
		return nil
	}
	ports, err := s.block.FreePorts(1)
	if err != nil {
		return fmt.Errorf("a port for Holdfast: %w", err)
	}
	s.webhookPort = ports[0]
	listener, err := (&net.ListenConfig{}).Listen(s.background, "tcp", joinPort(s.holdfastHost, s.webhookPort))
	if err != nil {
		return fmt.Errorf("Holdfast's address: %w", err)
	}
	s.closers = append(s.closers, listener.Close)
	for _, r := range s.holdfasts {
		s.work.Go(func() { s.followReadiness(s.background, r) })
	}
	go lead(s.background, listener, s.cloud.log.With("part", "balancer"), s.pickReplica)
	return nil
}

// followReadiness probes a replica as deploy/base has kubelets do.
func (s *Sandbox) followReadiness(ctx context.Context, r *replica) {
	var asked *process.Process
	ask := func(ctx context.Context, p *corev1.Probe) error {
		asked = r.component.Process()
		return probeHTTP(ctx, http.DefaultClient, limitOf(p), s.url(r.ports.probe, "/readyz"))
	}
	_ = runProbe(ctx, readiness, &corev1.Probe{PeriodSeconds: 2, TimeoutSeconds: 2, FailureThreshold: 2}, ask, func(wrong error) (enough bool) {
		if wrong != nil {
			asked = nil
		}
		r.ready.Store(asked)
		return false
	})
}

// pickReplica is where one of the replicas that are ready listens, chosen at random.
func (s *Sandbox) pickReplica() (address string, ok bool) {
	ready := slices.DeleteFunc(slices.Clone(s.holdfasts), func(r *replica) bool { return !r.serves() })
	if len(ready) == 0 {
		return "", false
	}
	return joinPort(s.holdfastHost, ready[rand.IntN(len(ready))].ports.webhook), true
}

// Elected is the replica that says that it leads, which one that hangs does not. The error says why it is
// none: nobody does, or two do for a moment.
func (s *Sandbox) Elected(ctx context.Context) (*Component, error) {
	var leads []*Component
	var errs []error
	for _, r := range s.holdfasts {
		yes, err := s.saysItLeads(ctx, r)
		if yes {
			leads = append(leads, r.component)
		}
		errs = append(errs, err)
	}
	if len(leads) != 1 {
		return nil, errors.Join(append(errs, fmt.Errorf("%d of %d replicas of Holdfast say that they are elected", len(leads), len(s.holdfasts)))...)
	}
	return leads[0], nil
}

func (s *Sandbox) saysItLeads(ctx context.Context, r *replica) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	page, err := metrics.Read(ctx, http.DefaultClient, s.url(r.ports.metrics, "/metrics"))
	return page[`leader_election_master_status{name="holdfast"}`] == 1, err
}

// SecondHoldfast starts another replica of Holdfast, which runs the reconciler as well, without an election:
// what two leaders do for a moment. Its webhooks are registered nowhere. The flags replace the sandbox's. The caller stops it.
func (s *Sandbox) SecondHoldfast(flags ...string) (*process.Process, error) {
	ports, err := s.freeHoldfastPorts()
	if err != nil {
		return nil, err
	}
	spec, err := s.holdfastSpec("holdfast-unelected", ports)
	if err != nil {
		return nil, err
	}
	for _, flag := range append(flags, "--leader-elect=false") {
		name, _, _ := strings.Cut(flag, "=")
		spec.Args = append(slices.DeleteFunc(spec.Args, func(arg string) bool { return strings.HasPrefix(arg, name+"=") }), flag)
	}
	return process.Start(spec)
}
