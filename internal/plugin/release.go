package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/audit"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

const (
	// fieldManager is what the API server and the audit records know this plugin's writes by.
	fieldManager = client.FieldOwner("kubectl-holdfast")
	longest      = 1000 // bytes of a reason
)

type releaseOptions struct {
	*clusterFlags
	reason, confirm string
	dryRun          bool
}

func releaseCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := releaseOptions{clusterFlags: c}
	cmd := &cobra.Command{
		Use:   "release MACHINE --reason REASON",
		Short: "Let go of a Machine that is being deleted, without a replacement: the escape hatch",
		Long: `Take etcd's hook off a Machine that is being deleted, so that it is drained and terminated although no
replacement votes in etcd. It cannot be taken back.

The command first says what etcd would have left, asks for the Machine's name, and then sends one patch. Holdfast records who
sent it and why, and takes the latch off a moment later. If etcd would lose quorum, the command sends nothing and says
how to override that. If that is not known, the latch stays until it is known: the Machine is not terminated.

It is for a Machine whose replacement cannot come. A live Machine is not released: delete it first.`,
		Example: `  kubectl holdfast release master-0 --reason 'the host burnt down, ticket 4711'

  # What would happen, by the cluster's own answer
  kubectl holdfast release master-0 --reason test --dry-run`,
		Args: oneMachine,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.reason, "reason", "", "why it must go without a replacement; required")
	f.StringVar(&o.confirm, "confirm", "", "the Machine's name, so that it is not asked for")
	f.BoolVar(&o.dryRun, "dry-run", false, "send the patch as a trial: the server judges it and changes nothing")
	return cmd
}

func (o *releaseOptions) run(ctx context.Context, t terminal, name string) error {
	given := o.reason
	switch o.reason = quorum.Reason(strings.Join(strings.Fields(o.reason), " ")); {
	case o.reason == "" && given != "":
		return cli.Usage("--reason is %q, a placeholder: say why Machine %s must go without a replacement", given, name)
	case o.reason == "":
		return cli.Usage("--reason is missing: say why Machine %s must go without a replacement", name)
	case len(o.reason) > longest || !utf8.ValidString(o.reason):
		return cli.Usage("--reason is longer than %d bytes or no text", longest)
	case o.confirm != "" && o.confirm != name:
		return cli.Usage("--confirm is %q, and the Machine is %q", o.confirm, name)
	}
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	// The Machine first: the view is then newer than what the patch is based on, and a change in between
	// fails the patch.
	m, err := c.machine(ctx, name)
	if err != nil {
		return err
	}
	v, err := c.look(ctx)
	if err != nil {
		return err
	}
	seen, err := v.machine(name)
	if err != nil {
		return err
	}
	if err := releasable(v, seen); err != nil {
		return err
	}
	d := v.release(seen)
	fmt.Fprintf(t.out, "Machine %s %s\n", name, plain(v.standing(seen)))
	indented(t.out, v.hosts(seen)...)
	if v.source != "" {
		indented(t.out, v.source)
	}
	v.verdict(t.out, seen, "released", &d)
	fmt.Fprintln(t.out)
	switch {
	case !refused(&d):
	case seen.Latch != quorum.EntryOurs && v.unguarded():
		return fmt.Errorf("Machine %s is not released, and nothing was sent: no latch would hold it, and no override counts while the guard is %s", name, v.guard)
	case seen.Latch != quorum.EntryOurs: // a trial passes while Holdfast is down
		return fmt.Errorf("Machine %s is not released, and nothing was sent: no latch would hold it; lift rule escape-hatch first, as said above", name)
	default:
		// The default flags say so. Whom --escape-hatch-users, --automation-users and --custodians name, the server knows.
		if err := o.patch(ctx, c, m.DeepCopy(), client.DryRunAll); err != nil {
			return fmt.Errorf("Machine %s is not released, and nothing was changed; a trial on the server: %w", name, err)
		}
		fmt.Fprintf(t.out, "That goes by Holdfast's default flags. A trial on the server says that you may: this Holdfast's flags name you.\n\n")
	}
	if v.stays(seen) {
		return fmt.Errorf("Machine %s is not released, and nothing was sent: its Node would be drained, and the Machine would stay, because etcd cannot do without it. Have it replaced: kubectl holdfast replace %[1]s. Only if etcd may stop: lift rule escape-hatch first, as kubectl holdfast explain %[1]s says", name)
	}
	if o.dryRun {
		if err := o.patch(ctx, c, m, client.DryRunAll); err != nil {
			return err
		}
		fmt.Fprintf(t.out, "A trial: the hook of Machine %s would be off; nothing was changed.\n", name)
		return nil
	}
	stops := v.Ring.Known && v.join.Voter(seen) != nil && v.join.StopsWithout(seen)
	if o.confirm == "" {
		question := "This cannot be taken back. To release Machine " + name + ", type its name: "
		if stops {
			question = "ETCD STOPS by this, and the API server with it. " + question
		}
		if err := ask(ctx, t, name, question, "--confirm "+name); err != nil {
			return err
		}
	}
	said, err := c.warnings.of(func() error { return o.patch(ctx, c, m) })
	if err != nil {
		return err
	}
	then, next := "Holdfast takes its latch off once etcd can do without it.", "To have a replacement, also once it is gone: kubectl holdfast replace "+name
	switch {
	case seen.Latch != quorum.EntryOurs:
		then = "No latch holds it, so it is terminated then."
	case v.reports != admission.Enforce:
		then = fmt.Sprintf("Nothing takes its latch off: Holdfast runs with --enforcement=%s.", v.reports)
	case stops:
		then, next = "It is terminated now, and etcd stops.", "What to do then: "+runbook
	}
	fmt.Fprintf(t.out, "The hook of Machine %s is off for good, and it is drained. %s Follow it: kubectl holdfast explain %s. %s\n", name, then, name, next)
	if v.reports != admission.Audit && !slices.ContainsFunc(said, func(text string) bool { return strings.HasPrefix(text, "Holdfast (") }) {
		fmt.Fprintf(t.out, "Holdfast itself did not answer: the API server's policies let the request pass, and it is in none of Holdfast's records: note who did it, when and why. Nothing takes the latch off while Holdfast is down: kubectl holdfast check\n")
	}
	return nil
}

// releasable says why there is nothing to release.
func releasable(v *view, m *quorum.Machine) error {
	switch {
	case m.Mirrored:
		return fmt.Errorf("Machine %s is mirrored from another API, which Holdfast leaves alone; release it there", m.Name)
	case m.Hook == quorum.EntryAbsent && m.Latch != quorum.EntryOurs:
		return fmt.Errorf("Machine %s has neither hook nor latch: nothing of etcd's holds it", m.Name)
	case m.Hook == quorum.EntryAbsent && m.Deleting():
		if v.unguarded() {
			return fmt.Errorf("the hook of Machine %s is off already, and Holdfast does not take the latch off now, because the guard is %s. Have it in force again: kubectl holdfast check. Or take the latch off by hand: kubectl holdfast off --policies says how", m.Name, v.guard)
		}
		return fmt.Errorf("the hook of Machine %s is off already, and Holdfast takes the latch off once etcd can do without the Machine; what it waits for: kubectl holdfast explain %s", m.Name, m.Name)
	case !m.Deleting():
		return fmt.Errorf("Machine %s is live, and only one that is being deleted is released; delete it first: kubectl -n %s delete machine.machine.openshift.io %s", m.Name, v.namespace, m.Name)
	}
	return nil
}

// patch takes the hook off, in one patch that fails if what Holdfast decides by changed on the Machine since it was read, and looks
// whether it stays off.
func (o *releaseOptions) patch(ctx context.Context, c *cluster, m *machinev1beta1.Machine, options ...client.PatchOption) error {
	before, name := machineapi.Machine(m), m.Name
	changed := fmt.Errorf("Machine %s changed meanwhile, and nothing was done; look again and repeat the command", name)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		on := m.DeepCopy()
		machineapi.Release(m, true, false) // the latch is Holdfast's to take off
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, audit.ReleaseReasonAnnotation, o.reason)
		err := c.Patch(ctx, m, client.MergeFromWithOptions(on, client.MergeFromWithOptimisticLock{}), append(options, fieldManager)...)
		if !apierrors.IsConflict(err) {
			return err
		}
		// A kubelet or a controller may have written its status.
		now, failed := c.machine(ctx, name)
		if failed != nil || !reflect.DeepEqual(machineapi.Machine(now), before) {
			return changed
		}
		now.DeepCopyInto(m)
		return err
	})
	switch {
	case apierrors.IsConflict(err), errors.Is(err, changed):
		return changed
	case apierrors.IsNotFound(err):
		return fmt.Errorf("Machine %s is gone already", name)
	case err != nil:
		return fmt.Errorf("release Machine %s: %s", name, serverMessage(err))
	}
	if now := machineapi.Machine(m); now.Hook != quorum.EntryAbsent {
		return fmt.Errorf("Machine %s still has its hook: it was put back; the warnings say why", m.Name)
	}
	return nil
}
