package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

const resizeWithin = 4 * time.Minute

// The two that keep the set, in turns, on one control plane. Holdfast moves etcd's members for both.
const (
	platformKeeps = "the platform's operator"
	holdfastKeeps = "Holdfast"
)

// resized is one resize of all three Machines.
type resized struct {
	whole time.Duration // from the change of the template until all are as it says and etcd has no other member
	stall time.Duration // the writer's longest wait
	most  int           // the most Machines at a time
}

// resize changes the template of a set of three, once kept by the platform's control plane machine set operator and once by Holdfast,
// while somebody writes to etcd.
func (b *bench) resize(ctx context.Context) (err error) {
	c, err := b.start(ctx, "resize", sandbox.Options{Mode: "full", PlatformSets: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.admin.Create(ctx, platformSet()); err != nil {
		return fmt.Errorf("create the set: %w", err)
	}
	size := sandbox.InstanceType
	if err := within(ctx, resizeWithin, "the set to adopt its Machines", func(ctx context.Context) error { return c.unsettled(ctx, size, nil) }); err != nil {
		return err
	}
	all := map[string][]resized{}
	for i := range b.resizes {
		for _, keeper := range [...]string{platformKeeps, holdfastKeeps} {
			if err := c.keep(ctx, keeper); err != nil {
				return err
			}
			size = map[bool]string{true: "m5.2xlarge", false: "m5.4xlarge"}[size != "m5.2xlarge"]
			r, err := c.resizeTo(ctx, size)
			if err != nil {
				return fmt.Errorf("resize %d by %s: %w", i+1, keeper, err)
			}
			progress("resize %d of %d by %s: %.1f s, longest stall %d ms, %d Machines at most", i+1, b.resizes, keeper, r.whole.Seconds(), r.stall.Milliseconds(), r.most)
			all[keeper] = append(all[keeper], r)
		}
	}
	median := func(keeper string, of func(*resized) float64) float64 {
		var column []float64
		for i := range all[keeper] {
			column = append(column, of(&all[keeper][i]))
		}
		return quantile(column, .5)
	}
	for _, keeper := range [...]string{platformKeeps, holdfastKeeps} {
		b.report.figure("resize", "all three, kept by "+keeper+", median", median(keeper, func(r *resized) float64 { return r.whole.Seconds() }), "s", 0)
		b.report.figure("resize", "the writer's longest wait, "+keeper+", median", median(keeper, func(r *resized) float64 { return ms(r.stall) }), "ms", 0)
		b.report.figure("resize", "Machines at a time, "+keeper+", median of the most", median(keeper, func(r *resized) float64 { return float64(r.most) }), "Machines", 0)
	}
	whole := func(r *resized) float64 { return r.whole.Seconds() }
	b.report.figure("resize", "Holdfast's time by the platform operator's", median(holdfastKeeps, whole)/median(platformKeeps, whole), "x", 0)
	return nil
}

// keep has the set kept by one of the two, if it is not already.
func (c *cluster) keep(ctx context.Context, keeper string) error {
	set := &machinev1.ControlPlaneMachineSet{}
	key := client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.Name}
	taken := func(want bool) error {
		return until(ctx, fmt.Sprintf("Holdfast's finalizer on the set: %t", want), func(ctx context.Context) error {
			if err := c.admin.Get(ctx, key, set); err != nil {
				return err
			}
			if slices.Contains(set.Finalizers, cpms.Finalizer) != want {
				return fmt.Errorf("its finalizers are %v", set.Finalizers)
			}
			return nil
		})
	}
	if err := c.admin.Get(ctx, key, set); err != nil {
		return err
	}
	ours := slices.Contains(set.Finalizers, cpms.Finalizer)
	sign := &configv1.ClusterOperator{ObjectMeta: metav1.ObjectMeta{Name: "control-plane-machine-set"}}
	switch {
	case keeper == holdfastKeeps && !ours:
		if err := errors.Join(c.SetOperator.Stop(), c.admin.Delete(ctx, sign)); err != nil {
			return fmt.Errorf("the platform's operator goes: %w", err)
		}
		return taken(true)
	case keeper == platformKeeps && ours:
		if err := c.admin.Create(ctx, sign); err != nil {
			return fmt.Errorf("the platform's operator comes back: %w", err)
		}
		if err := taken(false); err != nil {
			return err
		}
		return c.SetOperator.Start()
	}
	return nil
}

// resizeTo changes the template's instance type, and waits until all Machines are of it.
func (c *cluster) resizeTo(ctx context.Context, size string) (r resized, err error) {
	etcd, err := c.EtcdClient(c.Endpoints()...)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	writing, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	w := writer.New(etcd)
	work.Go(func() { w.Run(writing) })
	began := time.Now()
	set := &machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: cpms.Name}}
	patch := fmt.Sprintf(`{"spec":{"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":%q}}}}}}}`, size)
	if err := c.admin.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return r, fmt.Errorf("change the template: %w", err)
	}
	if err := within(ctx, resizeWithin, "three Machines of "+size, func(ctx context.Context) error { return c.unsettled(ctx, size, &r.most) }); err != nil {
		return r, err
	}
	r.whole = time.Since(began)
	stop()
	work.Wait()
	r.stall = w.Stats().Longest
	n, err := lost(ctx, w)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d acknowledged writes are lost", n)
	}
	return r, err
}

// unsettled says what is missing until the set has three guarded Machines of that instance type, and etcd a voter on each and no other
// member. It notes the most Machines that there were.
func (c *cluster) unsettled(ctx context.Context, size string, most *int) error {
	set := &machinev1.ControlPlaneMachineSet{}
	if err := c.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.Name}, set); err != nil {
		return err
	}
	var machines machinev1beta1.MachineList
	if err := c.admin.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return err
	}
	if most != nil {
		*most = max(*most, len(machines.Items))
	}
	for i := range machines.Items {
		m := &machines.Items[i]
		var spec struct{ InstanceType string }
		if err := json.Unmarshal(m.Spec.ProviderSpec.Value.Raw, &spec); err != nil {
			return err
		}
		if spec.InstanceType != size || !metav1.IsControlledBy(m, set) {
			return fmt.Errorf("Machine %s is a %s, and the set's own: %t", m.Name, spec.InstanceType, metav1.IsControlledBy(m, set))
		}
	}
	if s := set.Status; len(machines.Items) != 3 || s.ObservedGeneration != set.Generation || s.UpdatedReplicas != 3 {
		return fmt.Errorf("there are %d Machines, and the set's status is %+v at generation %d", len(machines.Items), s, set.Generation)
	}
	m, err := scrape(ctx, c.plain, c.MetricsURL())
	if err != nil {
		return err
	}
	if voters, learners := m.sum("holdfast_etcd_members", `role="voter"`, `health="healthy"`), m.sum("holdfast_etcd_members", `role="learner"`); voters != 3 || learners != 0 {
		return fmt.Errorf("etcd has %.0f healthy voters and %.0f learners", voters, learners)
	}
	return c.guarded(ctx)
}

// platformSet declares the sandbox's three Machines as the installer does.
func platformSet() *machinev1.ControlPlaneMachineSet {
	set := &machinev1.ControlPlaneMachineSet{}
	if err := yaml.UnmarshalStrict([]byte(`
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
      spec: {lifecycleHooks: {}, metadata: {}, providerSpec: {value: {apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: `+sandbox.InstanceType+`}}}
`), set); err != nil {
		panic(err) // it stands above
	}
	return set
}
