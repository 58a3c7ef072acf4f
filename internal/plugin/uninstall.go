package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

type uninstallOptions struct {
	*clusterFlags
	policies, dryRun, yes bool // the first is off's
	timeout               time.Duration
}

func (o *uninstallOptions) bind(f *pflag.FlagSet) {
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be done")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.DurationVar(&o.timeout, "timeout", 3*time.Minute, "how long all of it may take")
}

func uninstallCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := uninstallOptions{clusterFlags: c}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take Holdfast off the cluster, in the order that releases no Machine and blocks no request",
		Long: `Take Holdfast off the cluster, and look at the end whether anything is left. --dry-run shows each step. Repeated, it
goes on where it was interrupted.

In guard mode etcd's hook stays on the Machines: it is cluster-etcd-operator's, and where that operator
is not the command refuses. In full mode it goes too. The command refuses while a Machine is being
deleted that nothing would hold after that.

What etcd's hosts start from (ConfigMaps and EndpointSlices in ` + etcdNamespace + `) stays. So does what
holdfast run keeps elsewhere than by default (--cluster-operator, --etcd-namespace,
--leader-elect-namespace): the command does not know of it.`,
		Example: `  kubectl holdfast uninstall --dry-run
  kubectl holdfast uninstall`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	o.bind(cmd.Flags())
	return cmd
}

// uninstalling is an uninstallation under way.
type uninstalling struct {
	*cluster
	t        terminal
	full     bool
	dryRun   bool
	skipDead bool // halt does not wait for pods on Nodes that are not ready, and leaves them in dead

	replicas int32 // of the Deployment before
	dead     []corev1.Pod
}

func (o *uninstallOptions) run(ctx context.Context, t terminal) error {
	if o.holdfast != holdfastNamespace {
		return cli.Usage("--holdfast-namespace is %q; uninstall removes Holdfast's namespace with all in it, and that is %s, no other", o.holdfast, holdfastNamespace)
	}
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	u := &uninstalling{cluster: c, t: t, dryRun: o.dryRun}
	if u.full, err = c.ownsHook(ctx); err != nil {
		return err
	}
	if found, err := u.left(ctx); err != nil {
		return err
	} else if len(found) == 0 {
		fmt.Fprintln(t.out, "Nothing of Holdfast is on this cluster.")
		return nil
	}
	for _, refuses := range []func(context.Context) error{u.alone, u.mayGo, u.setStays, u.nobodysHooks} {
		if err := refuses(ctx); err != nil {
			return err
		}
	}
	if u.full {
		fmt.Fprintln(t.out, "Holdfast is in full mode here: etcd's hook goes off the Machines as well, and nothing moves etcd's members\nafter that. A Machine that is deleted then takes its member with it.")
	} else {
		fmt.Fprintln(t.out, "Holdfast is in guard mode here, or beside cluster-etcd-operator: etcd's hook is that operator's and stays on the\nMachines.")
	}
	if !o.dryRun && !o.yes {
		if err := ask(ctx, t, "uninstall", "Nothing guards control-plane Machines after this, and namespace "+u.holdfast+" is deleted with all in it.\nTo go ahead, type uninstall: ", "--yes, and to see what it would do: --dry-run"); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"Stopping Holdfast's replicas", u.halt},
		{"Removing the webhooks' registrations", func(ctx context.Context) error { return u.remove(ctx, webhookConfigurations()) }},
		{"Removing the policies", func(ctx context.Context) error { return u.remove(ctx, policies()) }},
		{"Leaving the ControlPlaneMachineSet", u.leaveSet},
		{"Taking latch and annotations off", u.letGo},
		{"Removing the rights, the namespace, and what else Holdfast made", func(ctx context.Context) error { return u.remove(ctx, others(u.namespace, u.holdfast)) }},
	} {
		fmt.Fprintln(t.out, step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w; repeat the command to go on from there", strings.ToLower(step.what[:1])+step.what[1:], err)
		}
	}
	if o.dryRun {
		fmt.Fprintln(t.out, "A trial: nothing was changed.")
		return nil
	}
	found, err := u.left(ctx)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("this is left of Holdfast, or came back: %s", strings.Join(found, "; "))
	}
	fmt.Fprintln(t.out, "Nothing of Holdfast is left.")
	if u.full {
		fmt.Fprintf(t.out, "What etcd's hosts start from stays in namespace %s: ConfigMaps etcd-membership and etcd-endpoints, and the\nEndpointSlices of Service etcd. Nobody keeps them now.\n", etcdNamespace)
	}
	return nil
}

// halt scales the Deployment to nothing and waits until its pods have answered their last request.
func (u *uninstalling) halt(ctx context.Context) error {
	var d appsv1.Deployment
	key := client.ObjectKey{Namespace: u.holdfast, Name: "holdfast"}
	if err := u.Get(ctx, key, &d); apierrors.IsNotFound(err) {
		u.say("Deployment %s is not there", key)
		return u.silent(ctx)
	} else if err != nil {
		return fmt.Errorf("read Deployment %s: %w", key, err)
	}
	u.replicas = ptr.Deref(d.Spec.Replicas, 1)
	u.say("Deployment %s: replicas %d to 0", key, u.replicas)
	if pause := pause(&d); pause != "" {
		u.say("a GitOps tool keeps it, and may scale it up again; to have it leave the Deployment alone%s", pause)
	}
	if u.dryRun {
		return nil
	}
	before := d.DeepCopy()
	d.Spec.Replicas = ptr.To[int32](0)
	if err := u.Patch(ctx, &d, client.MergeFrom(before), fieldManager); err != nil {
		return fmt.Errorf("scale Deployment %s: %w", key, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return fmt.Errorf("Deployment %s: %w", key, err)
	}
	not := "its pods are still there"
	err = u.until(ctx, &not, func(ctx context.Context) (bool, error) {
		if err := u.stopped(ctx, &d); err != nil {
			return false, err
		}
		var pods corev1.PodList
		if err := u.List(ctx, &pods, client.InNamespace(u.holdfast), client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return false, err
		}
		not, u.dead = lingering(pods.Items), nil
		for i := range pods.Items {
			if p := &pods.Items[i]; u.skipDead && p.DeletionTimestamp != nil && !u.ready(ctx, p.Spec.NodeName) {
				u.dead = append(u.dead, *p)
			}
		}
		return len(pods.Items) == len(u.dead), nil
	})
	for i := range u.dead {
		u.say("pod %s is not waited for: its Node %s is not ready", u.dead[i].Name, u.dead[i].Spec.NodeName)
	}
	return err
}

// ready reports whether a Node is; one that cannot be read is.
func (u *uninstalling) ready(ctx context.Context, name string) bool {
	var n corev1.Node
	if err := u.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
		return !apierrors.IsNotFound(err)
	}
	return machineapi.Node(&n).Ready
}

// silent refuses where there is no Deployment to stop and Holdfast may run elsewhere: it would put back what is taken off. It prints
// itself every 30 s.
func (u *uninstalling) silent(ctx context.Context) error {
	heard := u.readRingReport(ctx)
	if u.dryRun || heard.quiet {
		return nil
	}
	if heard.why == "" {
		heard.why = fmt.Sprintf("it last reported %s ago (%s)", ago(u.clock.Since(heard.ring.Snapshot.Now)), orNobody(heard.ring.By))
	}
	return fmt.Errorf("Holdfast may run elsewhere, and would put back what is taken off: %s. Stop it there, and repeat the command a minute later", heard.why)
}

// remove deletes those of the parts that exist, and waits until they are gone.
func (u *uninstalling) remove(ctx context.Context, all []part) error {
	there, err := standing(ctx, u.Client, all)
	if err != nil {
		return err
	}
	if len(there) == 0 {
		u.say("nothing is there")
	}
	for _, p := range there {
		u.say("%s", p)
		options := []client.DeleteOption{client.PropagationPolicy(metav1.DeletePropagationBackground)}
		if u.dryRun {
			options = append(options, client.DryRunAll)
		}
		if err := u.Delete(ctx, p.object(), options...); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s: %w", p, err)
		}
	}
	if u.dryRun {
		return nil
	}
	for _, p := range there {
		not := p.String() + " is still there"
		err := u.until(ctx, &not, func(ctx context.Context) (bool, error) {
			left, err := standing(ctx, u.Client, []part{p})
			return len(left) == 0, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// letGo takes what is Holdfast's off the Machines, and off the Nodes. All Machines are looked at before the first
// is changed: one may have been deleted since.
func (u *uninstalling) letGo(ctx context.Context) error {
	if err := u.mayGo(ctx); err != nil {
		return err
	}
	if err := u.eachMachine(ctx, func(m *machinev1beta1.Machine) error {
		traces := u.traces(m)
		if len(traces) == 0 {
			return nil
		}
		u.say("Machine %s: %s", m.Name, strings.Join(traces, ", "))
		return edit(ctx, u, client.ObjectKeyFromObject(m), u.strip)
	}); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := u.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if _, ok := n.Annotations[quorum.GaveWayAnnotation]; !ok {
			continue
		}
		u.say("Node %s: %s", n.Name, quorum.GaveWayAnnotation)
		if err := edit(ctx, u, client.ObjectKeyFromObject(n), func(n *corev1.Node) error {
			delete(n.Annotations, quorum.GaveWayAnnotation)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// traces are what is Holdfast's on a Machine, and in full mode etcd's hook.
func (u *uninstalling) traces(m *machinev1beta1.Machine) []string {
	var out []string
	seen := machineapi.Machine(m)
	if u.full && seen.Hook == quorum.EntryOurs {
		out = append(out, "hook "+quorum.HookName)
	}
	if seen.Latch == quorum.EntryOurs {
		out = append(out, "latch "+quorum.LatchName)
	}
	for _, keys := range []map[string]string{m.Annotations, m.Labels} {
		for key := range keys {
			if strings.HasPrefix(key, "holdfast.dev/") {
				out = append(out, key)
			}
		}
	}
	slices.Sort(out)
	return out
}

// strip takes what is Holdfast's off a Machine, unless that was deleted meanwhile and nothing would hold it.
func (u *uninstalling) strip(m *machinev1beta1.Machine) error {
	if err := u.mayStrip(m); err != nil {
		return err
	}
	seen := machineapi.Machine(m)
	machineapi.Release(m, u.full && seen.Hook == quorum.EntryOurs, seen.Latch == quorum.EntryOurs)
	for _, keys := range []map[string]string{m.Annotations, m.Labels} {
		maps.DeleteFunc(keys, func(key, _ string) bool { return strings.HasPrefix(key, "holdfast.dev/") })
	}
	return nil
}

// edit changes an object as it stands, again where somebody else was quicker: hooks are a list, and a patch replaces all of it. What change
// sees is what the patch is based on. A refusal is no end: API servers hear a moment later that policies and webhooks are gone.
func edit[T any, O interface {
	*T
	client.Object
}](ctx context.Context, u *uninstalling, key client.ObjectKey, change func(O) error) error {
	if u.dryRun {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	not := key.Name + " keeps changing"
	return u.until(ctx, &not, func(ctx context.Context) (bool, error) {
		o := O(new(T))
		if err := u.Get(ctx, key, o); err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		before := o.DeepCopyObject().(client.Object)
		if err := change(o); err != nil {
			return false, err
		}
		err := u.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldManager)
		switch {
		case apierrors.IsForbidden(err), apierrors.IsInternalError(err):
			not = fmt.Sprintf("change %s: %s", key.Name, serverMessage(err))
			return false, nil
		case apierrors.IsConflict(err):
			return false, nil
		case client.IgnoreNotFound(err) != nil:
			return false, fmt.Errorf("change %s: %s", key.Name, serverMessage(err))
		}
		return true, nil
	})
}

// left is all of Holdfast that is there.
func (u *uninstalling) left(ctx context.Context) ([]string, error) {
	there, err := standing(ctx, u.Client, slices.Concat(webhookConfigurations(), policies(), healthCheck(u.namespace), others(u.namespace, u.holdfast)))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range there {
		out = append(out, p.String())
	}
	set, err := u.ownSet(ctx)
	if err != nil {
		return nil, err
	}
	if set != nil {
		out = append(out, "ControlPlaneMachineSet "+set.Name+": "+cpms.Finalizer)
	}
	err = u.eachMachine(ctx, func(m *machinev1beta1.Machine) error {
		for _, trace := range u.traces(m) {
			if trace != "hook "+quorum.HookName {
				out = append(out, "Machine "+m.Name+": "+trace)
			}
		}
		return nil
	})
	return out, err
}

// until calls done until it returns true or fails. Once ctx ends, its error is *not.
func (u *uninstalling) until(ctx context.Context, not *string, done func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, done)
	if err != nil && ctx.Err() != nil {
		return errors.New(*not)
	}
	return err
}

func (u *uninstalling) say(format string, args ...any) {
	fmt.Fprintln(u.t.out, "  "+plain(fmt.Sprintf(format, args...)))
}
