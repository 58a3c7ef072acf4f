package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/controller"
	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/recorder"
	"github.com/holdfast-dev/holdfast/internal/registrations"
	"github.com/holdfast-dev/holdfast/internal/setcontroller"
	"github.com/holdfast-dev/holdfast/internal/webhookserver"
	"github.com/holdfast-dev/holdfast/webhooks"
)

// process is what the parts of one Holdfast share.
type process struct {
	flags     *runOptions
	log       logr.Logger
	ring      *etcd.Client
	mgr       ctrl.Manager
	api       client.WithWatch // past the manager's cache
	events    events.EventRecorder
	records   *audit.Sink
	observer  *observe.Observer
	server    *webhookserver.Server
	meters    *controller.Metrics
	setMeters *setcontroller.Metrics // full mode
	asked     chan struct{}          // closed once this replica has asked etcd for the first time
	news      chan struct{}          // full mode: the reconciler has seen something new, of etcd say
}

// run sets the parts up, and runs them until the context ends.
func (p *process) run(ctx context.Context, config *rest.Config, types *runtime.Scheme) error {
	var err error
	if p.mgr, err = p.flags.manager(config, types); err != nil {
		return err
	}
	broadcaster, err := recorder.NewEventBroadcaster(context.WithoutCancel(ctx), config, p.mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	defer broadcaster.Shutdown() // the webhooks have answered their last request by then
	p.events = broadcaster.NewRecorder(types, "holdfast")
	p.meters = controller.NewMetrics(metrics.Registry)
	if p.flags.mode == quorum.ModeFull {
		p.setMeters, p.news = setcontroller.NewMetrics(metrics.Registry), make(chan struct{}, 1)
	}
	p.flags.audit.Registerer, p.flags.audit.Log = metrics.Registry, p.log.WithName("audit")
	if p.records, err = audit.New(p.flags.audit); err != nil {
		return cli.Usage("%w", err)
	}
	defer func() {
		// The webhooks have answered their last request by now.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := p.records.Close(ctx); err != nil {
			p.log.Error(err, "some audit records did not reach their remote sink")
		}
	}()
	if err := p.observe(); err != nil {
		return err
	}
	if err := p.lead(config); err != nil {
		return err
	}
	if err := p.answer(); err != nil {
		return err
	}
	ctx, stop := p.flags.drain.context(ctx)
	defer stop()
	p.log.Info("starting", "version", cli.Build("holdfast"), "mode", p.flags.mode, "enforcement", p.flags.enforcement.String(), "namespace", p.flags.namespace, "endpoints", p.flags.endpoints)
	if err := p.mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}
	return nil
}

// observe sets up what every replica reads: etcd, its alarms, and the cluster.
func (p *process) observe() error {
	alarms := controller.NewAlarms(p.ring, metrics.Registry, p.log.WithName("alarms"))
	search := p.flags.search(p.api, p.ring, p.log)
	if err := cmp.Or(p.mgr.Add(search), p.mgr.Add(alarms), p.flags.etcdFiles.keep(p.mgr, p.log)); err != nil {
		return fmt.Errorf("set up what looks for etcd: %w", err)
	}
	p.observer = &observe.Observer{
		API: p.api, Tries: p.api, Etcd: p.ring, Namespace: p.flags.namespace, EtcdNamespace: p.flags.etcdNamespace, Mode: p.flags.mode,
		Desired: p.flags.desired, Limits: p.flags.limits, Clock: clock.RealClock{},
		Claims: observe.NewClaims(),
	}
	return nil
}

// lead sets up the election, and what the elected replica does: the reconciler, and keeping the registrations.
func (p *process) lead(config *rest.Config) (err error) {
	times := electionTimes{lease: 15 * time.Second, renew: 10 * time.Second, retry: 2 * time.Second} // client-go's and controller-runtime's
	elected := &terms{elected: p.meters.Elected, log: p.log.WithName("election"), times: times}
	if p.flags.elect {
		if elected.lock, err = newLease(config, p.flags.electNamespace, times, p.mgr, elected.log); err != nil {
			return fmt.Errorf("set up the election: %w", err)
		}
	}
	keeper, err := p.serve(elected)
	if err != nil {
		return err
	}
	elected.lead = func(ctx context.Context) error {
		select { // this replica is ready first: what leads would take the processor from that
		case <-p.asked:
		case <-ctx.Done():
			return nil
		}
		reconciler, err := p.reconciler()
		if err != nil {
			return err
		}
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return reconciler.Run(ctx, p.api) })
		group.Go(func() error { return keeper.Lead(ctx) })
		group.Go(func() error { return p.observer.Watch(ctx) })
		if p.flags.mode == quorum.ModeFull {
			group.Go(func() error { return p.setController().Run(ctx, p.api) })
		}
		return group.Wait()
	}
	if err := p.mgr.Add(elected); err != nil {
		return fmt.Errorf("set up the election: %w", err)
	}
	return nil
}

// reconciler is made anew each time that this replica is elected: it knows nothing of the time between.
func (p *process) reconciler() (*controller.Reconciler, error) {
	r := &controller.Reconciler{
		Client: p.api, Etcd: p.ring, Observer: p.observer, ReportOnly: p.flags.enforcement != admission.Enforce, StandDown: !p.flags.besideOperator,
		Log: p.log.WithName("reconciler"),
		Reports: controller.Reports{
			Events: p.kept(), Seen: p.seen, Metrics: p.meters,
			Publisher: &controller.Publisher{Client: p.api, Namespace: p.flags.etcdNamespace, Log: p.log.WithName("publisher")},
			RingView:  &controller.RingView{Client: p.api, Namespace: p.flags.electNamespace, By: identity()},
		},
	}
	if p.flags.clusterOperator != "" {
		r.ClusterOperator = p.conditions()
	}
	if name := os.Getenv("OPERATOR_CONDITION_NAME"); name != "" { // OLM sets it
		r.OperatorCondition = &controller.OperatorCondition{Namespace: p.flags.electNamespace, Name: name, Client: p.api}
	}
	switch {
	case p.flags.mode == quorum.ModeGuard:
		r.QuorumGuard = controller.NewQuorumGuard(p.api, machineapi.QuorumGuardForm{Namespace: p.flags.etcdNamespace, Platform: true})
	case p.flags.guard:
		member, err := url.Parse(p.flags.endpoints[0]) // checked before
		if err != nil {
			return nil, fmt.Errorf("--endpoints %s: %w", p.flags.endpoints[0], err)
		}
		r.QuorumGuard = controller.NewQuorumGuard(p.api, machineapi.QuorumGuardForm{
			Namespace: p.flags.etcdNamespace, Image: p.flags.guardImage, Secret: p.flags.guardSecret, ClientURL: *member,
		})
	}
	return r, nil
}

// setController is made anew each time that this replica is elected, like the reconciler.
func (p *process) setController() *setcontroller.Controller {
	return &setcontroller.Controller{
		Client: p.api, Observer: p.observer, Events: p.kept(), Metrics: p.setMeters, Log: p.log.WithName("machineset"), News: p.news,
	}
}

// kept are Events that are audit records as well. Those of admission's decisions are not: the decisions are.
func (p *process) kept() events.EventRecorder {
	return recorder.KeptEvents{EventRecorder: p.events, Audit: p.records, Scheme: p.mgr.GetScheme()}
}

// seen records what is new in a look of the elected replica. The first record of a look has all that was seen.
func (p *process) seen(s *quorum.Snapshot, news []membership.News) {
	for _, one := range news {
		step := audit.Step{Reason: "Seen", Action: "observe", Said: one.Said, Snapshot: s}
		if one.Machine != "" {
			step.Object = audit.ObjectOf(&corev1.ObjectReference{
				APIVersion: machinev1beta1.GroupVersion.String(), Kind: "Machine",
				Namespace: p.flags.namespace, Name: one.Machine, UID: types.UID(one.UID),
			})
		}
		p.records.WriteStep(step)
		s = nil
		observe.Wake(p.news) // nobody waits in guard mode
	}
}

// answer sets up the webhooks.
func (p *process) answer() error {
	meters := webhooks.NewMetrics(metrics.Registry)
	enforcement := p.flags.enforcement
	meters.Enforcement.WithLabelValues(enforcement.String()).Set(1)
	handlers := webhooks.Handlers{
		Identities: p.flags.identities, Enforcement: enforcement, MachineNamespace: p.flags.namespace, Observer: p.observer, Metrics: meters,
		Recorder: &recorder.Recorder{Enforcement: enforcement, Events: p.events, Audit: p.records, Log: p.log.WithName("webhooks")},
		Claim: func(ctx context.Context, l *quorum.Ledger, entry quorum.Release) error {
			return observe.Record(ctx, p.api, p.flags.namespace, l, entry)
		},
	}
	p.server.Register(webhooks.MutatePath, p.flags.drain.handler(webhooks.Handler(handlers.Mutating())))
	p.server.Register(webhooks.ValidatePath, p.flags.drain.handler(webhooks.Handler(handlers.Validating())))
	p.server.Register(webhooks.HomePath, p.flags.drain.handler(webhooks.Handler(handlers.Home())))
	p.server.Register(webhooks.KeepersPath, p.flags.drain.handler(&ctrladmission.Webhook{Handler: handlers.SetsAndHealthChecks()}))
	if p.flags.mode == quorum.ModeFull {
		p.server.Register(webhooks.ControlPlaneSetPath, p.flags.drain.handler(webhooks.Handler(handlers.ControlPlaneSet(p.api))))
	}
	if err := p.mgr.AddReadyzCheck("drain", p.flags.drain.ready); err != nil {
		return fmt.Errorf("set up /readyz: %w", err)
	}
	return nil
}

// manager is without an election of its own: it runs all that is added to it on every replica. What the elected one does is terms'.
func (o *runOptions) manager(config *rest.Config, types *runtime.Scheme) (ctrl.Manager, error) {
	grace := 10 * time.Second
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                  types,
		Metrics:                 metricsserver.Options{BindAddress: o.metricsAddr},
		HealthProbeBindAddress:  o.probeAddr,
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return nil, fmt.Errorf("set up /healthz: %w", err)
	}
	return mgr, nil
}

// conditions are published on a ClusterOperator, which lists what an administrator would look at next.
func (p *process) conditions() *controller.ClusterOperator {
	return &controller.ClusterOperator{
		Name: p.flags.clusterOperator, Version: cli.Version(), Client: p.api, Log: p.log.WithName("conditions"),
		Related: []configv1.ObjectReference{
			{Resource: "namespaces", Name: p.flags.electNamespace},
			{Resource: "namespaces", Name: p.flags.etcdNamespace},
			{Group: machinev1beta1.GroupName, Resource: "machines", Namespace: p.flags.namespace},
			{Group: admissionregistrationv1.GroupName, Resource: "mutatingwebhookconfigurations", Name: registrations.Name},
			{Group: admissionregistrationv1.GroupName, Resource: "validatingwebhookconfigurations", Name: registrations.Name},
			{Group: admissionregistrationv1.GroupName, Resource: "validatingadmissionpolicies", Name: registrations.MachinePolicy},
		},
	}
}
