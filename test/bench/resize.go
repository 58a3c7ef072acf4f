package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/test/sandbox"
	"github.com/holdfast-dev/holdfast/test/writer"
)

const resizeWithin = 4 * time.Minute

// keepers keep the set in turns, on one control plane. Holdfast moves etcd's members for both.
//
//nolint:gochecknoglobals // its length is a part of types
var keepers = [...]string{"the platform's operator", "Holdfast"}

// resized is one resize of all three Machines.
type resized struct {
	phases [][]float64   // of each replacement, in seconds: how long each of steps came after all those before it
	stall  time.Duration // the writer's longest wait
	most   int           // the most Machines at a time
}

// whole is the time from the change of the template until the last outdated Machine is gone.
func (r *resized) whole() (sum float64) {
	for _, s := range slices.Concat(r.phases...) {
		sum += s
	}
	return sum
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
	if err := within(ctx, resizeWithin, "the set to adopt its Machines", c.unsettled); err != nil {
		return err
	}
	size := sandbox.InstanceType
	all := map[string][]resized{}
	for i := range b.resizes {
		for _, keeper := range keepers {
			if err := c.keep(ctx, keeper); err != nil {
				return err
			}
			size = map[bool]string{true: "m5.2xlarge", false: "m5.4xlarge"}[size != "m5.2xlarge"]
			r, err := c.resizeTo(ctx, size)
			if err != nil {
				return fmt.Errorf("resize %d by %s: %w", i+1, keeper, err)
			}
			progress("resize %d of %d by %s: %.1f s, longest stall %d ms, %d Machines at most", i+1, b.resizes, keeper, r.whole(), r.stall.Milliseconds(), r.most)
			all[keeper] = append(all[keeper], r)
		}
	}
	add := func(what, unit string, of func(*resized) []float64) {
		row := phase{What: what, Unit: unit}
		for k, keeper := range keepers {
			for i := range all[keeper] {
				row.By[k] = append(row.By[k], of(&all[keeper][i])...)
			}
		}
		b.report.Phases = append(b.report.Phases, row)
	}
	for i, step := range steps {
		add(step, "s", func(r *resized) (column []float64) {
			for _, replacement := range r.phases {
				column = append(column, replacement[i])
			}
			return column
		})
	}
	add("all three", "s", func(r *resized) []float64 { return []float64{r.whole()} })
	add("the writer's longest wait", "ms", func(r *resized) []float64 { return []float64{ms(r.stall)} })
	add("Machines at a time, at most", "", func(r *resized) []float64 { return []float64{float64(r.most)} })
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
	case keeper == keepers[1] && !ours:
		if err := errors.Join(c.SetOperator.Stop(), c.admin.Delete(ctx, sign)); err != nil {
			return fmt.Errorf("the platform's operator goes: %w", err)
		}
		return taken(true)
	case keeper == keepers[0] && ours:
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
	watching, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	w := writer.New(etcd)
	work.Go(func() { w.Run(watching) })
	seen := &timeline{}
	if err := seen.follow(watching, &work, c, etcd); err != nil {
		return r, err
	}
	began := time.Now()
	set := &machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: sandbox.MachineNamespace, Name: cpms.Name}}
	patch := fmt.Sprintf(`{"spec":{"template":{"machines_v1beta1_machine_openshift_io":{"spec":{"providerSpec":{"value":{"instanceType":%q}}}}}}}`, size)
	if err := c.admin.Patch(ctx, set, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return r, fmt.Errorf("change the template: %w", err)
	}
	if err := within(ctx, resizeWithin, "three Machines of "+size, c.unsettled); err != nil {
		return r, err
	}
	if err := until(ctx, "the last events", func(context.Context) (err error) { r.phases, err = seen.phases(began); return err }); err != nil {
		return r, err
	}
	stop()
	work.Wait()
	r.stall, r.most = w.Stats().Longest, seen.most
	n, err := lost(ctx, w)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d acknowledged writes are lost", n)
	}
	return r, err
}

// unsettled says what is missing until the set has three guarded Machines as its template says, and none besides.
func (c *cluster) unsettled(ctx context.Context) error {
	set := &machinev1.ControlPlaneMachineSet{}
	if err := c.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: cpms.Name}, set); err != nil {
		return err
	}
	if s := set.Status; s.Replicas != 3 || s.ObservedGeneration != set.Generation || s.UpdatedReplicas != 3 {
		return fmt.Errorf("the set's status is %+v at generation %d", s, set.Generation)
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
