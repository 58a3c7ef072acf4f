package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/go-logr/logr"
	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/etcdflags"
	"github.com/holdfast-dev/holdfast/internal/hostenv"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// runOptions are the flags of run.
type runOptions struct {
	policy
	mode                    quorum.Mode
	kubeconfig              string
	endpoints               []string
	etcdFiles               etcdFiles
	desired                 int
	limits                  quorum.Limits
	webhooks                webhookFlags
	drain                   drain
	metricsAddr, probeAddr  string
	etcdNamespace           string
	clusterOperator         string
	elect                   bool
	electNamespace          string
	besideOperator          bool
	guard                   bool
	guardImage, guardSecret string
	verbose                 bool
	audit                   audit.Options
}

func runCommand() *cobra.Command {
	o := runOptions{limits: quorum.DefaultLimits(), audit: audit.NewOptions()}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the manager: the webhooks and the reconciler",
		Long: `Run the manager: the webhooks on every replica, the reconciler on the elected one.

In guard mode, beside cluster-etcd-operator, Holdfast never changes etcd's membership: it enforces
the rules, writes evidence and keeps the latch. In full mode it also adds learners, promotes them,
removes members and releases hooks; it refuses to start that way where cluster-etcd-operator is,
and leaves the members alone should that operator come back.`,
		Example: `  holdfast run --mode full --kubeconfig ~/.kube/config \
    --endpoints https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379 \
    --cacert ca.crt --cert client.crt --key client.key --webhook-cert-dir /etc/holdfast/tls \
    --quorum-guard-image holdfast`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	o.bind(f)
	f.TextVar(&o.mode, "mode", quorum.ModeGuard, "guard: enforce and report; full: also drive etcd's membership")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file; without it, the service account of the pod")
	f.StringSliceVar(&o.endpoints, "endpoints", nil, "etcd client URLs to begin with; without them, port "+clientPort+" of the control-plane Nodes; Holdfast learns later ones from the ring. While none answers, it asks those that it wrote down, and the Nodes")
	o.etcdFiles.bind(f)
	f.IntVar(&o.desired, "desired-replicas", 0, "voters wanted; 0 reads the install-config in kube-system/cluster-config-v1, of which the greatest number on record counts")
	f.IntVar(&o.limits.MaxDeleting, "max-deleting", o.limits.MaxDeleting, "how many Machines of voters may be deleting at the same time (rule one-too-many); -1 is as many as etcd can lose, at least one; 0 turns the rule off")
	f.Uint64Var(&o.limits.MaxLag, "max-learner-lag", o.limits.MaxLag, "raft entries that a learner may be behind the leader to be promoted")
	f.DurationVar(&o.limits.SteadyFor, "learner-steady-time", o.limits.SteadyFor, "how long a learner must have kept up with --max-learner-lag to be promoted")
	f.DurationVar(&o.limits.StableFor, "stabilization", o.limits.StableFor, "how long the voters that remain must have been healthy, without a break, before the voter of a deleting Machine is removed")
	f.IntVar(&o.limits.MaxLearners, "max-learners", o.limits.MaxLearners, "how many learners there may be at a time, so that several new members get their data at once; more than one only where every member of etcd has --max-learners on its command line. They become voters one after the other")
	f.DurationVar(&o.limits.StallAfter, "learner-stall-timeout", o.limits.StallAfter, "a learner without progress for this long gives way to a Node that waits; to one that has given way itself later, up to 12 times as long")
	f.DurationVar(&o.limits.DeadAfter, "member-dead-timeout", o.limits.DeadAfter, "a voter that has not answered for this long, and that etcd's leader has got nothing to for this long, is dead")
	f.StringVar(&o.etcdNamespace, "etcd-namespace", hostenv.Namespace, "namespace in which full mode publishes etcd's membership (ConfigMap etcd-membership) and endpoints (ConfigMap etcd-endpoints, EndpointSlices of Service etcd)")
	f.StringVar(&o.clusterOperator, "cluster-operator", "holdfast", "name of the ClusterOperator that has Holdfast's conditions, where the cluster has that API; empty for none")
	o.webhooks.bind(f)
	o.drain.bind(f)
	f.StringVar(&o.metricsAddr, "metrics-bind-address", ":8080", "address of /metrics; 0 for none")
	f.StringVar(&o.probeAddr, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 for none")
	f.BoolVar(&o.elect, "leader-elect", true, "let one of several replicas run the reconciler")
	f.StringVar(&o.electNamespace, "leader-elect-namespace", "holdfast-system", "namespace that Holdfast runs in: of the election's Lease, ConfigMap holdfast-ring, and Secrets "+caSecret+" and "+sharedSecret)
	f.BoolVar(&o.besideOperator, "allow-cluster-etcd-operator", false, "let full mode work although cluster-etcd-operator is here; both would then change etcd's members")
	f.BoolVar(&o.guard, "quorum-guard", true, "in full mode, keep a PodDisruptionBudget in --etcd-namespace, and the pods that it counts, so that drains leave etcd its quorum; a member is then added only where such a pod is")
	f.StringVar(&o.guardImage, "quorum-guard-image", os.Getenv("HOLDFAST_IMAGE"), "image of those pods: Holdfast's own (HOLDFAST_IMAGE)")
	f.StringVar(&o.guardSecret, "quorum-guard-secret", "etcd-client", "Secret in --etcd-namespace with a client certificate for etcd, for those pods: ca.crt, tls.crt, tls.key")
	o.audit.AddFlags(f)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log what is tried again, too")
	return cmd
}

// check finds what is wrong with the flags before anything is started.
func (o *runOptions) check() error {
	if err := o.audit.Validate(); err != nil {
		return cli.Usage("%w", err)
	}
	err := cmp.Or(
		wrong(o.desired < 0, "--desired-replicas is %d; it is a number of etcd voters, such as 3 or 5, or 0", o.desired),
		wrong(o.limits.MaxDeleting < 0 && o.limits.MaxDeleting != quorum.AsTolerated,
			"--max-deleting is %d; it is -1 (as many as etcd can lose), 0 (no limit) or more", o.limits.MaxDeleting),
		wrong(o.limits.MaxLearners < 1, "--max-learners is %d; it is 1 or more", o.limits.MaxLearners),
		wrong(o.limits.StallAfter <= 0 || o.limits.DeadAfter <= 0, "--learner-stall-timeout and --member-dead-timeout must be longer than 0"),
		wrong(o.mode == quorum.ModeGuard && o.clusterOperator == "etcd",
			"--cluster-operator is etcd, which is cluster-etcd-operator's; Holdfast's own needs another name"),
		wrong(o.mode == quorum.ModeFull && o.guard && o.guardImage == "",
			"full mode keeps a quorum guard, whose pods need an image: set --quorum-guard-image (or HOLDFAST_IMAGE) to Holdfast's own, or --quorum-guard=false where another budget guards etcd's quorum"),
		o.policy.check(),
		o.enforces(o.mode == quorum.ModeFull),
		o.etcdFiles.check(),
		o.webhooks.check(),
		wrong(o.drain.delay < 0 || o.drain.delay > time.Minute, "--shutdown-delay is %v; it is from 0 to 1m", o.drain.delay),
	)
	if err == nil && len(o.endpoints) > 0 {
		err = etcdflags.CheckEndpoints(o.endpoints)
	}
	if err == nil && o.kubeconfig != "" {
		err = cli.Readable("kubeconfig", o.kubeconfig)
	}
	return err
}

func (o *runOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	level := zapcore.InfoLevel
	if o.verbose {
		level = zapcore.DebugLevel
	}
	ctrl.SetLogger(zap.New(zap.Level(level), zap.ConsoleEncoder(func(c *zapcore.EncoderConfig) {
		c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	}), zap.StacktraceLevel(zapcore.PanicLevel)))
	log := ctrl.Log.WithName("holdfast")
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // 3 MiB of garbage less on each control-plane Node, for hardly any CPU
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return cli.Usage("the cluster's address and credentials are not known: %v; set --kubeconfig", err)
	}
	config.QPS, config.Burst = 300, 600 // for each kind of object
	p := &process{flags: o, log: log, asked: make(chan struct{})}
	types := scheme()
	// It reads and watches past the manager's cache, which would keep what is not guarded.
	quiet := rest.CopyConfig(config)
	quiet.WarningHandler = rest.NoWarnings{} // of Machines that are only tried, and that a label of control-plane Nodes is deprecated
	if p.api, err = client.NewWithWatch(quiet, client.Options{Scheme: types}); err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	p.ring, err = o.connect(ctx, config, p.api, log)
	if ctx.Err() != nil {
		return nil // a signal came while it waited
	}
	if err != nil {
		return err
	}
	defer p.ring.Close()
	return p.run(ctx, config, types)
}

// connect makes etcd's client, when all that is needed from the API server before the start is there.
func (o *runOptions) connect(ctx context.Context, config *rest.Config, api client.Client, log logr.Logger) (ring *etcd.Client, err error) {
	endpoints := o.endpoints
	s := &startup{probeAddr: o.probeAddr, log: log}
	err = s.await(ctx, func(ctx context.Context) error {
		if err := o.etcdFiles.fetch(ctx, config); err != nil {
			return err
		}
		if len(endpoints) == 0 {
			if o.endpoints, err = discover(ctx, api); err != nil {
				return err
			}
		}
		ring, err = etcd.New(etcd.Config{Endpoints: o.endpoints, CACert: o.etcdFiles.caCert, Cert: o.etcdFiles.cert, Key: o.etcdFiles.key, Identity: identity(), Limits: o.limits.MaxLearners > 1, Logger: log.WithName("etcd")})
		if err != nil {
			return cli.Usage("%w", err)
		}
		if err := o.preflight(ctx, api); err != nil {
			ring.Close()
			return err
		}
		// Before etcd is asked for the first time. Where a first member is gone, another cluster's etcd may have its address:
		// that is noticed only beside answers of this cluster's.
		o.search(api, ring, log).once(ctx)
		return nil
	})
	return ring, err
}

// identity is how this process signs the membership lock: in a pod the host's name is the pod's.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// scheme holds the API groups that Holdfast reads and writes, and not all fifty of client-go's: those are heap.
func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range [...]func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, authenticationv1.AddToScheme, corev1.AddToScheme,
		discoveryv1.AddToScheme, policyv1.AddToScheme,
		configv1.Install, machinev1.Install, machinev1beta1.Install,
	} {
		utilruntime.Must(add(s))
	}
	return s
}

// preflight refuses to start where there is nothing to guard, and where Holdfast would work against
// itself or against another operator.
func (o *runOptions) preflight(ctx context.Context, api client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var who authenticationv1.SelfSubjectReview
	if err := api.Create(ctx, &who); err != nil {
		return fmt.Errorf("ask the API server who this is: %w", err)
	}
	if me := who.Status.UserInfo.Username; !slices.Contains(o.identities.Custodians, me) {
		return cli.Usage("this process is %s to the API server, which is not among --custodians %q: its own releases would be put back", me, o.identities.Custodians)
	}
	machines := &metav1.PartialObjectMetadataList{}
	machines.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind("MachineList"))
	if err := api.List(ctx, machines, client.InNamespace(o.namespace), client.Limit(1)); meta.IsNoMatchError(err) {
		return fmt.Errorf("this cluster does not have the Machine API (no resource machines.machine.openshift.io), so there is nothing to guard: %w", err)
	} else if err != nil {
		return fmt.Errorf("list Machines in namespace %s: %w", o.namespace, err)
	}
	if o.mode != quorum.ModeFull || o.besideOperator {
		return nil
	}
	sign, err := observe.EtcdOperator(ctx, api)
	if err != nil || sign == "" {
		return err
	}
	return cli.Usage("cluster-etcd-operator is here (%s) and changes etcd's members itself: use --mode guard beside it, or --allow-cluster-etcd-operator if you are sure", sign)
}
