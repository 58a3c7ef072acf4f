package scenario_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/sandbox/sandboxtest"
)

const (
	slowly  = 5 * time.Minute // a whole replacement; it takes seconds, unless the API server hangs with a member
	quickly = 2 * time.Minute
	glimpse = 100 * time.Millisecond
	attempt = 5 * time.Second // what is asked of something that hangs
)

// cluster is a sandbox with what the tests ask of it.
type cluster struct {
	*sandbox.Sandbox
	clients map[sandbox.Identity]client.Client
	etcd    *clientv3.Client
	desired atomic.Int64
}

func start(t *testing.T, options sandbox.Options) *cluster {
	t.Helper()
	s := sandboxtest.Start(t, options)
	t.Cleanup(func() { seen.note(s.MetricsURL()) })
	c := &cluster{Sandbox: s, clients: map[sandbox.Identity]client.Client{}}
	c.desired.Store(int64(options.Replicas))
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), machinev1.Install(scheme), machinev1beta1.Install(scheme)))
	var err error
	for _, who := range []sandbox.Identity{sandbox.Admin, sandbox.Alice, sandbox.GitOps, sandbox.EtcdOperator, sandbox.Holdfast, sandbox.MachineAPI} {
		config := s.Config(who)
		sandboxtest.Again(config)
		config.WarningHandler = rest.NoWarnings{}
		if c.clients[who], err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
			t.Fatal(err)
		}
	}
	if c.etcd, err = s.EtcdClient(s.Endpoints()...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.etcd.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *cluster) as(who sandbox.Identity) client.Client { return c.clients[who] }

// machine reads a Machine, nil if it is gone.
func (c *cluster) machine(ctx context.Context, name string) (*machinev1beta1.Machine, error) {
	var m machinev1beta1.Machine
	err := c.as(sandbox.Admin).Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: name}, &m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return &m, err
}

// seen is the Machine as quorum sees it; the zero Machine if it is gone.
func (c *cluster) seen(ctx context.Context, name string) (quorum.Machine, error) {
	m, err := c.machine(ctx, name)
	if m == nil {
		return quorum.Machine{}, err
	}
	return machineapi.Machine(m), err
}

// role is what etcd says of the member of that name: "voter", "learner" or "" without one.
func (c *cluster) role(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range list.Members {
		if m.GetName() == name {
			return map[bool]string{true: "learner", false: "voter"}[m.GetIsLearner()], nil
		}
	}
	return "", nil
}

// restless says what is missing for the control plane to be at rest: as many voters as desired and
// no learner but warm ones, each on a live, hooked and Running Machine, and no Machine deleting.
func (c *cluster) restless(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	list, err := c.etcd.MemberList(ctx)
	if err != nil {
		return err
	}
	var machines machinev1beta1.MachineList
	if err := c.as(sandbox.Admin).List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return err
	}
	voters := 0
	for _, member := range list.Members {
		if !member.GetIsLearner() {
			voters++
		}
		if !slices.ContainsFunc(machines.Items, func(m machinev1beta1.Machine) bool { return m.Name == member.GetName() }) {
			return fmt.Errorf("member %q (%x) has no Machine", member.GetName(), member.GetID())
		}
	}
	if desired := int(c.desired.Load()); voters != desired {
		return fmt.Errorf("%d voters, %d wanted", voters, desired)
	}
	for i := range machines.Items {
		m := machineapi.Machine(&machines.Items[i])
		switch {
		case m.Deleting():
			return fmt.Errorf("Machine %s is deleting", m.Name)
		case m.Phase == "Running" && !m.Protected():
			return fmt.Errorf("Machine %s is not protected", m.Name)
		case m.Protected() && len(m.OwnEvidence().MemberIDs) == 0:
			return fmt.Errorf("Machine %s has no evidence", m.Name)
		}
	}
	return nil
}

// replacement creates a Machine by the documented procedure: a copy of another, hooks, annotations
// and all, under a new name.
func (c *cluster) replacement(ctx context.Context, of, name string) error {
	old, err := c.machine(ctx, of)
	if err != nil || old == nil {
		return fmt.Errorf("Machine %s to copy: %w", of, err)
	}
	m, err := sandbox.Replacement(old, name, "m5.2xlarge")
	if err != nil {
		return err
	}
	return c.as(sandbox.Alice).Create(ctx, m)
}

// remove deletes a Machine as a person does, who tries again while a voter that is late is found ill.
func (c *cluster) remove(ctx context.Context, name string) error {
	var err error
	_ = wait.PollUntilContextTimeout(ctx, glimpse, quickly, true, func(ctx context.Context) (bool, error) {
		err = c.removeOnce(ctx, name)
		return err == nil || !strings.Contains(err.Error(), "(degraded-delete)"), nil
	})
	return err
}

func (c *cluster) removeOnce(ctx context.Context, name string) error {
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, name
	return c.as(sandbox.Alice).Delete(ctx, m)
}

// strip takes the preDrain hooks off a Machine, and nothing else.
func (c *cluster) strip(ctx context.Context, who sandbox.Identity, name string) error {
	m := &machinev1beta1.Machine{}
	m.Namespace, m.Name = sandbox.MachineNamespace, name
	return c.as(who).Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":{"preDrain":null}}}`)))
}

// events are the reasons of the Events on a Machine of that name.
func (c *cluster) events(ctx context.Context, name string) ([]string, error) {
	var list corev1.EventList
	err := c.as(sandbox.Admin).List(ctx, &list, client.InNamespace(sandbox.MachineNamespace))
	var reasons []string
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons, err
}

// eventually waits for a condition that an error describes while it does not hold.
func eventually(t *testing.T, within time.Duration, what string, holds func(context.Context) error) {
	t.Helper()
	NewWithT(t).Eventually(t.Context(), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, attempt)
		defer cancel()
		return holds(ctx)
	}).
		WithTimeout(within).WithPolling(glimpse).Should(Succeed(), what)
}

// atRest waits until the control plane is.
func (c *cluster) atRest(t *testing.T) {
	t.Helper()
	eventually(t, slowly, "the control plane at rest", c.restless)
}

// recovers waits until the control plane is at rest, and may lose any Machine again: until a member that was killed, hung or cut off has
// answered Holdfast, the next deletion is refused, but for that of its own Machine.
func (c *cluster) recovers(t *testing.T) {
	t.Helper()
	c.atRest(t)
	eventually(t, quickly, "Holdfast to let any one Machine go", func(ctx context.Context) error {
		members, err := c.members(ctx)
		if err != nil {
			return err
		}
		for _, m := range members {
			if err := c.tryRemove(ctx, m.GetName()); err != nil {
				return err
			}
		}
		return nil
	})
}

// gone waits until a Machine is no more.
func (c *cluster) gone(t *testing.T, within time.Duration, name string) {
	t.Helper()
	eventually(t, within, "Machine "+name+" gone", func(ctx context.Context) error {
		m, err := c.machine(ctx, name)
		if err == nil && m != nil {
			err = fmt.Errorf("Machine %s is there, hooks %+v", name, m.Spec.LifecycleHooks)
		}
		return err
	})
}

// becomes waits until etcd says that of the member of that name.
func (c *cluster) becomes(t *testing.T, name, role string) {
	t.Helper()
	eventually(t, slowly, name+" a "+role, func(ctx context.Context) error {
		is, err := c.role(ctx, name)
		if err == nil && is != role {
			err = fmt.Errorf("%s is %q, not %q", name, is, role)
		}
		return err
	})
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// broken is a Machine whose provider refuses it, so that it never gets an instance, with the hooks
// that its manifest was copied with.
func broken(name string) (*machinev1beta1.Machine, error) {
	raw, err := json.Marshal(map[string]string{"apiVersion": "process.holdfast.dev/v1", "kind": "ProcessMachineProviderSpec"})
	if err != nil {
		return nil, err
	}
	return &machinev1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: sandbox.MachineNamespace, Name: name,
			Labels: map[string]string{quorum.RoleLabel: "master", quorum.TypeLabel: "master", "machine.openshift.io/cluster-api-cluster": "sandbox"},
		},
		Spec: machinev1beta1.MachineSpec{
			ProviderSpec: machinev1beta1.ProviderSpec{Value: &runtime.RawExtension{Raw: raw}},
			LifecycleHooks: machinev1beta1.LifecycleHooks{
				PreDrain: []machinev1beta1.LifecycleHook{{Name: quorum.HookName, Owner: quorum.HookOwner}},
			},
		},
	}, nil
}
