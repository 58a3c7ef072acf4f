// Package sandbox is a real control plane on one machine: etcd members, each on
// a host of its own; kube-apiserver, stored in that very ring; the Machine API
// controllers with a cloud whose instances are those hosts; Holdfast; and, for
// its quorum guard, kube-controller-manager and kube-scheduler. Each is a process
// of its own with its own log, on addresses of 127.0.0.0/8 that no other sandbox
// has, and none outlives the program that started it. A replica of Holdfast that is
// killed is started again, as a kubelet would; the end of any other part is the sandbox's.
//
// What is played rather than run is in the cloud: the kubelets, which keep the
// Nodes and run the probes of pods, and Holdfast's own pods where it is installed
// by its manifests; kube-proxy, which leads to these; and etcd's static pods: holdfast verify
// membership and then etcd, with the environment that Holdfast renders into a
// ConfigMap. Where Holdfast does not drive the membership, the sandbox renders it,
// as cluster-etcd-operator would.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr/funcr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/test/loopback"
	"github.com/holdfast-dev/holdfast/test/pki"
	"github.com/holdfast-dev/holdfast/test/process"
	"github.com/holdfast-dev/holdfast/test/ring"
)

// Options say which sandbox to start.
type Options struct {
	// Dir is made if need be, and cleaned of what an earlier sandbox left there.
	Dir string
	// Replicas is the number of control-plane Machines: 1, 3 or 5; zero means 3.
	Replicas int
	// Mode is Holdfast's, full or guard; empty means full: nothing else here
	// moves etcd's members.
	Mode string
	// WithoutHoldfast leaves it out.
	WithoutHoldfast bool
	// ForInstall leaves Holdfast to the caller, who applies its manifests as in a real cluster: Deployments
	// become pods, the hosts run those of Holdfast's image, Services lead to them, and the API server
	// keeps an audit log of what Holdfast asks for. Mode then means nothing.
	ForInstall bool
	// AuditMachines has the API server keep an audit log of writes to Machines.
	AuditMachines bool
	// PlatformSets has the platform's control plane machine set operator run as well. The CRD of ControlPlaneMachineSets is then the
	// platform's own.
	PlatformSets bool
	// GuardPods has what pods and budgets need run in guard mode, too, for the quorum guard of cluster-etcd-operator.
	GuardPods bool
	// HoldfastReplicas is the number of Holdfast's replicas; zero means 1. Several elect the one that runs
	// the reconciler, and their webhooks are registered at one address, which leads to those that are ready.
	HoldfastReplicas int
	// KeepsRegistrations has Holdfast make its registrations and put them back, at the address of its replicas.
	KeepsRegistrations bool
	// HoldfastArgs are more flags for holdfast run, each as one string with an
	// equals sign; a repeated flag replaces the sandbox's. With --webhook-url
	// among them Holdfast keeps its registrations, and the sandbox makes none.
	HoldfastArgs []string
	// APIServers has each host run an API server of its own, which knows that host's member of etcd alone, by its loopback address.
	// The API's address leads to those that are ready. Sandbox.APIServer then never runs.
	APIServers bool
	// Etcd is the binary of the hosts' etcd, "" for the one that is built, and EtcdArgs are more flags for it.
	Etcd     string
	EtcdArgs []string
	// Bootstrap has the ring start with the installer's member, too: see StartBootstrap.
	Bootstrap bool
	// FromBootstrap begins as an installation does: the ring is the installer's member alone, and there is neither Machine nor host yet.
	// Replicas is then what the install-config asks for.
	FromBootstrap bool
	// Progress receives a line for each step of the start and of Stop, for people; nil for none.
	Progress func(string)
}

// spareAddresses is how many more hosts than Options.Replicas may stand at a time.
const spareAddresses = 6

// withDefaults replaces zero values as the fields' comments say.
func (o Options) withDefaults() Options {
	if o.Replicas == 0 {
		o.Replicas = 3
	}
	if o.Mode == "" {
		o.Mode = "full"
	}
	if o.HoldfastReplicas == 0 {
		o.HoldfastReplicas = 1
	}
	return o
}

// Validate says in one sentence what is wrong; a zero that Start would replace is wrong to it.
func (o Options) Validate() error {
	if !slices.Contains([]int{1, 3, 5}, o.Replicas) {
		return fmt.Errorf("replicas must be 1, 3 or 5, not %d", o.Replicas)
	}
	if !slices.Contains([]string{"full", "guard"}, o.Mode) {
		return fmt.Errorf("mode must be full or guard, not %q", o.Mode)
	}
	if o.HoldfastReplicas < 1 || o.HoldfastReplicas > 5 {
		return fmt.Errorf("replicas of Holdfast must be 1 to 5, not %d", o.HoldfastReplicas)
	}
	if o.Bootstrap && o.FromBootstrap {
		return errors.New("the bootstrap member either joins the ring or begins it")
	}
	return nil
}

// Sandbox is a control plane that runs.
type Sandbox struct {
	// Dir is absolute. Logs holds a file for each process.
	Dir, Logs string
	// APIServer, MachineAPI and Holdfast are its processes beside the etcds; of several replicas Holdfast is the first.
	APIServer, MachineAPI, Holdfast *Component
	// SetOperator is the platform's control plane machine set operator; it runs with Options.PlatformSets alone.
	SetOperator *Component
	// ControllerManager starts with a Holdfast that keeps a quorum guard, Scheduler with one that is installed.
	ControllerManager, Scheduler *Component
	// EtcdConfig and EtcdFiles are for a client of the ring; the configuration's
	// endpoints are the first voters.
	EtcdConfig clientv3.Config
	EtcdFiles  ring.ClientFiles

	options          Options
	lock             *os.File
	ca               *pki.Authority
	tokens           map[Identity]string
	block            *loopback.Block
	pool             []string // the hosts' addresses
	apiserverAddress string   // host:port
	apiserverCert    string   // files, which all API servers have in common
	apiserverKey     string
	kubeletCert      string // files, with which API servers ask kubelets
	kubeletKey       string
	kubeletProxy     string   // URL
	doors            []string // etcd's endpoints, as the API server knows them
	holdfastHost     string
	webhookPort      int // where Holdfast's webhooks are registered
	holdfasts        []*replica
	holdfastStood    atomic.Bool // all of its replicas have been ready once
	machineAPIHost   string      // serves machine-api-operator's own webhooks
	machineAPIPort   int
	cloud            *cloud
	client           client.Client // the administrator's
	closers          []func() error
	failed           chan error

	background context.Context // ends the sandbox's own work
	cancel     context.CancelFunc
	watching   context.Context // ends before the API server, which waits for those who watch
	unwatch    context.CancelFunc
	work       sync.WaitGroup
	stopOnce   sync.Once
	stopErr    error
}

// Start starts a sandbox and returns when all of it is ready: the Machines are
// Running, and Holdfast answers. It stops what it started if it fails or the
// context ends before that; afterwards the context means nothing to it.
func Start(ctx context.Context, options Options) (_ *Sandbox, err error) {
	options = options.withDefaults()
	if err := options.Validate(); err != nil {
		return nil, err
	}
	s, err := open(options)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := s.prepare(); err != nil {
		return nil, err
	}
	type step struct {
		what string
		do   func(context.Context) error
	}
	steps := []step{
		{fmt.Sprintf("etcd: a ring of %d", options.Replicas), s.startRing},
		{"kube-apiserver, stored in that ring", s.startAPIServer},
		{"Machine CRDs, namespaces, install-config, rights", s.startCluster},
		{"Machine API controllers, Machines and Nodes", s.startMachines},
	}
	if options.FromBootstrap {
		steps[0] = step{"etcd: the installer's bootstrap member alone", s.startBootstrapAlone}
	}
	if options.Bootstrap {
		steps = append(steps, step{"the installer's bootstrap member of etcd", s.StartBootstrap})
	}
	if options.PlatformSets {
		steps = append(steps, step{"the platform's control plane machine set operator", s.startSetOperator})
	}
	if options.ForInstall {
		steps = append(steps, step{"controllers for Deployments, scheduler, Services", s.startPods})
	} else if !options.WithoutHoldfast {
		steps = append(steps, step{"Holdfast in mode " + options.Mode, s.StartHoldfast})
	}
	for _, step := range steps {
		if err := s.step(ctx, step.what, step.do); err != nil {
			return nil, err
		}
	}
	if err := s.writeEnv(); err != nil {
		return nil, err
	}
	return s, nil
}

// open takes the directory; nothing runs yet, but Stop is due.
func open(options Options) (*Sandbox, error) {
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("the sandbox's directory: %w", err)
	}
	if most := 100; len(SocketIn(dir)) > most {
		return nil, fmt.Errorf("%s is too long a path for a unix socket: choose a directory of less than %d letters", dir, most-len(SocketIn("")))
	}
	lock, err := claim(dir)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{
		Dir: dir, Logs: filepath.Join(dir, "logs"),
		options: options, lock: lock, failed: make(chan error, 1),
	}
	s.background, s.cancel = context.WithCancel(context.Background())
	s.watching, s.unwatch = context.WithCancel(s.background)
	return s, nil
}

// prepare makes all that needs no process: addresses, certificates, the cloud.
func (s *Sandbox) prepare() error {
	var err error
	if s.block, err = loopback.Claim(); err != nil {
		return err
	}
	s.closers = append(s.closers, s.block.Close)
	hosts := s.options.Replicas + spareAddresses
	ports, err := s.block.FreePorts(4 + 2*hosts)
	if err != nil {
		return err
	}
	s.apiserverAddress = joinPort(s.block.Addr(1).String(), ports[0])
	s.holdfastHost = s.block.Addr(2).String()
	s.machineAPIHost, s.machineAPIPort = s.block.Addr(3).String(), ports[1]
	etcdPorts := ring.Ports{Client: ports[2], Peer: ports[3]}
	own := map[string]ownAddresses{}
	for i := range hosts {
		address := s.block.Addr(10 + i).String()
		s.pool = append(s.pool, address)
		loopback := s.block.Addr(4).String()
		own[address] = ownAddresses{metrics: joinPort(loopback, ports[4+i]), clients: joinPort(loopback, ports[4+hosts+i])}
	}

	var podIPs []string
	for i := podBase; s.options.ForInstall && i < serviceBase; i++ {
		podIPs = append(podIPs, s.block.Addr(i).String())
	}

	if s.ca, err = pki.NewAuthority("holdfast sandbox"); err != nil {
		return err
	}
	if err := s.writeIdentities(); err != nil {
		return err
	}
	if s.apiserverCert, s.apiserverKey, err = s.ca.IssueFiles(s.pki(), "kube-apiserver", pki.Leaf{
		CommonName: "kube-apiserver",
		Hosts:      []string{s.block.Addr(1).String(), "127.0.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
	}); err != nil {
		return err
	}
	founders := []string{etcdPorts.ClientURL(s.bootstrapAddress())}
	if !s.options.FromBootstrap {
		founders = nil
		for _, address := range s.pool[:s.options.Replicas] {
			founders = append(founders, etcdPorts.ClientURL(address))
		}
	}
	if s.EtcdConfig, s.EtcdFiles, err = ring.ClientConfig(s.ca, s.pki(), founders...); err != nil {
		return err
	}

	s.APIServer = &Component{Name: "kube-apiserver", spec: s.apiserverSpec, failed: s.fail}
	s.MachineAPI = &Component{Name: "machine-api", spec: s.machineAPISpec, failed: s.fail}
	s.SetOperator = &Component{Name: "control-plane-machine-set-operator", spec: s.setOperatorSpec, failed: s.fail}
	s.ControllerManager = &Component{Name: "kube-controller-manager", spec: s.controllerManagerSpec, failed: s.fail}
	s.Scheduler = &Component{Name: "kube-scheduler", spec: s.schedulerSpec, failed: s.fail}
	if err := s.prepareReplicas(); err != nil {
		return err
	}

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.AddToScheme(scheme)); err != nil {
		return err
	}
	if s.client, err = client.New(s.Config(Admin), client.Options{
		Scheme: scheme,
		// Controller-runtime's own logger prints a stack when nobody has set it.
		Log: funcr.New(func(_, _ string) {}, funcr.Options{}),
	}); err != nil {
		return fmt.Errorf("the administrator's client: %w", err)
	}
	if err := s.openCloud(etcdPorts, own, podIPs); err != nil {
		return err
	}
	if err := errors.Join(s.openDoors(), s.openAPI(), s.openKubelets()); err != nil {
		return err
	}
	return s.startBalancer()
}

// openCloud lets the cloud serve its API, without an instance yet.
func (s *Sandbox) openCloud(ports ring.Ports, own map[string]ownAddresses, podIPs []string) error {
	core, err := corev1client.NewForConfig(s.Config(Admin))
	if err != nil {
		return fmt.Errorf("the kubelets' client: %w", err)
	}
	pod, err := StaticPod()
	if err != nil {
		return fmt.Errorf("etcd's static pod: %w", err)
	}
	file, err := os.Create(s.logFile("cloud"))
	if err != nil {
		return fmt.Errorf("the cloud's log: %w", err)
	}
	s.closers = append(s.closers, file.Close)
	ctx, stop := context.WithCancel(s.background)
	c := &cloud{
		ca: s.ca, ports: ports, own: own, logs: s.Logs, hosts: filepath.Join(s.Dir, "hosts"),
		pod: pod, etcdArgs: s.options.EtcdArgs, environments: newEnvironments(),
		runPods: s.options.ForInstall, server: s.Server(), podIPs: podIPs,
		nodes: core.Nodes(), pods: newPods(core), log: slog.New(slog.NewTextHandler(file, nil)),
		ctx: ctx, stop: stop,
		instances: map[string]*host{}, free: slices.Clone(s.pool), had: map[string]string{},
	}
	c.etcd.Store(&s.options.Etcd)
	if s.options.APIServers {
		c.apiServer = s.hostAPIServerSpec
	}
	if c.members, err = newMembers(s.EtcdConfig, c.running); err != nil {
		stop()
		return fmt.Errorf("the hosts' etcd client: %w", err)
	}
	s.closers = append(s.closers, c.members.client.Close)
	if s.options.Mode == "full" || s.options.ForInstall {
		s.work.Go(func() { c.followEnvironments(s.watching, core.ConfigMaps(hostenv.Namespace)) })
	}
	s.work.Go(func() { c.members.run(s.background, c.operate) })

	listener, err := net.Listen("unix", s.cloudSocket())
	if err != nil {
		stop()
		return fmt.Errorf("the cloud's socket: %w", err)
	}
	s.closers = append(s.closers, listener.Close)
	go func() {
		if err := c.serve(listener); err != nil {
			s.fail(err)
		}
	}()
	s.cloud = c
	return nil
}

// first are the names of the hosts and Machines that the sandbox starts with.
func (s *Sandbox) first() []string {
	var names []string
	if s.options.FromBootstrap {
		return names
	}
	for i := range s.options.Replicas {
		names = append(names, fmt.Sprintf("master-%d", i))
	}
	return names
}

func (s *Sandbox) startRing(ctx context.Context) error {
	founders := map[string]string{}
	for i, name := range s.first() {
		founders[name] = s.cloud.ports.PeerURL(s.pool[i])
	}
	for _, name := range s.first() {
		if _, _, err := s.cloud.create(name, InstanceType, "", founders); err != nil {
			return err
		}
	}
	err := s.poll(ctx, func(ctx context.Context) error {
		list, err := s.cloud.members.read(ctx, time.Second)
		if err == nil && len(voters(list)) < len(founders) {
			err = fmt.Errorf("%d of %d members have started", len(voters(list)), len(founders))
		}
		return err
	})
	if err != nil {
		log := filepath.Join(s.Logs, "etcd-"+s.first()[0]+".log")
		return fmt.Errorf("%w; the end of %s:\n%s", err, log, process.Tail(log, 12))
	}
	return nil
}

func (s *Sandbox) startAPIServer(ctx context.Context) error {
	if s.options.APIServers {
		return s.waitAPIServers(ctx)
	}
	if err := s.APIServer.Start(); err != nil {
		return err
	}
	return s.waitAPIServer(ctx)
}

func (s *Sandbox) startCluster(ctx context.Context) error {
	objects, err := s.cluster()
	if err != nil {
		return err
	}
	if err := s.installCRDs(ctx); err != nil {
		return err
	}
	return s.apply(ctx, objects...)
}

func (s *Sandbox) startMachines(ctx context.Context) error {
	if err := s.MachineAPI.Start(); err != nil {
		return err
	}
	for _, name := range s.first() {
		m, err := machine(name)
		if err != nil {
			return err
		}
		if err := s.apply(ctx, m); err != nil {
			return err
		}
	}
	return s.poll(ctx, func(ctx context.Context) error {
		var machines machinev1beta1.MachineList
		if err := s.client.List(ctx, &machines, client.InNamespace(MachineNamespace)); err != nil {
			return err
		}
		for _, m := range machines.Items {
			if m.Status.Phase == nil || *m.Status.Phase != machinev1beta1.PhaseRunning {
				return fmt.Errorf("Machine %s is not Running (log: %s)", m.Name, s.logFile("machine-api"))
			}
		}
		return nil
	})
}

// Endpoints are for clients that stay while all members are replaced: each leads to a voter as they are now.
func (s *Sandbox) Endpoints() []string { return slices.Clone(s.doors) }

// VoterEndpoints are the client URLs of the ring's voters as it is now.
func (s *Sandbox) VoterEndpoints() []string {
	return voters(s.cloud.members.latest())
}

// EtcdClient dials the voters as they are now, or the endpoints that are given.
// It is the caller's to close.
func (s *Sandbox) EtcdClient(endpoints ...string) (*clientv3.Client, error) {
	config := s.EtcdConfig
	if config.Endpoints = endpoints; len(endpoints) == 0 {
		config.Endpoints = s.VoterEndpoints()
	}
	return clientv3.New(config)
}

// Hosts are the instances' hosts, by name.
func (s *Sandbox) Hosts() []Host {
	var hosts []Host
	for _, h := range s.cloud.all() {
		hosts = append(hosts, h.public())
	}
	return hosts
}

// Host is the host of that name, if there is one.
func (s *Sandbox) Host(name string) (Host, bool) {
	h := s.cloud.get(name)
	if h == nil {
		return Host{}, false
	}
	return h.public(), true
}

// Power cuts or restores a host's power. Its disk stays.
func (s *Sandbox) Power(name string, on bool) error {
	h := s.cloud.get(name)
	if h == nil {
		return fmt.Errorf("there is no host %s", name)
	}
	h.power(on)
	return nil
}

// SetEtcd has each host's etcd be another binary from its next start on.
func (s *Sandbox) SetEtcd(path string) { s.cloud.etcd.Store(&path) }

// Readdress gives a host without power another address, as DHCP may, and certificates for that. Its disk stays.
func (s *Sandbox) Readdress(name string) error { return s.cloud.readdress(name) }

// SetEnvironment writes what a host's etcd starts with on the host itself, in the place of what is published for it;
// "" takes that away. A host that has no power reads it once it has.
func (s *Sandbox) SetEnvironment(name, text string) error {
	if s.cloud.get(name) == nil {
		return fmt.Errorf("there is no host %s", name)
	}
	s.cloud.environments.write(name, text)
	return nil
}

// Stop stops everything, in order, and waits for it. The directory stays, for
// its logs. A second Stop returns what the first one did.
func (s *Sandbox) Stop() error {
	s.stopOnce.Do(func() { s.stopErr = s.stop() })
	return s.stopErr
}

func (s *Sandbox) stop() error {
	var errs []error
	s.unwatch()
	for _, c := range []*Component{s.ControllerManager, s.Scheduler} {
		if c != nil {
			errs = append(errs, c.Kill()) // they keep nothing, and take long to end in order
		}
	}
	for _, c := range append(s.Holdfasts(), s.MachineAPI, s.APIServer) {
		if c != nil {
			errs = append(errs, c.Stop())
		}
	}
	if s.cloud != nil {
		s.cloud.close()
	}
	s.cancel()
	s.work.Wait()
	for _, c := range slices.Backward(s.closers) {
		errs = append(errs, c())
	}
	if err := os.Remove(s.envFile()); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, s.lock.Close())...)
}
