package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineset"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// read reads the Snapshot, and the ControlPlaneMachineSet where that can be read. Who may not read the set is shown the rest.
func (v *view) read(ctx context.Context, o *observe.Observer) (*quorum.Snapshot, error) {
	s, set, err := o.SnapshotWithSet(ctx)
	if set != nil {
		v.set = set
		return s, nil
	}
	if err != nil {
		v.setWhy = err.Error()
	}
	return o.Snapshot(ctx)
}

// setLines are the ControlPlaneMachineSet: who keeps it, how many Machines it has, and what its conditions say.
func (v *view) setLines(out io.Writer) {
	if v.setWhy != "" {
		fmt.Fprintf(out, "Set:  not known: %s\n", plain(v.setWhy))
	}
	if v.set == nil {
		return
	}
	object, facts := v.set.Object, v.set.Facts
	of := &object.Status
	keeper := "nobody keeps it"
	switch {
	case !facts.Active:
		keeper = "Inactive: nothing is done"
	case facts.Taken:
		keeper = "kept by Holdfast"
	case facts.OtherOperator != "":
		keeper = "kept by the platform's operator"
	}
	fmt.Fprintf(out, "Set:  %s, %s; %d wanted, %d there, %d ready, %d as the template says\n", plain(object.Name), keeper, facts.Replicas, of.Replicas, of.ReadyReplicas, of.UpdatedReplicas)
	for _, kind := range []machineset.ConditionType{machineset.ConditionProgressing, machineset.ConditionDegraded} {
		if says := conditionSays(object, kind); says != "" {
			fmt.Fprintf(out, "      %s: %s\n", kind, plain(says))
		}
	}
	for i := range v.Machines {
		if place := facts.Places[v.Machines[i].UID]; place.Outdated != "" && !v.Machines[i].Deleting() {
			fmt.Fprintf(out, "      %s differs from the template: %s\n", v.Machines[i].Name, plain(place.Outdated))
		}
	}
}

// conditionSays is what a condition of the set says where it is so, else "".
func conditionSays(set *machinev1.ControlPlaneMachineSet, kind machineset.ConditionType) string {
	c := meta.FindStatusCondition(set.Status.Conditions, string(kind))
	if c == nil || c.Status != metav1.ConditionTrue {
		return ""
	}
	return cmp.Or(c.Message, c.Reason)
}

// unkept says why nobody may create another Machine where one of a set's is deleted, "" where somebody does.
func unkept(set *machineset.Set) string {
	switch {
	case set.Taken || set.OtherOperator != "":
		return ""
	case set.OperatorWhy != "":
		return "Holdfast does not keep the set, and whether the platform's operator does is not known: " + set.OperatorWhy
	}
	return "neither Holdfast in full mode nor the platform's operator (Deployment control-plane-machine-set-operator) keeps the set"
}

// kept reports whether the set controls the Machine.
func (v *view) kept(m *quorum.Machine) bool {
	owner := m.Controller()
	return v.set != nil && owner != nil && owner.UID == v.set.Facts.UID
}

// inSet is a sentence on the Machine's place in the set, none where no set keeps it.
func (v *view) inSet(m *quorum.Machine) []string {
	if !v.kept(m) {
		return nil
	}
	place := v.set.Facts.Places[m.UID]
	text, why := "It is kept by ControlPlaneMachineSet "+v.set.Object.Name, unkept(v.set.Facts)
	if why != "" {
		text = "It belongs to ControlPlaneMachineSet " + v.set.Object.Name
	}
	if place.Index != nil {
		text += fmt.Sprintf(", as number %d", *place.Index)
	}
	if place.Domain != "" {
		text += ", in failure domain " + place.Domain
	}
	switch {
	case place.Unclear != "":
		text += "; whether it is as the template says is not known: " + place.Unclear
	case place.Outdated != "":
		text += "; it differs from the template: " + place.Outdated
	default:
		text += "; it is as the template says"
	}
	lines := []string{strings.TrimRight(text, ".") + "."}
	if why != "" {
		lines = append(lines, "Nobody may create another where it is deleted: "+why+".")
	}
	return lines
}

// keeps reports whether a Machine's controller is one that creates another Machine where one is deleted.
func keeps(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == "ControlPlaneMachineSet" && strings.HasPrefix(owner.APIVersion, machinev1.GroupName+"/")
}

// inSet has the set of a Machine replace it, or all its Machines where the template changes.
func (o *replaceOptions) inSet(ctx context.Context, t terminal, c *cluster, old *machinev1beta1.Machine) error {
	if o.name != "" {
		return cli.Usage("--name does not go with a Machine that a ControlPlaneMachineSet keeps: the set names its Machines")
	}
	var set machinev1.ControlPlaneMachineSet
	if err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: metav1.GetControllerOf(old).Name}, &set); err != nil {
		return fmt.Errorf("read the ControlPlaneMachineSet that keeps Machine %s: %w", old.Name, err)
	}
	if set.Spec.State != machinev1.ControlPlaneMachineSetStateActive {
		return fmt.Errorf("ControlPlaneMachineSet %s is Inactive and would create no other Machine; nothing is begun. Activate it, or take its owner reference off Machine %s", set.Name, old.Name)
	}
	facts := machineset.Set{Taken: slices.Contains(set.Finalizers, cpms.Finalizer)}
	var err error
	if facts.OtherOperator, err = c.observer.SetOperator(ctx); err != nil {
		facts.OperatorWhy = err.Error()
	}
	if why := unkept(&facts); why != "" {
		return fmt.Errorf("nobody may create another Machine for %s, so nothing is begun: %s. Start that operator, or take the owner reference of ControlPlaneMachineSet %s off the Machine and try again: the command then creates the copy", old.Name, why, set.Name)
	}
	r := &replacing{cluster: c, t: t, old: old, yes: o.yes}
	if !o.changes() {
		wrong := meta.FindStatusCondition(set.Status.Conditions, string(machineset.ConditionDegraded))
		// A Machine that came to nothing is what such a set creates anew.
		itself := wrong != nil && wrong.Reason == string(machineset.ReasonCreationFails) && old.Status.NodeRef == nil
		if says := conditionSays(&set, machineset.ConditionDegraded); says != "" && !itself {
			return fmt.Errorf("ControlPlaneMachineSet %s needs a person first, and would create no other Machine that comes up; nothing is begun: %s", set.Name, says)
		}
		if o.dryRun {
			if err := r.trial(ctx); err != nil {
				return err
			}
			fmt.Fprintf(t.out, "A trial: Machine %s could be deleted now, and ControlPlaneMachineSet %s would create another.\n", old.Name, set.Name)
			return nil
		}
		return o.inTime(ctx, old.Name, r.another)
	}
	changed, err := o.template(&set)
	if err != nil {
		return err
	}
	generation := set.Generation
	patch := client.MergeFromWithOptions(&set, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, changed.DeepCopy(), patch, client.DryRunAll); err != nil {
		return fmt.Errorf("the template of ControlPlaneMachineSet %s could not be changed so, and nothing is begun: %s", set.Name, serverMessage(err))
	}
	if o.dryRun {
		changed.TypeMeta = metav1.TypeMeta{APIVersion: machinev1.GroupVersion.String(), Kind: "ControlPlaneMachineSet"}
		changed.ManagedFields, changed.Status = nil, machinev1.ControlPlaneMachineSetStatus{}
		return printData(t.out, "yaml", changed)
	}
	onDelete := set.Spec.Strategy.Type == machinev1.OnDelete
	question := fmt.Sprintf("The template of ControlPlaneMachineSet %s changes. Its %d Machines are then replaced, one after the other.\nType the set's name to go ahead: ", set.Name, cpms.Replicas(&set))
	if onDelete {
		question = fmt.Sprintf("The template of ControlPlaneMachineSet %s changes, for every Machine that it creates from now on; its strategy is OnDelete, so only Machine %s is replaced now.\nType the set's name to go ahead: ", set.Name, old.Name)
	}
	if !o.yes {
		if err := ask(ctx, t, set.Name, question, "--yes"); err != nil {
			return err
		}
		r.yes = true // an answer is for the Machine's deletion, too
		// Its status may have been written while a person typed.
		if err := c.Get(ctx, client.ObjectKeyFromObject(&set), &set); err != nil {
			return fmt.Errorf("read ControlPlaneMachineSet %s again: %w", set.Name, err)
		}
		if set.Generation != generation {
			return fmt.Errorf("ControlPlaneMachineSet %s was changed meanwhile, and nothing is begun: look at it, and try again", set.Name)
		}
		if changed, err = o.template(&set); err != nil {
			return err
		}
	}
	if err := c.Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("change the template of ControlPlaneMachineSet %s: %s", set.Name, serverMessage(err))
	}
	r.say("The template of ControlPlaneMachineSet %s is changed.", set.Name)
	return o.inTime(ctx, old.Name, func(ctx context.Context) error {
		if onDelete {
			return r.another(ctx)
		}
		return r.rolledOut(ctx, set.Name)
	})
}

// template is the set with what the flags change in its providerSpec.
func (o *replaceOptions) template(set *machinev1.ControlPlaneMachineSet) (*machinev1.ControlPlaneMachineSet, error) {
	of := "ControlPlaneMachineSet " + set.Name
	changed := set.DeepCopy()
	machine := changed.Spec.Template.OpenShiftMachineV1Beta1Machine
	if machine == nil {
		return nil, fmt.Errorf("%s has no template of a Machine that could be changed", of)
	}
	raw, err := o.changed(of, machine.Spec.ProviderSpec.Value)
	if err != nil {
		return nil, err
	}
	machine.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: raw}
	return changed, nil
}

// another deletes the Machine, and follows until the set has replaced it.
func (r *replacing) another(ctx context.Context) error {
	owner := metav1.GetControllerOf(r.old)
	if err := r.agreed(ctx, fmt.Sprintf("Machine %s will be deleted, which cannot be taken back, and %s %s creates another.", r.old.Name, owner.Kind, owner.Name)); err != nil {
		return err
	}
	before, err := r.kept(ctx)
	if err != nil {
		return err
	}
	if err := r.remove(ctx); err != nil {
		return err
	}
	return r.waitReplaced(ctx, func() string {
		now, err := r.kept(ctx)
		if err != nil {
			return "" // it is asked again with the next look
		}
		return successor(r.old.Name, slices.DeleteFunc(now, func(m machinev1beta1.Machine) bool {
			// A command that goes on with a deletion finds the other Machine there already.
			there := slices.ContainsFunc(before, func(b machinev1beta1.Machine) bool { return b.UID == m.UID })
			return there && (r.old.DeletionTimestamp == nil || m.CreationTimestamp.Before(r.old.DeletionTimestamp))
		}))
	})
}

// successor is the name of the Machine that a set created for another one: it has the same number at the end of its name. Where the
// other has none, any of the Machines is; "" if none is.
func successor(old string, created []machinev1beta1.Machine) (name string) {
	number := cpms.Index(old)
	for i := range created {
		m := &created[i]
		if n := cpms.Index(m.Name); number != nil && (n == nil || *n != *number) {
			continue // it is another one's, which was deleted at the same time
		}
		if name == "" || m.Name < name {
			name = m.Name
		}
	}
	return name
}

// kept are the Machines that the old one's controller controls.
func (r *replacing) kept(ctx context.Context) ([]machinev1beta1.Machine, error) {
	machines, err := listMachines(ctx, r.Client, r.namespace)
	return slices.DeleteFunc(machines, func(m machinev1beta1.Machine) bool {
		owner := metav1.GetControllerOf(&m)
		return owner == nil || owner.UID != metav1.GetControllerOf(r.old).UID
	}), err
}

// rolledOut follows until every Machine of the set is as the template says.
func (r *replacing) rolledOut(ctx context.Context, name string) error {
	return r.each(ctx, func() (bool, error) {
		var set machinev1.ControlPlaneMachineSet
		if err := r.Get(ctx, client.ObjectKey{Namespace: r.namespace, Name: name}, &set); err != nil {
			return false, fmt.Errorf("read ControlPlaneMachineSet %s: %w", name, err)
		}
		of, wanted := &set.Status, int32(cpms.Replicas(&set))
		if of.ObservedGeneration < set.Generation {
			r.say("The set has not seen its new template yet.")
			return false, nil
		}
		if says := conditionSays(&set, machineset.ConditionDegraded); says != "" {
			r.say("The set needs a person: %s", says)
			return false, nil
		}
		if of.Replicas == wanted && of.UpdatedReplicas == wanted && of.UnavailableReplicas == 0 {
			r.say("All %d Machines of the set are as the template says.", wanted)
			return true, nil
		}
		r.say("%d of %d Machines are as the template says. %s", of.UpdatedReplicas, wanted, conditionSays(&set, machineset.ConditionProgressing))
		return false, nil
	})
}
