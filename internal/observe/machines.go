package observe

import (
	"context"
	"fmt"
	"slices"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// Machines lists the guarded Machines: those with a control-plane role or type label. Like all reads behind
// an admission answer it ends before the API server stops waiting for the answer.
func (o *Observer) Machines(ctx context.Context) ([]quorum.Machine, error) {
	found, err := o.guarded(ctx)
	return found.machines, err
}

// guarded is Machines, with the objects that they were read from.
func (o *Observer) guarded(ctx context.Context) (machineList, error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	byType := ControlPlane(quorum.TypeLabel)
	// Almost every Machine has both labels, and reading one is what costs most: the second list has what the first leaves out.
	var lists [2]machineList
	group, within := errgroup.WithContext(ctx)
	for i, selector := range []labels.Selector{ControlPlane(quorum.RoleLabel), byType.Add(role(quorum.RoleLabel, selection.NotIn))} {
		group.Go(func() (err error) {
			lists[i], err = o.machines(within, &client.ListOptions{LabelSelector: selector})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return machineList{}, err
	}
	if lists[0].version != lists[1].version { // in between a Machine's labels may have changed, so that neither has it
		var err error
		if lists[1], err = o.machines(ctx, &client.ListOptions{LabelSelector: byType}); err != nil {
			return machineList{}, err
		}
	}
	found := map[string]quorum.Machine{}
	for _, m := range slices.Concat(lists[0].machines, lists[1].machines) {
		found[m.Name] = m
	}
	return machineList{machines: sorted(found), objects: slices.Concat(lists[0].objects, lists[1].objects)}, nil
}

// machineList is what a list of Machines said, and of which resourceVersion: lists of one are of one state of the cluster.
type machineList struct {
	machines []quorum.Machine
	objects  []machinev1beta1.Machine // those that could be read
	version  string
	more     string // the token that goes on with the list, "" at its end
}

// machines lists Machines. Where the list cannot be read, one of them may be the reason (a list nests a Machine one level deeper
// than it stands): their metadata are listed, and each is read by itself.
func (o *Observer) machines(ctx context.Context, which *client.ListOptions) (machineList, error) {
	which.Namespace = o.Namespace
	var list machinev1beta1.MachineList
	err := o.API.List(ctx, &list, which)
	if err == nil {
		out := make([]quorum.Machine, 0, len(list.Items))
		for i := range list.Items {
			out = append(out, machineapi.Machine(&list.Items[i]))
		}
		return machineList{out, list.Items, list.ResourceVersion, list.Continue}, nil
	}
	names := &metav1.PartialObjectMetadataList{}
	names.SetGroupVersionKind(machinev1beta1.GroupVersion.WithKind("MachineList"))
	if o.API.List(ctx, names, which) != nil {
		return machineList{}, fmt.Errorf("list Machines in namespace %s: %w", o.Namespace, err)
	}
	out := make([]quorum.Machine, len(names.Items))
	objects := make([]machinev1beta1.Machine, len(names.Items))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(10)
	for i := range names.Items {
		group.Go(func() error {
			m := &objects[i]
			switch err := o.API.Get(ctx, client.ObjectKeyFromObject(&names.Items[i]), m); {
			case ctx.Err() != nil:
				return fmt.Errorf("read Machine %s: %w", names.Items[i].Name, err)
			case err == nil:
				out[i] = machineapi.Machine(m)
			default: // or it has gone since: unknown for one look
				out[i] = machineapi.Machine(&machinev1beta1.Machine{ObjectMeta: names.Items[i].ObjectMeta})
				out[i].Unread, *m = err.Error(), machinev1beta1.Machine{}
			}
			return nil
		})
	}
	err = group.Wait()
	objects = slices.DeleteFunc(objects, func(m machinev1beta1.Machine) bool { return m.UID == "" })
	return machineList{out, objects, names.ResourceVersion, names.Continue}, err
}

// each visits all Machines, some at a time: there may be thousands.
func (o *Observer) each(ctx context.Context, visit func(*quorum.Machine)) error {
	for which := (&client.ListOptions{Limit: 100}); ; {
		list, err := o.machines(ctx, which)
		if err != nil {
			return err
		}
		for i := range list.machines {
			visit(&list.machines[i])
		}
		if list.more == "" {
			return nil
		}
		which = &client.ListOptions{Limit: which.Limit, Continue: list.more}
	}
}

// ControlPlane selects what has the label with a control-plane role.
func ControlPlane(label string) labels.Selector {
	return labels.NewSelector().Add(role(label, selection.In))
}

func role(label string, is selection.Operator) labels.Requirement {
	requirement, err := labels.NewRequirement(label, is, quorum.ControlPlaneRoles())
	utilruntime.Must(err) // label and roles are constants
	return *requirement
}
