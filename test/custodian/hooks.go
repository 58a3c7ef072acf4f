package custodian

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// The operator's entry in preDrain.
const (
	hookName  = "EtcdQuorumOperator"
	hookOwner = "clusteroperator/etcd"
)

func hooked(m *machinev1beta1.Machine) bool {
	return slices.Contains(m.Spec.LifecycleHooks.PreDrain, machinev1beta1.LifecycleHook{Name: hookName, Owner: hookOwner})
}

func deleting(m *machinev1beta1.Machine) bool { return m.DeletionTimestamp != nil }

// unhook takes the entry off, whoever owns it.
func unhook(m *machinev1beta1.Machine) {
	m.Spec.LifecycleHooks.PreDrain = slices.DeleteFunc(m.Spec.LifecycleHooks.PreDrain, func(h machinev1beta1.LifecycleHook) bool {
		return h.Name == hookName
	})
}

// hooks puts hooks on and takes them off.
func (o *Operator) hooks(ctx context.Context) error { return errors.Join(o.hook(ctx), o.release(ctx)) }

// hook puts the hook on every live Machine; one that fails does not stop the others.
func (o *Operator) hook(ctx context.Context) error {
	machines, err := o.machines(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range machines {
		if deleting(m) || hooked(m) {
			continue
		}
		unhook(m)
		m.Spec.LifecycleHooks.PreDrain = append(m.Spec.LifecycleHooks.PreDrain, machinev1beta1.LifecycleHook{Name: hookName, Owner: hookOwner})
		errs = append(errs, o.write(ctx, m, false))
	}
	return errors.Join(errs...)
}

// release takes the hook off deleting Machines whose addresses no member has. The first that fails ends it.
func (o *Operator) release(ctx context.Context) error {
	machines, err := o.machines(ctx)
	if err != nil {
		return err
	}
	machines = slices.DeleteFunc(machines, func(m *machinev1beta1.Machine) bool { return !deleting(m) || !hooked(m) })
	if len(machines) == 0 {
		return nil
	}
	members, err := o.members(ctx)
	if err != nil {
		return err
	}
	if o.options.LearnersHoldNothing {
		members = slices.DeleteFunc(members, (*etcdserverpb.Member).GetIsLearner)
	}
	for _, m := range machines {
		if memberOf(m, members) != nil { // a Machine without addresses hosts nothing
			continue
		}
		unhook(m)
		if err := o.write(ctx, m, true); err != nil {
			return err
		}
	}
	return nil
}

// write sends the Machine as a whole, under its resource version, and notes what came of it.
func (o *Operator) write(ctx context.Context, m *machinev1beta1.Machine, release bool) error {
	o.heard.take()
	began := time.Now()
	err := o.client.Update(ctx, m)
	w := Write{Machine: m.Name, Release: release, Err: err, Warnings: o.heard.take(), Took: time.Since(began)}
	// The client has read the stored Machine out of the answer.
	w.PutBack = err == nil && hooked(m) == release
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes = append(o.writes, w)
	if err != nil {
		return fmt.Errorf("updating Machine %s: %w", m.Name, err)
	}
	return nil
}
