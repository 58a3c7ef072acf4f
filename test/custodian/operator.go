package custodian

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr/funcr"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	namespace = "openshift-machine-api"
	roleLabel = "machine.openshift.io/cluster-api-machine-role"
	nodeLabel = "node-role.kubernetes.io/master"

	callLimit = 3 * time.Second // of a call to etcd
)

// Etcd is what the operator asks of etcd. A *clientv3.Client is one.
type Etcd interface {
	MemberList(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.MemberListResponse, error)
	MemberAddAsLearner(ctx context.Context, peerURLs []string) (*clientv3.MemberAddResponse, error)
	MemberPromote(ctx context.Context, id uint64) (*clientv3.MemberPromoteResponse, error)
	MemberRemove(ctx context.Context, id uint64) (*clientv3.MemberRemoveResponse, error)
	Status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error)
}

// Options are the operator's size, its pace and its wrong ways.
type Options struct {
	// Desired is the number of voters wanted.
	Desired int
	// Resync is after how long Run looks at the hooks of Machines that have not changed. Zero looks in every round.
	Resync time.Duration
	// Revision is for how long a revision of the static pods is under way, once other endpoints are published: no member is removed then.
	Revision time.Duration
	// Health is for how long a member may not answer before it is ill; zero is a second.
	Health time.Duration
	// GuardPort has the operator keep its quorum guard, whose pods ask their members at that port of theirs.
	GuardPort int
	// LearnersHoldNothing releases a deleting Machine whose member is a learner.
	LearnersHoldNothing bool
	// DoneIfLost takes a removal whose answer was lost for one that was made: the member is gone for it
	// from then on, whatever etcd lists.
	DoneIfLost bool
}

// Deployment is the operator's, by which it is known to be there; without pods, since the operator runs elsewhere.
func Deployment() *appsv1.Deployment {
	labels := map[string]string{"app": "etcd-operator"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "openshift-etcd-operator", Name: "etcd-operator"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "operator", Image: "operator"}}},
			},
		},
	}
}

// Write is one update of a Machine and what came of it.
type Write struct {
	Machine string
	Release bool // of the hook; else it is put on
	// Err is the API server's, Warnings are what it said besides.
	Err      error
	Warnings []string
	// PutBack: there was no error, and the hook is as it was.
	PutBack bool
	Took    time.Duration
}

// Passed says whether the write did what it was to do, and nobody had anything to say about it.
func (w Write) Passed() bool { return w.Err == nil && !w.PutBack && len(w.Warnings) == 0 }

func (w Write) String() string {
	what, came := "hook on ", "passed"
	if w.Release {
		what = "release of "
	}
	switch {
	case w.Err != nil:
		came = w.Err.Error()
	case w.PutBack:
		came = "put back"
	}
	return fmt.Sprintf("%sMachine %s: %s in %s %q", what, w.Machine, came, w.Took.Round(time.Millisecond), w.Warnings)
}

// Operator is the stand-in. Make one with New.
type Operator struct {
	client  client.Client
	etcd    Etcd
	options Options
	heard   *warnings

	mu        sync.Mutex // of what follows
	writes    []Write
	gone      map[uint64]bool // members that it takes for removed, with DoneIfLost
	endpoints []string        // addresses of the voters, as they were published last
	stableAt  time.Time       // when the revision since then is done
}

// New makes an Operator that acts at the API server as the configuration says. The client of etcd
// stays the caller's.
func New(config *rest.Config, etcd Etcd, options Options) (*Operator, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), machinev1beta1.Install(scheme)); err != nil {
		return nil, err
	}
	if options.Health == 0 {
		options.Health = time.Second
	}
	o := &Operator{etcd: etcd, options: options, heard: &warnings{}, gone: map[uint64]bool{}}
	config = rest.CopyConfig(config)
	config.WarningHandler = o.heard
	var err error
	if o.client, err = client.New(config, client.Options{
		Scheme: scheme,
		// Controller-runtime's own logger prints a stack when nobody has set it.
		Log: funcr.New(func(_, _ string) {}, funcr.Options{}),
	}); err != nil {
		return nil, fmt.Errorf("the operator's client: %w", err)
	}
	return o, nil
}

// Round has each controller look at everything once, one after the other, and do its work. It returns the writes to
// Machines, in order. It does not go with Run.
func (o *Operator) Round(ctx context.Context) ([]Write, error) {
	began := len(o.Writes())
	var errs []error
	for _, c := range o.controllers() {
		errs = append(errs, c.sync(ctx))
	}
	return o.Writes()[began:], errors.Join(errs...)
}

// Run has the controllers work side by side until the context ends, and returns their last errors before that. Every so often each
// finds out whether it has to look.
func (o *Operator) Run(ctx context.Context, every time.Duration) error {
	controllers := o.controllers()
	last := make([]error, len(controllers))
	var work sync.WaitGroup
	for i, c := range controllers {
		work.Go(func() { last[i] = c.run(ctx, every) })
	}
	work.Wait()
	return errors.Join(last...)
}

// Writes are all writes so far, in order.
func (o *Operator) Writes() []Write {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.writes)
}

// machines are those of the control plane, by name: the order in which the operator goes through them. It is an error where none is
// Running: the Machine API is not functional then, and nothing is done.
func (o *Operator) machines(ctx context.Context) ([]*machinev1beta1.Machine, error) {
	var list machinev1beta1.MachineList
	if err := o.client.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{roleLabel: "master"}); err != nil {
		return nil, fmt.Errorf("listing Machines: %w", err)
	}
	var out []*machinev1beta1.Machine
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	if !slices.ContainsFunc(out, running) {
		return nil, errors.New("the Machine API is not functional: no control-plane Machine is Running")
	}
	slices.SortFunc(out, func(a, b *machinev1beta1.Machine) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func running(m *machinev1beta1.Machine) bool {
	return m.Status.Phase != nil && *m.Status.Phase == machinev1beta1.PhaseRunning
}

// members reads the list, linearizable, less those that the operator takes for removed.
func (o *Operator) members(ctx context.Context) ([]*etcdserverpb.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	list, err := o.etcd.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing etcd's members: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(list.Members), func(m *etcdserverpb.Member) bool { return o.gone[m.GetID()] }), nil
}

// warnings are those of the request under way.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

// HandleWarningHeader makes it client-go's rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, text)
}

// take are the lines since the last take.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	return lines
}
