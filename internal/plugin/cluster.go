package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/etcdflags"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

const (
	defaultNamespace = "openshift-machine-api" // of the Machines
	etcdNamespace    = hostenv.Namespace
	// holdfastUser is who Holdfast is where deploy/base installs it.
	holdfastUser = "system:serviceaccount:" + holdfastNamespace + ":holdfast"
)

// dialer makes the connections of a command.
type dialer interface {
	api(config *rest.Config) (client.Client, error)
	etcd(flags *etcdflags.Flags) (ring observe.Ring, stop func(), err error)
	core(config *rest.Config) (corev1client.CoreV1Interface, error)
}

// network is the dialer of a process.
type network struct{}

func (network) api(config *rest.Config) (client.Client, error) {
	return client.New(config, client.Options{Scheme: kinds()})
}

// kinds are the kinds of objects that the commands read and write.
func kinds() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(errors.Join(clientgoscheme.AddToScheme(scheme), configv1.Install(scheme), machinev1.Install(scheme), machinev1beta1.Install(scheme)))
	return scheme
}

func (network) core(config *rest.Config) (corev1client.CoreV1Interface, error) {
	return corev1client.NewForConfig(config)
}

func (network) etcd(flags *etcdflags.Flags) (observe.Ring, func(), error) {
	c, err := flags.Open()
	if err != nil {
		return nil, nil, err
	}
	return c, c.Close, nil
}

// clusterFlags say which cluster a command is about, and how to see its etcd.
type clusterFlags struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	holdfast   string // Holdfast's namespace
	etcd       etcdflags.Flags
	mode       quorum.Mode // 0 without
	desired    int         // 0 without
	stop       func()      // ends the connection to etcd, if there is one
}

func (c *clusterFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.Description = "namespace of the Machines (default " + defaultNamespace + ")"
	clientcmd.BindOverrideFlags(&c.overrides, f, names)
	f.StringVar(&c.holdfast, "holdfast-namespace", holdfastNamespace, "namespace that Holdfast runs in")
	c.etcd.BindEndpoints(f)
	c.etcd.Bind(f)
	f.IntVar(&c.desired, "desired-replicas", 0, "voters wanted; without it the number that Holdfast reported, or the install-config's")
	f.TextVar(&c.mode, "mode", quorum.Mode(0), "Holdfast's `mode`, guard or full; without it the one that Holdfast reported, or full where ConfigMap "+hostenv.Name+" is in namespace "+etcdNamespace)
}

// namespace is the Machines'.
func (c *clusterFlags) namespace() string {
	return cmp.Or(c.overrides.Context.Namespace, defaultNamespace)
}

// cluster is a cluster as a command sees it.
type cluster struct {
	client.Client
	*clusterFlags
	namespace string // of the Machines
	user      admission.User
	ring      observe.Ring // etcd, nil where the command has no endpoints of it
	clock     passive
	observer  *observe.Observer
	memory    observe.Memory
	warnings  *warnings
}

// config finds the cluster.
func (c *clusterFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.overrides).ClientConfig()
	if err != nil {
		return nil, cli.Usage("the cluster's address and credentials are not known: %v; set KUBECONFIG or --kubeconfig", err)
	}
	config.QPS, config.Burst = 50, 100
	return config, nil
}

// elsewhere are the flags that commands to paste need too, "" for none: those are for kubectl's current context.
func (c *clusterFlags) elsewhere() string {
	var flags []string
	if c.kubeconfig != "" {
		flags = append(flags, "--kubeconfig="+c.kubeconfig)
	}
	if c.overrides.CurrentContext != "" {
		flags = append(flags, "--context="+c.overrides.CurrentContext)
	}
	return strings.Join(flags, " ")
}

// open connects to the cluster, and finds out who is asking.
func (c *clusterFlags) open(ctx context.Context, t terminal) (*cluster, error) {
	out := &cluster{clusterFlags: c, namespace: c.namespace(), warnings: &warnings{out: t.err}, clock: passive{now: t.now}}
	if c.desired < 0 {
		return nil, cli.Usage("--desired-replicas is %d; it is a number of voters", c.desired)
	}
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	config.WarningHandler = out.warnings
	if out.Client, err = t.dial.api(config); err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	if e := &c.etcd; len(e.Endpoints) > 0 || e.CACert != "" || e.Cert != "" || e.Key != "" {
		ring, stop, err := t.dial.etcd(&c.etcd)
		if err != nil {
			return nil, err
		}
		out.ring, c.stop = ring, stop
	}
	limited, cancel := context.WithTimeout(ctx, 20*time.Second) // until it has answered at all
	defer cancel()
	var who authenticationv1.SelfSubjectReview
	if err := out.Create(limited, &who); err != nil {
		return nil, unanswered(fmt.Errorf("ask the API server who you are: %w", err))
	}
	out.user = admission.User{Name: who.Status.UserInfo.Username, Groups: who.Status.UserInfo.Groups}
	out.clock.set(who.CreationTimestamp.Time)
	machines := &metav1.PartialObjectMetadataList{}
	machines.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind("MachineList"))
	switch err := out.List(limited, machines, client.InNamespace(out.namespace), client.Limit(1)); {
	case meta.IsNoMatchError(err):
		return nil, errors.New("this cluster does not have the Machine API (no resource machines.machine.openshift.io)")
	case err != nil:
		return nil, unanswered(fmt.Errorf("list Machines in namespace %s: %w", out.namespace, err))
	case len(machines.Items) == 0 && out.namespace != defaultNamespace:
		return nil, cli.Usage("there is no Machine in namespace %s; without -n it is %s", out.namespace, defaultNamespace)
	}
	if flags := c.elsewhere(); flags != "" {
		fmt.Fprintf(t.err, "Commands to paste are for kubectl's current context; to each add %s\n", plain(flags))
	}
	out.observer = &observe.Observer{API: out.Client, Tries: out.Client, Namespace: out.namespace, EtcdNamespace: etcdNamespace, Clock: out.clock}
	return out, nil
}

// runbook is where a person is led who has no API server.
const runbook = "https://github.com/holdfast-dev/holdfast/blob/main/docs/incidents.md#etcd-has-no-quorum"

// unanswered names the runbook where the API server did not answer a first request. A refusal is an answer.
func unanswered(err error) error {
	if errors.As(err, new(apierrors.APIStatus)) && !transient(err) {
		return err
	}
	return fmt.Errorf("%w; if etcd has no quorum: %s", err, runbook)
}

// modeOf is Holdfast's mode: the one by flag, or that Holdfast published. Else only full mode publishes what etcd starts with.
func (c *cluster) modeOf(ctx context.Context, heard ringReport) (quorum.Mode, error) {
	switch {
	case c.mode != 0:
		return c.mode, nil
	case heard.ring != nil:
		return heard.ring.Snapshot.Mode, nil
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var published corev1.ConfigMap
	switch err := c.Get(ctx, client.ObjectKey{Namespace: etcdNamespace, Name: hostenv.Name}, &published); {
	case err == nil:
		return quorum.ModeFull, nil
	case apierrors.IsNotFound(err):
		return quorum.ModeGuard, nil
	default:
		return 0, fmt.Errorf("read ConfigMap %s/%s, which shows Holdfast's mode: %w", etcdNamespace, hostenv.Name, err)
	}
}

// passive is the terminal's clock, set by the API server's: ages are of times that the cluster's hosts wrote.
type passive struct {
	now    func() time.Time
	offset time.Duration
}

var _ clock.PassiveClock = passive{}

// Now is the time in the cluster.
func (p passive) Now() time.Time { return p.now().Add(p.offset) }

// Since is how long ago that was.
func (p passive) Since(t time.Time) time.Duration { return p.Now().Sub(t) }

// set puts a clock right that is off by more than a request takes. A zero time changes nothing.
func (p *passive) set(at time.Time) {
	if off := at.Sub(p.now()); !at.IsZero() && off.Abs() > 5*time.Second {
		p.offset = off
	}
}

// listMachines are the Machines of a namespace.
func listMachines(ctx context.Context, api client.Client, namespace string) ([]machinev1beta1.Machine, error) {
	var machines machinev1beta1.MachineList
	if err := api.List(ctx, &machines, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list Machines in namespace %s: %w", namespace, err)
	}
	return machines.Items, nil
}

// eachMachine does something with each Machine, until that fails.
func (c *cluster) eachMachine(ctx context.Context, do func(*machinev1beta1.Machine) error) error {
	machines, err := listMachines(ctx, c.Client, c.namespace)
	if err != nil {
		return err
	}
	for i := range machines {
		if err := do(&machines[i]); err != nil {
			return err
		}
	}
	return nil
}

// machine reads a Machine.
func (c *cluster) machine(ctx context.Context, name string) (*machinev1beta1.Machine, error) {
	m := &machinev1beta1.Machine{}
	err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, m)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no Machine %s in namespace %s: %w", name, c.namespace, errGone)
	}
	if err != nil {
		return nil, fmt.Errorf("read Machine %s: %w", name, err)
	}
	return m, nil
}

// errGone is what a Machine that does not exist is, in an error.
var errGone = errors.New("see kubectl holdfast status")

// identities are those that the rules go by without flags.
func identities() admission.Identities { return admission.DefaultIdentities(holdfastUser) }

// warnings prints the Warnings that the server sends, each once.
type warnings struct {
	mu   sync.Mutex
	out  io.Writer
	sent []string // also those that were printed before
}

// HandleWarningHeader is called by client-go.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.sent, text) {
		fmt.Fprintf(w.out, "Warning: %s\n", plain(text))
	}
	w.sent = append(w.sent, text)
}

// of does something, and returns the Warnings that the server sent meanwhile.
func (w *warnings) of(do func() error) ([]string, error) {
	before := len(w.all())
	err := do()
	return w.all()[before:], err
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent
}
