package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/cli"
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
		Long: `Say whether the guard is in force: whether the registrations of webhooks and policies are correct, whether
replicas of Holdfast are ready and one is elected, whether each control-plane Machine is protected, and whether the
API server reaches Holdfast now. For the last it tries to delete a Machine in a dry run, which deletes nothing.

The exit status is 0 if the guard is in force, and 1 if it is not or if that is not known.`,
		Example: `  kubectl holdfast check

  # After an installation or an upgrade, in a script
  kubectl holdfast check --wait --timeout 5m`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), t) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.wait, "wait", false, "wait until the guard is in force")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait")
	return cmd
}

func (o *checkOptions) run(ctx context.Context, t terminal) error {
	if o.timeout <= 0 {
		return cli.Usage("--timeout must be longer than 0")
	}
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	c.warnings.out = io.Discard // the last line says what the trial was answered
	limit := o.timeout
	if o.wait { // a round that the deadline cut short would say nothing
		limit += 20 * time.Second
	}
	rounds, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var found checks
	printed, after := "", ""
	if err := wait.PollUntilContextTimeout(ctx, 2*time.Second, o.timeout, true, func(context.Context) (bool, error) {
		found = c.tried(rounds)
		verdict := found.verdict()
		if !o.wait || verdict == "" {
			return true, nil
		}
		if verdict != printed {
			printed = verdict
			fmt.Fprintf(t.out, "%s  %s\n", t.now().UTC().Format("15:04:05"), plain(verdict))
		}
		return false, nil
	}); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		after = " after " + o.timeout.String()
	}
	found.print(t.out)
	return found.failure(after)
}

// wrong is why something that the guard needs is not so. Another error is why that is not known.
type wrong struct{ error }

func (w wrong) Unwrap() error { return w.error }

func isWrong(format string, args ...any) error { return wrong{fmt.Errorf(format, args...)} }

// check is one thing that the guard needs, and what was found.
type check struct {
	what string
	look func(context.Context) (said string, err error)

	said string
	err  error
}

type checks []check

// notInForce begins a verdict that says what is wrong.
const notInForce = "NOT in force: "

// verdict is what is wrong first, else what is not known first; "" if all is so.
func (c checks) verdict() string {
	unknown := ""
	for _, one := range c {
		switch {
		case errors.As(one.err, new(wrong)):
			return notInForce + one.what + ": " + oneLine(one.err)
		case one.err != nil && unknown == "":
			unknown = "not known: " + one.what + ": " + oneLine(one.err)
		}
	}
	return unknown
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
		case errors.As(one.err, new(wrong)):
			mark, text = "WRONG", oneLine(one.err)
		case one.err != nil:
			mark, text = "?", "not known: "+oneLine(one.err)
		}
		fmt.Fprintf(out, "%-6s%-14s %s\n", mark, one.what, plain(text))
	}
	if c.verdict() == "" {
		fmt.Fprintln(out, "\nThe guard is in force.")
	}
}

// seen are the checks that read little and try nothing.
func (c *cluster) seen(ctx context.Context) checks {
	return checks{{what: "replicas", look: c.checkReplicas}, {what: "registrations", look: c.checkRegistrations}, {what: "policies", look: c.checkPolicies}}.run(ctx)
}

// tried are all checks.
func (c *cluster) tried(ctx context.Context) checks {
	return append(c.seen(ctx), checks{{what: "elected", look: c.checkElected}, {what: "Machines", look: c.checkMachines}, {what: "reached", look: c.checkReached}}.run(ctx)...)
}

func (c checks) run(ctx context.Context) checks {
	var work sync.WaitGroup
	for i := range c {
		work.Go(func() { c[i].said, c[i].err = c[i].look(ctx) })
	}
	work.Wait()
	return c
}

// etcdOperatorSays is what cluster-etcd-operator says is wrong with itself, "" for nothing or where that cannot be read.
func (c *cluster) etcdOperatorSays(ctx context.Context) string {
	var o configv1.ClusterOperator
	if err := c.Get(ctx, client.ObjectKey{Name: "etcd"}, &o); err != nil {
		return ""
	}
	for _, cond := range o.Status.Conditions {
		bad := cond.Type == configv1.OperatorDegraded && cond.Status == configv1.ConditionTrue || cond.Type == configv1.OperatorAvailable && cond.Status == configv1.ConditionFalse
		if bad {
			return fmt.Sprintf("ClusterOperator etcd is %s=%s since %s: %s", cond.Type, cond.Status, at(cond.LastTransitionTime.Time), oneLine(errors.New(cond.Message)))
		}
	}
	return ""
}

// enforcement is what becomes of Holdfast's verdicts, by its policies' bindings.
func (c *cluster) enforcement(ctx context.Context) (admission.Enforcement, error) {
	var b admissionregistrationv1.ValidatingAdmissionPolicyBinding
	if err := c.Get(ctx, client.ObjectKey{Name: registrations.MachinePolicy}, &b); err != nil {
		return 0, fmt.Errorf("read ValidatingAdmissionPolicyBinding %s: %w", registrations.MachinePolicy, err)
	}
	return registrations.EnforcementOf(&b), nil
}

func (c *cluster) checkRegistrations(ctx context.Context) (string, error) {
	enforcement, _ := c.enforcement(ctx) // checkPolicies says what is wrong with it
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	for _, o := range []client.Object{&mutating, &validating} {
		kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
		switch err := c.Get(ctx, client.ObjectKey{Name: registrations.Name}, o); {
		case apierrors.IsNotFound(err):
			return "", isWrong("%s %s is missing: the API server asks Holdfast nothing. Is Holdfast running? kubectl -n %s get pods", kind, registrations.Name, c.holdfast)
		case err != nil:
			return "", fmt.Errorf("read %s %s: %w", kind, registrations.Name, err)
		}
	}
	options := registrations.Options{MachineNamespace: c.namespace, Enforcement: enforcement}
	mode, err := c.modeOf(ctx, c.readRingReport(ctx))
	if err != nil {
		return "", err
	}
	if mode == quorum.ModeFull {
		options.EtcdNamespace = etcdNamespace
	}
	there, want := webhooksOf(&mutating, &validating), webhooksOf(registrations.Registrations(options))
	var until time.Time
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w, found := there[name]
		wanted, ends := want[name], caEnds(w.ClientConfig.CABundle)
		switch changed := narrowed(&w, &wanted); {
		case !found:
			return "", isWrong("webhook %s is missing; Holdfast puts it back if it is running", name)
		case ends.IsZero():
			return "", isWrong("the caBundle of webhook %s holds no certificate, so the API server cannot call it", name)
		case !c.clock.Now().Before(ends):
			return "", isWrong("the CA in the caBundle of webhook %s ended on %s, so the API server cannot call it", name, ends.UTC().Format(time.DateOnly))
		case changed != "":
			return "", isWrong("the API server calls webhook %s for other requests than this plugin expects: %s. Somebody changed it, and Holdfast puts it back if it is running; or Holdfast is of another version than the plugin", name, changed)
		case *wanted.FailurePolicy == admissionregistrationv1.Fail && ptr.Deref(w.FailurePolicy, "") != admissionregistrationv1.Fail:
			return "", isWrong("webhook %s has failurePolicy %s: what it guards passes while Holdfast is down. It becomes Fail some seconds after Holdfast's own call has come back", name, ptr.Deref(w.FailurePolicy, ""))
		}
		until = ends
	}
	closed := "and what must not be missed fails closed"
	if enforcement != admission.Enforce {
		closed = "and all fail open"
	}
	return "the webhooks are registered, " + closed + "; their CA ends on " + until.UTC().Format(time.DateOnly), nil
}

func (c *cluster) checkPolicies(ctx context.Context) (string, error) {
	e, err := c.enforcement(ctx)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	for _, object := range registrations.Policies(registrations.Options{MachineNamespace: c.namespace, Enforcement: e, Identities: identities()}) {
		want := object.(client.Object)
		got := want.DeepCopyObject().(client.Object)
		what := fmt.Sprintf("%s %s", want.GetObjectKind().GroupVersionKind().Kind, want.GetName())
		switch err := c.Get(ctx, client.ObjectKeyFromObject(want), got); {
		case apierrors.IsNotFound(err):
			return "", isWrong("%s is missing; Holdfast makes it anew if it is running", what)
		case err != nil:
			return "", fmt.Errorf("read %s: %w", what, err)
		case weakened(got, want):
			return "", isWrong("%s is not as this plugin expects it. Somebody changed it, and Holdfast puts it back if it is running; or Holdfast is of another version than the plugin", what)
		}
	}
	if e != admission.Enforce {
		return "", isWrong("Holdfast runs with --enforcement=%s: it records what it would refuse or repair, and lets it pass", e)
	}
	return "the admission policies are installed and enforced (--enforcement=enforce)", nil
}

func (c *cluster) checkReplicas(ctx context.Context) (string, error) {
	var deployments appsv1.DeploymentList
	if err := c.List(ctx, &deployments, client.InNamespace(c.holdfast), client.MatchingLabels{"app.kubernetes.io/name": "holdfast"}); err != nil {
		return "", fmt.Errorf("list Deployments in namespace %s: %w", c.holdfast, err)
	}
	if len(deployments.Items) == 0 {
		if heard := c.readRingReport(ctx); heard.quiet {
			return "", isWrong("there is no Deployment of Holdfast in namespace %s, and %s. To install it again: kubectl apply -k, as at the installation. If it is in another namespace: --holdfast-namespace", c.holdfast, heard.why)
		}
		return fmt.Sprintf("no Deployment of Holdfast in namespace %s: it runs elsewhere", c.holdfast), nil
	}
	d := &deployments.Items[0]
	wanted, image := ptr.Deref(d.Spec.Replicas, 1), ""
	for i := range d.Spec.Template.Spec.Containers {
		image = d.Spec.Template.Spec.Containers[i].Image
	}
	switch ready := d.Status.ReadyReplicas; {
	case wanted == 0:
		return "", isWrong("Holdfast is switched off. To switch it on: kubectl -n %s scale deployment %s --replicas 2", c.holdfast, d.Name)
	case ready == 0:
		return "", isWrong("0 of %d ready, so deletions are not counted; what is held stays held: kubectl -n %s describe pods", wanted, c.holdfast)
	case ready < wanted:
		return fmt.Sprintf("%d of %d ready, which is enough to guard. Why not all: kubectl -n %s describe pods", ready, wanted, c.holdfast), nil
	}
	return fmt.Sprintf("%d of %d ready, of image %s; this plugin is kubectl-holdfast %s", d.Status.ReadyReplicas, wanted, image, cli.Version()), nil
}

func (c *cluster) checkElected(ctx context.Context) (string, error) {
	heard := c.readRingReport(ctx)
	if heard.why != "" {
		return "", isWrong("%s. %s", heard.why, heard.mend)
	}
	if ring := &heard.ring.Snapshot.Ring; !ring.Known {
		return "", isWrong("the elected replica gets no answer from etcd: %s", ring.Why)
	}
	return fmt.Sprintf("%s leads, and reported on etcd %s ago", orNobody(heard.ring.By), ago(c.clock.Since(heard.ring.Snapshot.Now))), nil
}

func (c *cluster) checkMachines(ctx context.Context) (string, error) {
	v, err := c.look(ctx)
	if err != nil {
		return "", err
	}
	bare := v.bare(func(m *quorum.Machine) bool { // one that failed before it hosted anything gets no hook
		is, _ := v.join.Hosting(m)
		return m.Phase != machinev1beta1.PhaseFailed || is != quorum.HostingNothing
	})
	switch {
	case len(v.Machines) == 0:
		return "", isWrong("there is no control-plane Machine in namespace %s", c.namespace)
	case len(bare) > 0:
		return "", isWrong("without hook, latch or finalizer: %s. kubectl holdfast explain says why", strings.Join(bare, ", "))
	}
	said := fmt.Sprintf("all %d have hook, latch and finalizer, are being deleted, or have failed and host nothing", len(v.Machines))
	for i := range v.Machines {
		if m := &v.Machines[i]; m.Deleting() && m.Hook == quorum.EntryOurs && m.Latch != quorum.EntryOurs && v.join.Voter(m) != nil {
			said += fmt.Sprintf("; %s has no latch, and its hook alone holds it", m.Name)
		}
	}
	return said, nil
}

// checkReached tries to delete a Machine, as the person who asks, in a dry run: whatever Holdfast answers, it was reached.
func (c *cluster) checkReached(ctx context.Context) (string, error) {
	machines, err := listMachines(ctx, c.Client, c.namespace)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(machines, func(m machinev1beta1.Machine) bool { // of one that hosts nothing and has no hook it says nothing
		seen := machineapi.Machine(&m)
		return !seen.Deleting() && seen.ControlPlane() && seen.Hook == quorum.EntryOurs
	})
	if at < 0 {
		return "", errors.New("there is no live control-plane Machine with etcd's hook to try it with")
	}
	m := &machines[at]
	said, err := c.warnings.of(func() error { return c.Delete(ctx, m.DeepCopy(), client.DryRunAll) })
	answers := func(text string) bool {
		return slices.ContainsFunc(quorum.Rules[:], func(rule quorum.Rule) bool { return strings.Contains(text, "("+string(rule)+")") })
	}
	switch {
	case err != nil && answers(err.Error()):
		return fmt.Sprintf("Holdfast refused the trial deletion of %s, as it must now: %s", m.Name, strings.Join(strings.Fields(serverMessage(err)), " ")), nil
	case apierrors.IsForbidden(err):
		return "", errors.New("you may not delete Machines, so Holdfast was not asked. Ask somebody who may")
	case err != nil:
		return "", isWrong("the trial deletion of %s failed: %w", m.Name, err)
	case slices.ContainsFunc(said, answers):
		return fmt.Sprintf("Holdfast answered the trial deletion of %s: it would be held", m.Name), nil
	}
	if e, err := c.enforcement(ctx); err == nil && e == admission.Audit {
		return "", errors.New("with --enforcement=audit Holdfast answers nothing that a requester sees; metric holdfast_registration_reached says whether it is asked")
	}
	return "", isWrong("the trial deletion of %s passed without a word of Holdfast's: the API server does not reach it", m.Name)
}
