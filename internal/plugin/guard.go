package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/internal/registrations"
)

type checkOptions struct {
	*clusterFlags
	wait    bool
	timeout time.Duration
}

func checkCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := checkOptions{clusterFlags: c}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether the guard is in force, and try it",
		Long: `Say whether the guard is in force: whether the webhooks and policies are registered as they are to be, whether
replicas of Holdfast are ready and one is elected, whether each control-plane Machine is protected, and whether the
API server reaches Holdfast now. For the last it tries to delete a Machine in a dry run, which deletes nothing.

The exit status is 0 if the guard is in force, and 1 if it is not or if that is not known.`,
		Example: `  kubectl holdfast check

  # After an installation or an upgrade, in a script
  kubectl holdfast check --wait --timeout 5m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.wait, "wait", false, "wait until the guard is in force")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait")
	return cmd
}

func (o *checkOptions) run(ctx context.Context, t terminal) error {
	if o.timeout <= 0 {
		return usage("--timeout must be longer than 0")
	}
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	defer c.close()
	c.warnings.out = io.Discard // the last line says what the trial was answered
	waited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	again := time.NewTicker(2 * time.Second)
	defer again.Stop()
	told := ""
	for {
		found := c.checks(waited)
		if !o.wait || found.inForce() {
			found.print(t.out)
			return found.failure("")
		}
		if verdict := found.verdict(); verdict != told {
			told = verdict
			fmt.Fprintf(t.out, "%s  %s\n", t.now().UTC().Format("15:04:05"), plain(verdict))
		}
		select {
		case <-waited.Done():
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			found.print(t.out)
			return found.failure(" after " + o.timeout.String())
		case <-again.C:
		}
	}
}

// check is one thing that the guard needs. It is so if neither wrong nor unknown says anything.
type check struct {
	what    string
	wrong   string // why it is not so
	unknown string // why it is not known whether it is so
	said    string // what is to be known of it
}

type checks []check

// notInForce begins a verdict that says what is wrong.
const notInForce = "NOT in force: "

// inForce says whether all is known to be so.
func (c checks) inForce() bool { return c.verdict() == "" }

// verdict is what is wrong first, else what is not known first; "" if all is so.
func (c checks) verdict() string {
	for _, one := range c {
		if one.wrong != "" {
			return notInForce + one.what + ": " + one.wrong
		}
	}
	for _, one := range c {
		if one.unknown != "" {
			return "not known: " + one.what + ": " + one.unknown
		}
	}
	return ""
}

// failure is what the command fails with, nil if the guard is in force. after is for how long was waited.
func (c checks) failure(after string) error {
	switch verdict := c.verdict(); {
	case verdict == "":
		return nil
	case strings.HasPrefix(verdict, notInForce):
		return errors.New("the guard is not in force" + after)
	}
	return errors.New("whether the guard is in force is not known" + after)
}

func (c checks) print(out io.Writer) {
	for _, one := range c {
		mark, text := "ok", one.said
		switch {
		case one.wrong != "":
			mark, text = "WRONG", one.wrong
		case one.unknown != "":
			mark, text = "?", "not known: "+one.unknown
		}
		fmt.Fprintf(out, "%-6s%-14s %s\n", mark, one.what, plain(strings.Join(strings.Fields(text), " ")))
	}
	if c.inForce() {
		fmt.Fprintln(out, "\nThe guard is in force.")
	}
}

// checks looks at all that the guard needs, and tries it.
func (c *cluster) checks(ctx context.Context) checks {
	return checks{c.checkRegistrations(ctx), c.checkPolicies(ctx), c.checkReplicas(ctx), c.checkElected(ctx), c.checkMachines(ctx), c.checkReached(ctx)}
}

// guardLine says whether the guard is in force, by what reads little and tries nothing.
func (c *cluster) guardLine(ctx context.Context) string {
	looks := [...]func(context.Context) check{c.checkRegistrations, c.checkPolicies, c.checkReplicas}
	found := make(checks, len(looks))
	var work sync.WaitGroup
	for i, look := range looks {
		work.Go(func() { found[i] = look(ctx) })
	}
	work.Wait()
	if verdict := found.verdict(); verdict != "" {
		return verdict
	}
	return "webhooks and policies are registered; kubectl holdfast check tries them"
}

// etcdOperatorSays is what cluster-etcd-operator says is wrong with itself, "" for nothing or where that cannot be read.
func (c *cluster) etcdOperatorSays(ctx context.Context) string {
	var o configv1.ClusterOperator
	if err := c.Get(ctx, client.ObjectKey{Name: "etcd"}, &o); err != nil {
		return ""
	}
	for _, cond := range o.Status.Conditions {
		if bad := cond.Type == configv1.OperatorDegraded && cond.Status == configv1.ConditionTrue || cond.Type == configv1.OperatorAvailable && cond.Status == configv1.ConditionFalse; bad {
			return fmt.Sprintf("ClusterOperator etcd is %s=%s since %s: %s", cond.Type, cond.Status, at(cond.LastTransitionTime.Time), shorten(oneLine(errors.New(cond.Message)), 300))
		}
	}
	return ""
}

func (c *cluster) checkRegistrations(ctx context.Context) check {
	out := check{what: "registrations"}
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	for _, o := range []client.Object{&mutating, &validating} {
		kind := "MutatingWebhookConfiguration"
		if o == &validating {
			kind = "ValidatingWebhookConfiguration"
		}
		switch err := c.Get(ctx, client.ObjectKey{Name: registrations.Name}, o); {
		case apierrors.IsNotFound(err):
			out.wrong = fmt.Sprintf("%s %s is missing: the API server asks Holdfast nothing. Is Holdfast running? kubectl -n %s get pods", kind, registrations.Name, c.holdfast)
			return out
		case err != nil:
			out.unknown = fmt.Sprintf("read %s %s: %s", kind, registrations.Name, oneLine(err))
			return out
		}
	}
	there, want := webhooksOf(&mutating, &validating), webhooksOf(registrations.Registrations(registrations.Options{MachineNamespace: c.namespace}))
	for _, name := range []string{registrations.RepairWebhook, registrations.ClosedWebhook, registrations.OpenWebhook, registrations.HomeWebhook} {
		w, found := there[name]
		wanted, ends := want[name], caEnds(w.ca)
		switch changed := w.narrowed(&wanted); {
		case !found:
			out.wrong = "webhook " + name + " is missing; Holdfast puts it back if it is running"
		case len(w.ca) == 0:
			out.wrong = "webhook " + name + " has no caBundle, so the API server cannot call it"
		case ends.IsZero():
			out.wrong = "the caBundle of webhook " + name + " holds no certificate, so the API server cannot call it"
		case !c.clock.Now().Before(ends):
			out.wrong = fmt.Sprintf("the CA in the caBundle of webhook %s ended on %s, so the API server cannot call it", name, ends.UTC().Format(time.DateOnly))
		case changed != "":
			out.wrong = fmt.Sprintf("the API server calls webhook %s for other requests than this plugin expects: %s. Somebody changed it, and Holdfast puts it back if it is running; or Holdfast is of another version than the plugin", name, changed)
		case wanted.policy == admissionregistrationv1.Fail && w.policy != wanted.policy:
			out.wrong = fmt.Sprintf("webhook %s has failurePolicy %s: what it guards passes while Holdfast is down. It becomes Fail some seconds after Holdfast's own call has come back", name, w.policy)
		default:
			out.said = "the webhooks are registered, and what must not be missed fails closed; their CA ends on " + ends.UTC().Format(time.DateOnly)
			continue
		}
		return out
	}
	return out
}

func (c *cluster) checkPolicies(ctx context.Context) check {
	out := check{what: "policies"}
	for _, p := range policies() {
		switch err := c.Get(ctx, client.ObjectKey{Name: p.name}, p.object()); {
		case apierrors.IsNotFound(err):
			out.wrong = p.String() + " is missing; Holdfast makes it anew if it is running"
			return out
		case err != nil:
			out.unknown = fmt.Sprintf("read %s: %s", p, oneLine(err))
			return out
		}
	}
	out.said = "the admission policies are installed"
	return out
}

func (c *cluster) checkReplicas(ctx context.Context) check {
	out := check{what: "replicas"}
	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &deployments, client.InNamespace(c.holdfast), client.MatchingLabels{"app.kubernetes.io/name": "holdfast"}); err != nil {
		out.unknown = fmt.Sprintf("list Deployments in namespace %s: %s", c.holdfast, oneLine(err))
		return out
	}
	if len(deployments.Items) == 0 {
		out.said = fmt.Sprintf("no Deployment of Holdfast in namespace %s: it runs elsewhere", c.holdfast)
		return out
	}
	d := &deployments.Items[0]
	wanted, image := ptr.Deref(d.Spec.Replicas, 1), ""
	for i := range d.Spec.Template.Spec.Containers {
		image = d.Spec.Template.Spec.Containers[i].Image
	}
	out.said = fmt.Sprintf("%d of %d ready, of image %s; this plugin is %s", d.Status.ReadyReplicas, wanted, image, version())
	if d.Status.ReadyReplicas == 0 || d.Status.ReadyReplicas < wanted {
		out.wrong = fmt.Sprintf("%d of %d ready: kubectl -n %s describe pods", d.Status.ReadyReplicas, wanted, c.holdfast)
	}
	return out
}

func (c *cluster) checkElected(ctx context.Context) check {
	out := check{what: "elected"}
	heard := c.readRingReport(ctx)
	if heard.ring == nil || heard.why != "" {
		out.wrong = heard.why + ". " + heard.mend
		return out
	}
	ring := &heard.ring.Snapshot.Ring
	out.said = fmt.Sprintf("%s leads, and told of etcd %s ago", orNobody(heard.ring.By), ago(c.clock.Since(heard.ring.Snapshot.Now)))
	if !ring.Known {
		out.wrong = "the elected replica gets no answer from etcd: " + ring.Why
	}
	return out
}

func (c *cluster) checkMachines(ctx context.Context) check {
	out := check{what: "Machines"}
	v, err := c.look(ctx)
	if err != nil {
		out.unknown = oneLine(err)
		return out
	}
	bare := v.bare(func(*quorum.Machine) bool { return true })
	switch {
	case len(v.Machines) == 0:
		out.wrong = fmt.Sprintf("there is no control-plane Machine in namespace %s", c.namespace)
	case len(bare) > 0:
		out.wrong = "without hook, latch or finalizer: " + strings.Join(bare, ", ") + ". kubectl holdfast explain says why"
	default:
		out.said = fmt.Sprintf("all %d have hook, latch and finalizer, or are being deleted", len(v.Machines))
	}
	return out
}

// checkReached tries to delete a Machine, as the person who asks, in a dry run: whatever Holdfast answers, it was reached.
func (c *cluster) checkReached(ctx context.Context) check {
	out := check{what: "reached"}
	var machines machinev1beta1.MachineList
	if err := c.List(ctx, &machines, client.InNamespace(c.namespace)); err != nil {
		out.unknown = fmt.Sprintf("list Machines in namespace %s: %s", c.namespace, oneLine(err))
		return out
	}
	at := slices.IndexFunc(machines.Items, func(m machinev1beta1.Machine) bool { // of one that hosts nothing and has no hook it says nothing
		seen := machineapi.Machine(&m)
		return !seen.Deleting() && seen.ControlPlane() && seen.Hook == quorum.EntryOurs
	})
	if at < 0 {
		out.unknown = "there is no live control-plane Machine with etcd's hook to try it with"
		return out
	}
	m := &machines.Items[at]
	said, err := c.warnings.of(func() error { return c.Delete(ctx, m.DeepCopy(), client.DryRunAll) })
	answers := func(text string) bool {
		return slices.ContainsFunc(quorum.Rules[:], func(rule quorum.Rule) bool { return strings.Contains(text, "("+string(rule)+")") })
	}
	switch {
	case err != nil && answers(err.Error()):
		out.said = fmt.Sprintf("Holdfast refused the trial deletion of %s, as it must now: %s", m.Name, saidBy(err))
	case apierrors.IsForbidden(err):
		out.unknown = "you may not delete Machines, so Holdfast was not asked. Ask somebody who may"
	case err != nil:
		out.wrong = fmt.Sprintf("the trial deletion of %s failed: %s", m.Name, oneLine(err))
	case slices.ContainsFunc(said, answers):
		out.said = fmt.Sprintf("Holdfast answered the trial deletion of %s: it would be held", m.Name)
	default:
		out.wrong = fmt.Sprintf("the trial deletion of %s passed without a word of Holdfast's: the API server does not reach it", m.Name)
	}
	return out
}
