package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

func offCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := uninstallOptions{clusterFlags: c}
	cmd := &cobra.Command{
		Use:   "off",
		Short: "Switch Holdfast off and leave it installed, where it is in the way",
		Long: `Switch Holdfast off: stop its replicas, wait until their pods have ended, because a replica puts registrations
back, and remove the webhooks' registrations, which refuse requests while no replica answers. It stays
installed. The command ends with what stays held, and with how to switch Holdfast on again.

Hook and latch stay on the Machines, and the machine controller obeys them without Holdfast. The policies stay
in force, too: they keep Machines from losing either. With --policies they go as well; Holdfast makes them anew.

Audit records in the pods' logs go with the pods: the command first says how to keep them.

A pod that does not end because its Node is not ready is not waited for. A replica that still runs there would
put the registrations back: the command looks for that, too.`,
		Example: `  kubectl holdfast off
  kubectl holdfast off --policies`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.off(cmd.Context(), t) },
	}
	o.bind(cmd.Flags())
	cmd.Flags().BoolVar(&o.policies, "policies", false, "remove the policies as well")
	return cmd
}

func (o *uninstallOptions) off(ctx context.Context, t terminal) error {
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "Audit records in the pods' logs go with the pods. To keep them, first: kubectl -n %s logs -l %s --tail=-1 > audit.log\n", o.holdfast, holdfastPods)
	if !o.dryRun && !o.yes {
		if err := ask(ctx, t, "off", "Nothing but hook and latch guards control-plane Machines after this.\nTo go ahead, type off: ", "--yes, and to see what it would do: --dry-run"); err != nil {
			return err
		}
	}
	u := &uninstalling{cluster: c, t: t, dryRun: o.dryRun, skipDead: true}
	gone := webhookConfigurations()
	if o.policies {
		gone = append(gone, policies()...)
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if !o.dryRun { // who may not remove what refuses requests must not stop who answers them
		trial := *u
		trial.dryRun, trial.t.out = true, io.Discard
		if err := trial.remove(ctx, gone); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
	}
	fmt.Fprintln(t.out, "Stopping Holdfast's replicas")
	err = u.halt(ctx)
	if err == nil {
		fmt.Fprintln(t.out, "Removing the registrations")
		err = u.remove(ctx, gone)
	}
	if err == nil && !o.dryRun {
		err = u.stayAway(ctx, gone)
	}
	if err != nil && len(u.dead) > 0 {
		err = fmt.Errorf("%w. A replica that still runs puts registrations back: %s", err, lingering(u.dead))
	}
	if err != nil {
		return fmt.Errorf("%w. Registrations that are left refuse requests while no replica answers: run this command again, or switch Holdfast on: %s", err, u.on())
	}
	if o.dryRun {
		fmt.Fprintln(t.out, "A trial: nothing was changed.")
		return nil
	}
	fmt.Fprintln(t.out, "Holdfast is off. Hook and latch stay on the Machines, and "+map[bool]string{true: "nothing else guards them.", false: "the policies stay in force."}[o.policies])
	fmt.Fprintf(t.out, "A Machine that is deleted meanwhile is held by latch %s until Holdfast is on again; this command, run again, says how to let it go without.\n", quorum.LatchName)
	if err := u.stillHeld(ctx, o.policies); err != nil {
		return err
	}
	for i := range u.dead {
		fmt.Fprintf(t.out, "Once Node %s answers again, run this command again: a replica that still runs there puts registrations back as it ends.\n", plain(u.dead[i].Spec.NodeName))
	}
	fmt.Fprintf(t.out, "To switch it on again:\n  %s\n  kubectl holdfast check --wait\n", u.on())
	return nil
}

// on is the command that switches Holdfast on.
func (u *uninstalling) on() string {
	return fmt.Sprintf("kubectl -n %s scale deployment holdfast --replicas %d", u.holdfast, cmp.Or(u.replicas, 2))
}

// stayAway fails if the Deployment was scaled up again, or one of the parts came back: a replica that still runs takes some seconds for it.
func (u *uninstalling) stayAway(ctx context.Context, gone []part) error {
	if len(u.dead) > 0 {
		u.say("looking after 5 s whether a replica that still runs puts them back")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Second):
		}
	}
	if err := u.stopped(ctx, &appsv1.Deployment{}); err != nil {
		return err
	}
	there, err := standing(ctx, u.Client, gone)
	if err == nil && len(there) > 0 {
		err = fmt.Errorf("%v came back", there)
	}
	return err
}

// stillHeld says which Machines that are being deleted stay while Holdfast is off, and what lets them go.
func (u *uninstalling) stillHeld(ctx context.Context, policies bool) error {
	all, err := listMachines(ctx, u.Client, u.namespace)
	if err != nil {
		return err
	}
	alone, err := u.ownsHook(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		m := machineapi.Machine(&all[i])
		at := slices.IndexFunc(all[i].Spec.LifecycleHooks.PreTerminate, func(h machinev1beta1.LifecycleHook) bool { return h.Name == quorum.LatchName })
		if !m.Deleting() || at < 0 {
			continue
		}
		before := ""
		if !policies {
			before = ", and kubectl holdfast off --policies was run"
		}
		if alone && m.Hook == quorum.EntryOurs {
			fmt.Fprintf(u.t.out, "Machine %s is being deleted, and hook and latch hold it until Holdfast is on again: only Holdfast takes its member out of etcd. To let it go without, once etcdctl member list shows no member on it%s, take both off:\n"+
				"  kubectl -n %s edit machine.machine.openshift.io %[1]s\n", plain(m.Name), before, u.namespace)
			continue
		}
		listed := ""
		if m.Hook == quorum.EntryAbsent {
			listed = " (its hook is off, so cluster-etcd-operator does not remove that: etcdctl member remove)"
		}
		fmt.Fprintf(u.t.out, "Machine %s is being deleted, and latch %s holds it until Holdfast is on again. To let it go without, once etcdctl member list shows no member on it%s%s:\n", plain(m.Name), quorum.LatchName, listed, before)
		path := fmt.Sprintf("/spec/lifecycleHooks/preTerminate/%d", at)
		fmt.Fprintf(u.t.out, "  kubectl -n %s patch machine.machine.openshift.io %s --type=json -p '[{\"op\":\"test\",\"path\":\"%s/name\",\"value\":\"%s\"},{\"op\":\"remove\",\"path\":\"%s\"}]'\n", u.namespace, plain(m.Name), path, quorum.LatchName, path)
	}
	return nil
}

// stopped reads Holdfast's Deployment, and fails if somebody scaled it up again.
func (u *uninstalling) stopped(ctx context.Context, d *appsv1.Deployment) error {
	err := u.Get(ctx, client.ObjectKey{Namespace: u.holdfast, Name: "holdfast"}, d)
	if err != nil || ptr.Deref(d.Spec.Replicas, 1) == 0 {
		return client.IgnoreNotFound(err)
	}
	return fmt.Errorf("%s scaled Deployment %s/%s up to %d again. Stop that first%s", scaledBy(d), d.Namespace, d.Name, *d.Spec.Replicas, pause(d))
}

// scaledBy is the field manager that set the number of replicas last.
func scaledBy(d *appsv1.Deployment) string {
	var last *metav1.ManagedFieldsEntry
	for i := range d.ManagedFields {
		f := &d.ManagedFields[i]
		if f.Subresource != "status" && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:replicas"`) && (last == nil || !f.Time.Before(last.Time)) {
			last = f
		}
	}
	if last == nil {
		return "somebody"
	}
	return plain(last.Manager)
}

// pause is the command that has a GitOps tool leave an object alone, by the marks that Argo CD and Flux put on what they apply.
func pause(o metav1.Object) string {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	app, _, _ := strings.Cut(annotations["argocd.argoproj.io/tracking-id"], ":")
	if app == "" {
		app = labels["argocd.argoproj.io/instance"]
	}
	const flux = ".toolkit.fluxcd.io/"
	switch {
	case app != "":
		return ": argocd app set " + plain(strings.Replace(app, "_", "/", 1)) + " --sync-policy none"
	case labels["kustomize"+flux+"name"] != "":
		return ": flux -n " + plain(labels["kustomize"+flux+"namespace"]) + " suspend kustomization " + plain(labels["kustomize"+flux+"name"])
	case labels["helm"+flux+"name"] != "":
		return ": flux -n " + plain(labels["helm"+flux+"namespace"]) + " suspend helmrelease " + plain(labels["helm"+flux+"name"])
	}
	return ""
}
