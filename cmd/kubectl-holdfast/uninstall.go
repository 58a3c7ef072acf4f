package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

type uninstallOptions struct {
	clusterFlags
	dryRun, yes bool
	timeout     time.Duration
}

func uninstallCommand(t terminal) *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take Holdfast off the cluster, in the order that lets nothing go and blocks nobody",
		Long: `Take Holdfast off the cluster: stop its replicas, which would put back what is taken; remove the
webhooks' registrations, before they refuse what nobody answers for; remove the policies; take latch and
annotations off the Machines; and remove the rights and the namespace. At the end it looks for itself
whether anything is left. Repeated, it goes on where it was interrupted.

In guard mode etcd's hook stays on the Machines: it is cluster-etcd-operator's. In full mode it goes
too, and nothing holds a Machine of a voter after that; so the command refuses while such a Machine is
being deleted. What etcd's hosts start from (ConfigMaps and EndpointSlices in ` + etcdNamespace + `) stays.`,
		Example: `  kubectl holdfast uninstall --dry-run
  kubectl holdfast uninstall`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	f := cmd.Flags()
	o.bind(f)
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be done")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.DurationVar(&o.timeout, "timeout", 3*time.Minute, "how long all of it may take")
	return cmd
}

// uninstalling is an uninstallation under way.
type uninstalling struct {
	*cluster
	t         terminal
	namespace string // Holdfast's
	machines  string // the Machines' namespace
	full      bool
	dryRun    bool
}

func (o *uninstallOptions) run(ctx context.Context, t terminal) error {
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	defer c.close()
	u := &uninstalling{cluster: c, t: t, namespace: o.holdfast, machines: c.namespace, dryRun: o.dryRun}
	if u.full, err = c.ownsHook(ctx); err != nil {
		return err
	}
	if found, err := u.left(ctx); err != nil {
		return err
	} else if len(found) == 0 {
		fmt.Fprintln(t.out, "Nothing of Holdfast is on this cluster.")
		return nil
	}
	if err := u.mayGo(ctx); err != nil {
		return err
	}
	if u.full {
		fmt.Fprintln(t.out, "Holdfast is in full mode here: etcd's hook goes off the Machines as well, and nothing moves etcd's members\nafter that. A Machine that is deleted then takes its member with it.")
	} else {
		fmt.Fprintln(t.out, "Holdfast is in guard mode here, or beside cluster-etcd-operator: etcd's hook is that operator's and stays on the\nMachines.")
	}
	if !o.dryRun && !o.yes {
		if err := confirm(ctx, t); err != nil {
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
		{"Removing the webhooks' registrations", func(ctx context.Context) error { return u.remove(ctx, registrations()) }},
		{"Removing the policies", func(ctx context.Context) error { return u.remove(ctx, policies()) }},
		{"Taking latch and annotations off", u.letGo},
		{"Removing what Holdfast made elsewhere", func(ctx context.Context) error { return u.remove(ctx, besides(u.machines)) }},
		{"Removing the rights", func(ctx context.Context) error { return u.remove(ctx, rights(u.machines)) }},
		{"Removing the namespace and all in it", func(ctx context.Context) error {
			return u.remove(ctx, parts(corev1.SchemeGroupVersion, "Namespace", u.namespace))
		}},
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
	return u.verify(ctx)
}

// ownsHook says whether etcd's hook is Holdfast's, and goes with it. Beside cluster-etcd-operator it never is,
// whatever Holdfast's mode was.
func (c *cluster) ownsHook(ctx context.Context) (bool, error) {
	mode := c.mode
	if heard := c.told(ctx); mode == 0 && heard.ring != nil {
		mode = heard.ring.Snapshot.Mode
	}
	if mode == 0 {
		var err error
		if mode, err = c.guessedMode(ctx); err != nil {
			return false, err
		}
	}
	if mode != quorum.Full {
		return false, nil
	}
	key := client.ObjectKey{Namespace: "openshift-etcd-operator", Name: "etcd-operator"}
	var operator appsv1.Deployment
	switch err := c.Get(ctx, key, &operator); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("see whether cluster-etcd-operator is here (Deployment %s): %w", key, err)
	}
	return false, nil
}

// mayGo refuses where taking the hook off would let a voter's Machine go at once.
func (u *uninstalling) mayGo(ctx context.Context) error {
	if !u.full {
		return nil
	}
	all, err := u.list(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if m := machineapi.Machine(&all[i]); m.Deleting() && m.Hook == quorum.Ours {
			return fmt.Errorf("Machine %s is being deleted and held until a replacement votes; without Holdfast it would be terminated at once, and its member with it. Let that replacement finish (kubectl holdfast explain %s), or release the Machine first (kubectl holdfast release %s)", m.Name, m.Name, m.Name)
		}
	}
	return nil
}

// halt scales the Deployment to nothing and waits until its pods have answered their last request.
func (u *uninstalling) halt(ctx context.Context) error {
	var d appsv1.Deployment
	key := client.ObjectKey{Namespace: u.namespace, Name: "holdfast"}
	if err := u.Get(ctx, key, &d); apierrors.IsNotFound(err) {
		u.say("Deployment %s is not there", key)
		return nil
	} else if err != nil {
		return fmt.Errorf("read Deployment %s: %w", key, err)
	}
	u.say("Deployment %s: replicas %d to 0", key, ptr.Deref(d.Spec.Replicas, 1))
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
	return u.until(ctx, "its pods are still there", func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		err := u.List(ctx, &pods, client.InNamespace(u.namespace), client.MatchingLabelsSelector{Selector: selector})
		return len(pods.Items) == 0, err
	})
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
		if u.dryRun {
			continue
		}
		if err := u.Delete(ctx, p.object(), client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s: %w", p, err)
		}
	}
	if u.dryRun {
		return nil
	}
	for _, p := range there {
		err := u.until(ctx, p.String()+" is still there", func(ctx context.Context) (bool, error) {
			left, err := standing(ctx, u.Client, []part{p})
			return len(left) == 0, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// letGo takes what is Holdfast's off the Machines, and off the Nodes.
func (u *uninstalling) letGo(ctx context.Context) error {
	all, err := u.list(ctx)
	if err != nil {
		return err
	}
	found := false
	for i := range all {
		m := &all[i]
		traces := u.traces(m)
		if len(traces) == 0 {
			continue
		}
		found = true
		u.say("Machine %s: %s", m.Name, strings.Join(traces, ", "))
		if u.dryRun {
			continue
		}
		if err := u.strip(ctx, m); err != nil {
			return err
		}
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
		found = true
		u.say("Node %s: %s", n.Name, quorum.GaveWayAnnotation)
		if u.dryRun {
			continue
		}
		before := n.DeepCopy()
		delete(n.Annotations, quorum.GaveWayAnnotation)
		if err := u.Patch(ctx, n, client.MergeFrom(before), fieldManager); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("change Node %s: %w", n.Name, err)
		}
	}
	if !found {
		u.say("nothing is on them")
	}
	return nil
}

// traces are what is Holdfast's on a Machine, and in full mode etcd's hook.
func (u *uninstalling) traces(m *machinev1beta1.Machine) []string {
	var out []string
	seen := machineapi.Machine(m)
	if u.full && seen.Hook == quorum.Ours {
		out = append(out, "hook "+quorum.HookName)
	}
	if seen.Latch == quorum.Ours {
		out = append(out, "latch "+quorum.LatchName)
	}
	for key := range m.Annotations {
		if strings.HasPrefix(key, "holdfast.dev/") {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// strip changes a Machine as it stands: hooks are a list, and a patch replaces all of it. API servers hear a
// moment later that the policies are gone.
func (u *uninstalling) strip(ctx context.Context, m *machinev1beta1.Machine) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var refused error
	err := u.until(ctx, "Machine "+m.Name+" keeps changing", func(ctx context.Context) (bool, error) {
		if err := u.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		before := m.DeepCopy()
		seen := machineapi.Machine(m)
		machineapi.Release(m, u.full && seen.Hook == quorum.Ours, seen.Latch == quorum.Ours)
		for key := range before.Annotations {
			if strings.HasPrefix(key, "holdfast.dev/") {
				delete(m.Annotations, key)
			}
		}
		err := u.Patch(ctx, m, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldManager)
		if apierrors.IsConflict(err) {
			return false, nil
		}
		if apierrors.IsForbidden(err) {
			refused = fmt.Errorf("change Machine %s: %s", m.Name, saidBy(err))
			return false, nil
		}
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("change Machine %s: %s", m.Name, saidBy(err))
		}
		return len(u.traces(m)) == 0, nil
	})
	if err != nil && refused != nil {
		return refused
	}
	return err
}

func (u *uninstalling) list(ctx context.Context) ([]machinev1beta1.Machine, error) {
	var machines machinev1beta1.MachineList
	if err := u.List(ctx, &machines, client.InNamespace(u.machines)); err != nil {
		return nil, fmt.Errorf("list Machines in namespace %s: %w", u.machines, err)
	}
	return machines.Items, nil
}

// left is all of Holdfast that is there.
func (u *uninstalling) left(ctx context.Context) ([]string, error) {
	there, err := standing(ctx, u.Client, slices.Concat(registrations(), policies(), besides(u.machines), rights(u.machines), parts(corev1.SchemeGroupVersion, "Namespace", u.namespace)))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range there {
		out = append(out, p.String())
	}
	machines, err := u.list(ctx)
	if err != nil {
		return nil, err
	}
	for i := range machines {
		for _, trace := range u.traces(&machines[i]) {
			if trace != "hook "+quorum.HookName {
				out = append(out, "Machine "+machines[i].Name+": "+trace)
			}
		}
	}
	return out, nil
}

// verify looks whether all is gone, and says what stayed on purpose.
func (u *uninstalling) verify(ctx context.Context) error {
	found, err := u.left(ctx)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("this is left of Holdfast, or came back: %s", strings.Join(found, "; "))
	}
	fmt.Fprintln(u.t.out, "Nothing of Holdfast is left.")
	if u.full {
		fmt.Fprintf(u.t.out, "What etcd's hosts start from stays in namespace %s: ConfigMaps etcd-membership and etcd-endpoints, and the\nEndpointSlices of Service etcd. Nobody keeps them now.\n", etcdNamespace)
	}
	return nil
}

// until asks until it is so or the time is over.
func (u *uninstalling) until(ctx context.Context, not string, done func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, done)
	if err != nil && ctx.Err() != nil {
		return errors.New(not)
	}
	return err
}

func (u *uninstalling) say(format string, args ...any) {
	fmt.Fprintln(u.t.out, "  "+plain(fmt.Sprintf(format, args...)))
}

// confirm has somebody type the word.
func confirm(ctx context.Context, t terminal) error {
	const word = "uninstall"
	if f, ok := t.in.(*os.File); ok && !isTerminal(f) {
		return usage("there is no terminal to ask at; to go ahead: --yes, and to see what it would do: --dry-run")
	}
	fmt.Fprintf(t.out, "Nothing guards control-plane Machines after this. To go ahead, type %s: ", word)
	answer := make(chan string, 1)
	go func() { // a read of a terminal cannot be interrupted: Ctrl-C leaves it behind, and the process ends
		line, err := bufio.NewReader(t.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			line = ""
		}
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(t.out)
		return errors.New("interrupted; nothing was changed")
	case typed := <-answer:
		if typed != word {
			return fmt.Errorf("that is not %s; nothing was changed", word)
		}
	}
	return nil
}
