package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/controller"
	"github.com/holdfast-dev/holdfast/internal/etcdflags"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

const (
	defaultNamespace = "openshift-machine-api" // of the Machines
	etcdNamespace    = "openshift-etcd"
	// holdfastUser is who Holdfast is where deploy/base installs it.
	holdfastUser = "system:serviceaccount:holdfast-system:holdfast"
)

// dialer makes the connections of a command.
type dialer interface {
	api(config *rest.Config) (client.Client, error)
	etcd(flags *etcdflags.Flags) (ring controller.Ring, stop func(), err error)
}

// network is the dialer of a process.
type network struct{}

func (network) api(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.Install(scheme)); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

func (network) etcd(flags *etcdflags.Flags) (controller.Ring, func(), error) {
	c, err := flags.Open()
	if err != nil {
		return nil, nil, usageError{err}
	}
	return c, c.Close, nil
}

// unasked is the Ring of a command that was not told how to reach etcd.
type unasked struct{}

const unaskedWhy = "it was not asked"

func (unasked) Read(context.Context) quorum.Ring { return quorum.Ring{Why: unaskedWhy} }

// clusterFlags say which cluster a command is about, and how to see its etcd.
type clusterFlags struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	etcd       etcdflags.Flags
	mode       string
	desired    int
}

func (c *clusterFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.Description = "namespace of the Machines (default " + defaultNamespace + ")"
	clientcmd.BindOverrideFlags(&c.overrides, f, names)
	c.etcd.BindEndpoints(f)
	c.etcd.Bind(f)
	f.IntVar(&c.desired, "desired-replicas", 0, "voters wanted, as holdfast run was told; without it the install-config's number")
	f.StringVar(&c.mode, "mode", "", "Holdfast's mode, guard or full; without it full where ConfigMap "+controller.RecordsName+" is in the Machine namespace, else guard")
}

// cluster is a cluster as a command sees it.
type cluster struct {
	client.Client
	namespace string
	user      quorum.User
	gatherer  *controller.Gatherer
	warnings  *warnings
	close     func()
}

// open connects to the cluster, and finds out who is asking.
func (c *clusterFlags) open(ctx context.Context, t terminal) (_ *cluster, err error) {
	var mode quorum.Mode
	switch c.mode {
	case "":
	case "guard":
		mode = quorum.Guard
	case "full":
		mode = quorum.Full
	default:
		return nil, usage("--mode is %q; it is guard or full", c.mode)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.overrides).ClientConfig()
	if err != nil {
		return nil, usage("the cluster's address and credentials are not known: %v; set KUBECONFIG or --kubeconfig", err)
	}
	out := &cluster{namespace: defaultNamespace, warnings: &warnings{out: t.err}, close: func() {}}
	if c.overrides.Context.Namespace != "" {
		out.namespace = c.overrides.Context.Namespace
	}
	config.WarningHandler, config.QPS, config.Burst = out.warnings, 50, 100
	if out.Client, err = t.dial.api(config); err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	var ring controller.Ring = unasked{}
	if e := &c.etcd; len(e.Endpoints) > 0 || e.CACert != "" || e.Cert != "" || e.Key != "" {
		if ring, out.close, err = t.dial.etcd(e); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			out.close()
		}
	}()
	limited, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var who authenticationv1.SelfSubjectReview
	if err := out.Create(limited, &who); err != nil {
		return nil, fmt.Errorf("ask the API server who you are: %w", err)
	}
	out.user = quorum.User{Name: who.Status.UserInfo.Username, Groups: who.Status.UserInfo.Groups}
	var machines machinev1beta1.MachineList
	if err := out.List(limited, &machines, client.InNamespace(out.namespace), client.Limit(1)); meta.IsNoMatchError(err) {
		return nil, errors.New("this cluster does not have the Machine API (no resource machines.machine.openshift.io)")
	} else if err != nil {
		return nil, fmt.Errorf("list Machines in namespace %s: %w", out.namespace, err)
	}
	if mode == 0 {
		var records corev1.ConfigMap
		err := out.Get(limited, client.ObjectKey{Namespace: out.namespace, Name: controller.RecordsName}, &records)
		switch {
		case err == nil:
			mode = quorum.Full
		case apierrors.IsNotFound(err):
			mode = quorum.Guard
		default:
			return nil, fmt.Errorf("read ConfigMap %s/%s, which tells Holdfast's mode: %w", out.namespace, controller.RecordsName, err)
		}
	}
	out.gatherer = &controller.Gatherer{
		API: out.Client, Etcd: ring, Namespace: out.namespace, EtcdNamespace: etcdNamespace,
		Mode: mode, Desired: c.desired, Limits: quorum.DefaultLimits(), Clock: passive{t.now},
	}
	return out, nil
}

// passive is the terminal's clock.
type passive struct{ now func() time.Time }

var _ clock.PassiveClock = passive{}

func (p passive) Now() time.Time                  { return p.now() }
func (p passive) Since(t time.Time) time.Duration { return p.now().Sub(t) }

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
func identities() quorum.Identities { return quorum.DefaultIdentities(holdfastUser) }

// warnings prints the Warnings that the server sends, each once.
type warnings struct {
	mu   sync.Mutex
	out  io.Writer
	seen map[string]bool
}

// HandleWarningHeader is called by client-go.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[text] {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[text] = true
	fmt.Fprintf(w.out, "Warning: %s\n", plain(text))
}

// live says whether somebody sits at what is written to.
func live(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && isTerminal(f)
}
