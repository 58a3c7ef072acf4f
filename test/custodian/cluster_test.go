package custodian_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
)

const (
	desired = 3
	within  = 5 * time.Minute // a whole replacement; it takes seconds, unless the API server hangs with a member
	glimpse = 100 * time.Millisecond
	attempt = 5 * time.Second // what is asked of something that hangs
)

// cluster is a sandbox, and the people on it.
type cluster struct {
	*sandbox.Sandbox
	admin, alice, gitops, machineAPI, operator client.WithWatch
	etcd                                       *clientv3.Client
	size                                       int // voters wanted
}

func start(t *testing.T, options sandbox.Options) *cluster {
	t.Helper()
	if options.Replicas == 0 {
		options.Replicas = desired
	}
	s := sandboxtest.Start(t, options)
	c := &cluster{Sandbox: s, etcd: dial(t, s), size: options.Replicas}
	for who, its := range map[sandbox.Identity]*client.WithWatch{
		sandbox.Admin: &c.admin, sandbox.Alice: &c.alice, sandbox.GitOps: &c.gitops, sandbox.MachineAPI: &c.machineAPI, sandbox.EtcdOperator: &c.operator,
	} {
		scheme := runtime.NewScheme()
		must(t, errors.Join(clientgoscheme.AddToScheme(scheme), configv1.Install(scheme), machinev1.Install(scheme), machinev1beta1.Install(scheme)))
		config := s.Config(who)
		sandboxtest.Again(config)
		config.WarningHandler = rest.NoWarnings{}
		var err error
		*its, err = client.NewWithWatch(config, client.Options{Scheme: scheme, Log: funcr.New(func(_, _ string) {}, funcr.Options{})})
		must(t, err)
	}
	return c
}

func dial(t *testing.T, s *sandbox.Sandbox) *clientv3.Client {
	t.Helper()
	etcd, err := s.EtcdClient(s.Endpoints()...)
	must(t, err)
	t.Cleanup(func() {
		if err := etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	return etcd
}

// custodian is a stand-in for cluster-etcd-operator under its service account.
func (c *cluster) custodian(t *testing.T, etcd custodian.Etcd, options custodian.Options) *custodian.Operator {
	t.Helper()
	options.Desired = c.size
	o, err := custodian.New(c.Config(sandbox.EtcdOperator), etcd, options)
	must(t, err)
	return o
}

// operates runs the stand-in for cluster-etcd-operator until the function that it returns is called.
func (c *cluster) operates(t *testing.T) (stop func()) {
	t.Helper()
	o := c.custodian(t, dial(t, c.Sandbox), custodian.Options{Resync: time.Minute, Revision: 3 * time.Second})
	running, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	last := make(chan error, 1)
	go func() { last <- o.Run(running, glimpse) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-last; err != nil {
			t.Errorf("the stand-in for cluster-etcd-operator ends with %v", err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition that an error describes while it does not hold.
func eventually(t *testing.T, what string, holds func(context.Context) error) {
	t.Helper()
	NewWithT(t).Eventually(t.Context(), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		return holds(ctx)
	}).WithTimeout(within).WithPolling(glimpse).Should(Succeed(), what)
}

func named(name string) *machinev1beta1.Machine {
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, name
	return m
}

// machine reads a Machine, nil if it is gone.
func (c *cluster) machine(ctx context.Context, name string) (*machinev1beta1.Machine, error) {
	m := named(name)
	err := c.admin.Get(ctx, client.ObjectKeyFromObject(m), m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return m, err
}

// held wants a Machine to be deleting and protected, on an instance that is not being terminated.
func (c *cluster) held(t *testing.T, name string) {
	t.Helper()
	m, err := c.machine(t.Context(), name)
	must(t, err)
	if m == nil {
		t.Fatalf("Machine %s is gone", name)
	}
	if seen := machineapi.Machine(m); !seen.Deleting() || !seen.Protected() {
		t.Errorf("Machine %s: deleting %t, protected %t: %+v", name, seen.Deleting(), seen.Protected(), m.Spec.LifecycleHooks)
	}
	if host, ok := c.Host(name); !ok || host.Etcd == nil {
		t.Errorf("the instance of Machine %s does not run etcd any more", name)
	}
}

// replace creates a Machine like another one, as somebody does who leaves hooks to the operator.
func (c *cluster) replace(t *testing.T, of, name string) {
	t.Helper()
	old, err := c.machine(t.Context(), of)
	must(t, err)
	m, err := sandbox.Replacement(old, name, "m5.2xlarge")
	must(t, err)
	m.Spec.LifecycleHooks = machinev1beta1.LifecycleHooks{}
	must(t, c.alice.Create(t.Context(), m))
}

// remove deletes a Machine as a person does, who tries again while a voter is still found ill.
func (c *cluster) remove(t *testing.T, name string) {
	t.Helper()
	eventually(t, "Machine "+name+" deleted", func(ctx context.Context) error { return c.alice.Delete(ctx, named(name)) })
}

// seen waits until the machine controller has seen that Machines are being deleted, and written so:
// after that nobody writes to them who could be in the operator's way.
func (c *cluster) seen(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		eventually(t, "the machine controller to see that "+name+" is being deleted", func(ctx context.Context) error {
			m, err := c.machine(ctx, name)
			if err == nil && (m == nil || m.Status.Phase == nil || *m.Status.Phase != machinev1beta1.PhaseDeleting) {
				err = errors.New("it has not")
			}
			return err
		})
	}
}

// refused wants somebody's deletion to be refused by a rule. What is wrong otherwise the rest of the test shows.
func (c *cluster) refused(t *testing.T, who client.Client, name string, rule quorum.Rule) {
	t.Helper()
	if err := who.Delete(t.Context(), named(name)); err == nil || !strings.Contains(err.Error(), "("+string(rule)+")") {
		t.Errorf("deleting Machine %s: %v, want a refusal by %s", name, err, rule)
	}
}

// members are etcd's, by name.
func (c *cluster) members(ctx context.Context) (map[string]*etcdserverpb.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]*etcdserverpb.Member{}
	for _, m := range list.Members {
		out[m.GetName()] = m
	}
	return out, nil
}

// voters are the names of etcd's voters, in order.
func (c *cluster) voters(t *testing.T) []string {
	t.Helper()
	members, err := c.members(t.Context())
	must(t, err)
	var names []string
	for name, m := range members {
		if !m.GetIsLearner() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// leader is the name of etcd's leader.
func (c *cluster) leader(t *testing.T) string {
	t.Helper()
	var name string
	eventually(t, "a leader", func(ctx context.Context) error {
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		for _, m := range members {
			status, err := c.etcd.Status(ctx, m.GetClientURLs()[0])
			if err == nil && status.Leader == m.GetID() {
				name = m.GetName()
				return nil
			}
		}
		return errors.New("no member says that it leads")
	})
	return name
}

// votes says what is missing for a member of that name to be a voter.
func (c *cluster) votes(ctx context.Context, name string) error {
	members, err := c.members(ctx)
	if err != nil {
		return err
	}
	if m := members[name]; m == nil || m.GetIsLearner() {
		return fmt.Errorf("%s is no voter: %v", name, m)
	}
	return nil
}

// gone says what is missing for a Machine to be no more.
func (c *cluster) gone(ctx context.Context, name string) error {
	m, err := c.machine(ctx, name)
	if err == nil && m != nil {
		err = fmt.Errorf("Machine %s is there, hooks %+v", name, m.Spec.LifecycleHooks)
	}
	return err
}

// restless says what is missing for the control plane to be at rest: as many voters as desired and no
// learner, each on a live Machine with hook, latch and evidence, and no Machine deleting.
func (c *cluster) restless(ctx context.Context) error {
	members, err := c.members(ctx)
	if err != nil {
		return err
	}
	var machines machinev1beta1.MachineList
	if err := c.admin.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return err
	}
	if len(members) != c.size || len(machines.Items) != c.size {
		return fmt.Errorf("%d members and %d Machines", len(members), len(machines.Items))
	}
	for i := range machines.Items {
		m := machineapi.Machine(&machines.Items[i])
		member := members[m.Name]
		if member == nil || member.GetIsLearner() || !m.OwnEvidence().Names(quorum.MemberID(member.GetID())) || !m.Protected() || m.Deleting() {
			return fmt.Errorf("Machine %s: deleting %t, protected %t, evidence %x, member %v", m.Name, m.Deleting(), m.Protected(), m.OwnEvidence().MemberIDs, member)
		}
		// A voter that was promoted a moment ago may not answer clients yet, and cluster-etcd-operator removes such a voter first.
		for _, url := range member.GetClientURLs() {
			if _, err := c.etcd.Status(ctx, url); err != nil {
				return fmt.Errorf("voter %s does not answer: %w", m.Name, err)
			}
		}
	}
	return nil
}

// goOn does the operator's rounds until a condition holds, and wants nobody to have had anything to say.
func goOn(t *testing.T, o *custodian.Operator, what string, holds func(context.Context) error) {
	t.Helper()
	began := len(o.Writes())
	eventually(t, what, func(ctx context.Context) error {
		_, err := o.Round(ctx)
		if missing := holds(ctx); missing != nil {
			return errors.Join(missing, err)
		}
		return nil
	})
	allPassed(t, o.Writes()[began:])
}

// allPassed wants every write to have passed at once. One that lost a race against another writer of
// the same Machine is nobody's refusal, nor is one that etcd could not answer or Holdfast not judge, because
// etcd had just lost its leader: the operator sends it again.
func allPassed(t *testing.T, writes []custodian.Write) {
	t.Helper()
	for i := range writes {
		t.Log(writes[i])
		w := &writes[i]
		again := func(later custodian.Write) bool {
			return later.Machine == w.Machine && later.Release == w.Release && later.Passed()
		}
		if !w.Passed() && !apierrors.IsConflict(w.Err) && (!undecided(w) || !slices.ContainsFunc(writes[i+1:], again)) {
			t.Errorf("the operator was in the right, and did not get it: %s", w)
		}
	}
}

// undecided says whether etcd was not known for a moment when the operator released a Machine.
func undecided(w *custodian.Write) bool {
	if w.Err != nil {
		return strings.Contains(w.Err.Error(), "etcdserver: ")
	}
	return w.Release && w.PutBack && len(w.Warnings) > 0 && strings.Contains(w.Warnings[0], "is not known")
}

// records are Holdfast's of what cluster-etcd-operator asked for.
func (c *cluster) records(t *testing.T) []audit.Entry {
	t.Helper()
	return c.recordsOf(t, sandbox.EtcdOperator)
}

func (c *cluster) recordsOf(t *testing.T, who sandbox.Identity) []audit.Entry {
	t.Helper()
	file, err := os.Open(c.AuditLogs()[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(t, err)
	defer func() { _ = file.Close() }()
	var mine []audit.Entry
	_, err = audit.Read(file, func(e audit.Entry) {
		if e.User.Username == string(who) {
			mine = append(mine, e)
		}
	}, func(line int, err error) { t.Errorf("line %d of the audit log: %v", line, err) })
	must(t, err)
	return mine
}

// recorded wants a record of a Machine's release that was put back by early-release.
func (c *cluster) recorded(t *testing.T, name string) {
	t.Helper()
	if !slices.ContainsFunc(c.records(t), func(e audit.Entry) bool {
		return e.Name() == name && slices.Equal(e.Rules(), []string{string(quorum.RuleEarlyRelease)}) && slices.Equal(e.Verdicts(), []string{admission.VerdictRepaired.String()})
	}) {
		t.Errorf("no record says that the release of Machine %s was early", name)
	}
}

// early wants a release to have been put back by early-release, which knows the member, with a Warning and
// without an error.
func early(t *testing.T, w custodian.Write) {
	t.Helper()
	want := "Holdfast (early-release) put hook EtcdQuorumOperator back on Machine " + w.Machine + ": etcd still lists "
	if w.Err != nil || !w.PutBack || len(w.Warnings) == 0 || !strings.HasPrefix(w.Warnings[0], want) {
		t.Errorf("%s: want it put back by early-release, with a Warning and without an error", w)
	}
}

func platformSet(t *testing.T) *machinev1.ControlPlaneMachineSet {
	t.Helper()
	set := &machinev1.ControlPlaneMachineSet{}
	must(t, yaml.UnmarshalStrict([]byte(`
metadata: {namespace: openshift-machine-api, name: cluster, labels: {machine.openshift.io/cluster-api-cluster: sandbox}}
spec:
  state: Active
  replicas: 3
  strategy: {type: RollingUpdate}
  selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: {machine.openshift.io/cluster-api-cluster: sandbox, machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
      spec:
        lifecycleHooks: {}
        metadata: {}
        providerSpec: {value: {apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: `+sandbox.InstanceType+`}}
`), set))
	return set
}
