package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/membership"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// replacesLabel on a Machine is the UID of the Machine that it was made to replace.
const replacesLabel = "holdfast.dev/replaces"

type replaceOptions struct {
	clusterFlags
	instanceType, name string
	set                []string
	dryRun             bool
	yes                bool
	timeout            time.Duration
}

func replaceCommand(t terminal) *cobra.Command {
	var o replaceOptions
	cmd := &cobra.Command{
		Use:   "replace MACHINE",
		Short: "Replace a control-plane Machine, for example with another instance type",
		Long: `Replace a control-plane Machine by the documented procedure, in one command: create a copy of it, under
a new name and with what --instance-type and --set change in its providerSpec, wait until the copy is
Running, delete the old one, and follow until that is gone. Holdfast holds the old Machine meanwhile,
until the new one votes in etcd.

It may be interrupted at any time: the same command goes on where it was. It finds the copy by its label
` + replacesLabel + `, which names the old Machine's UID; a copy that is there already is taken as
it is. If the copy fails, the old Machine stays as it was.

Before anything is created it asks the server, by a trial, whether the old Machine could be deleted now.

A Machine that a ControlPlaneMachineSet keeps is replaced by the set: the command deletes the Machine, the set creates another, and the
command follows. --instance-type and --set then change the set's template, so that all its Machines are replaced, one after the other; the
command tries the change first, and asks.`,
		Example: `  kubectl holdfast replace master-0 --instance-type m5.2xlarge

  # See the manifest first
  kubectl holdfast replace master-0 --set rootVolume.size=200 --set tags[0].value=b --dry-run

  # A set keeps the Machines: resize all of them, without a question
  kubectl holdfast replace master-0 --instance-type m5.2xlarge --yes

  # The same again: a host that is to be made anew
  kubectl holdfast replace master-0 --name master-3`,
		Args: oneMachine,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	o.bind(f)
	among(cmd, "mode", "guard", "full")
	cmd.ValidArgsFunction = o.names(t, anyMachine)
	f.StringVar(&o.instanceType, "instance-type", "", "the new Machine's instance type: instanceType, vmSize, machineType or flavor of its providerSpec, whichever the old one has")
	f.StringArrayVar(&o.set, "set", nil, "PATH=VALUE in spec.providerSpec.value, such as rootVolume.size=200; may be repeated")
	f.StringVar(&o.name, "name", "", "the new Machine's name (default the old one's with five more characters)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the new Machine's manifest and change nothing")
	f.BoolVarP(&o.yes, "yes", "y", false, "change the template of a ControlPlaneMachineSet without a question")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "how long to follow")
	return cmd
}

func (o *replaceOptions) run(ctx context.Context, t terminal, name string) error {
	if o.timeout <= 0 {
		return usage("--timeout must be longer than 0")
	}
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	defer c.close()
	old, err := c.machine(ctx, name)
	if err != nil {
		return err
	}
	owner := metav1.GetControllerOf(old)
	if keeps(owner) {
		return o.inSet(ctx, t, c, old)
	}
	if owner != nil {
		return fmt.Errorf("Machine %s is looked after by %s %s, which would make a replacement of its own; change its template instead: kubectl -n %s edit %s %s",
			name, owner.Kind, owner.Name, c.namespace, strings.ToLower(owner.Kind), owner.Name)
	}
	next, err := o.manifest(t, old)
	if err != nil {
		return err
	}
	if o.dryRun {
		return printManifest(t, next)
	}
	r := replacing{cluster: c, t: t, old: old}
	return o.inTime(ctx, name, func(ctx context.Context) error { return r.run(ctx, next) })
}

// inTime does something for as long as --timeout allows.
func (o *replaceOptions) inTime(ctx context.Context, name string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err := do(ctx)
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("Machine %s is not replaced after %s; nothing is lost: the same command goes on", name, o.timeout)
	}
	return errors.New("interrupted; nothing is lost: the same command goes on")
}

// replacing is a replacement under way.
type replacing struct {
	*cluster
	t       terminal
	old     *machinev1beta1.Machine
	told    string // the line that was printed last
	sourced bool   // where etcd's part comes from was printed
}

func (r *replacing) say(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); line != r.told {
		r.told = line
		fmt.Fprintf(r.t.out, "%s  %s\n", r.t.now().UTC().Format("15:04:05"), plain(line))
	}
}

func (r *replacing) run(ctx context.Context, next *machinev1beta1.Machine) error {
	if err := r.trial(ctx); err != nil {
		return err
	}
	next, err := r.create(ctx, next)
	if err != nil {
		return err
	}
	if r.old.DeletionTimestamp == nil {
		if err := r.running(ctx, next); err != nil {
			return err
		}
	}
	if err := r.remove(ctx); err != nil {
		return err
	}
	return r.gone(ctx, func() string { return next.Name })
}

// trial asks the server whether the old Machine could be deleted now.
func (r *replacing) trial(ctx context.Context) error {
	if r.old.DeletionTimestamp != nil {
		return nil
	}
	uid := r.old.UID
	if err := r.Delete(ctx, r.old.DeepCopy(), client.Preconditions{UID: &uid}, client.DryRunAll); err != nil {
		return fmt.Errorf("Machine %s could not be deleted now, so nothing is begun: %s", r.old.Name, saidBy(err))
	}
	return nil
}

// create makes the replacement, or finds the one that was made before.
func (r *replacing) create(ctx context.Context, next *machinev1beta1.Machine) (*machinev1beta1.Machine, error) {
	var found machinev1beta1.MachineList
	if err := r.List(ctx, &found, client.InNamespace(r.namespace), client.MatchingLabels{replacesLabel: string(r.old.UID)}); err != nil {
		return nil, fmt.Errorf("look for the replacement of Machine %s: %w", r.old.Name, err)
	}
	for i := range found.Items {
		if m := &found.Items[i]; m.DeletionTimestamp == nil {
			r.say("Machine %s is there already to replace %s; going on with it as it is.", m.Name, r.old.Name)
			return m, nil
		}
	}
	if err := r.Create(ctx, next, fieldManager); apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("Machine %s exists and was not made to replace %s; give another --name", next.Name, r.old.Name)
	} else if err != nil {
		return nil, fmt.Errorf("create Machine %s: %s", next.Name, saidBy(err))
	}
	r.say("Machine %s is created.", next.Name)
	return next, nil
}

// running waits until the replacement is: a deletion cannot be taken back, a Machine that never runs can.
func (r *replacing) running(ctx context.Context, next *machinev1beta1.Machine) error {
	return r.each(ctx, func() (bool, error) {
		m, err := r.machine(ctx, next.Name)
		if errors.Is(err, errGone) {
			return false, fmt.Errorf("Machine %s was deleted meanwhile; Machine %s is as it was", next.Name, r.old.Name)
		}
		if err != nil {
			return false, err
		}
		phase := ""
		if m.Status.Phase != nil {
			phase = *m.Status.Phase
		}
		switch phase {
		case machinev1beta1.PhaseRunning:
			r.say("Machine %s is Running.", m.Name)
			return true, nil
		case machinev1beta1.PhaseFailed:
			why := ""
			if m.Status.ErrorMessage != nil {
				why = ": " + strings.Join(strings.Fields(*m.Status.ErrorMessage), " ")
			}
			return false, fmt.Errorf("Machine %s has failed%s; Machine %s is as it was. Delete the failed one and try again: kubectl -n %s delete machine %s",
				m.Name, why, r.old.Name, r.namespace, m.Name)
		}
		r.say("Machine %s: %s", m.Name, cmp.Or(phase, "waiting for the Machine API"))
		return false, nil
	})
}

// remove deletes the old Machine, if it is still that one.
func (r *replacing) remove(ctx context.Context) error {
	if r.old.DeletionTimestamp != nil {
		return nil
	}
	uid := r.old.UID
	err := r.Delete(ctx, r.old.DeepCopy(), client.Preconditions{UID: &uid})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("Machine %s is another one by now; look again", r.old.Name)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Machine %s: %s. Its replacement stays; the same command tries again", r.old.Name, strings.TrimRight(saidBy(err), "."))
	}
	r.say("Machine %s is deleted, and held until its replacement votes.", r.old.Name)
	return nil
}

// gone follows until the old Machine is. next names the one that has replaced it, "" if that is not known.
func (r *replacing) gone(ctx context.Context, next func() string) error {
	return r.each(ctx, func() (bool, error) {
		m, err := r.machine(ctx, r.old.Name)
		if errors.Is(err, errGone) || err == nil && m.UID != r.old.UID {
			if by := next(); by != "" {
				r.say("Machine %s is gone. Machine %s has replaced it.", r.old.Name, by)
			} else {
				r.say("Machine %s is gone.", r.old.Name)
			}
			return true, nil
		}
		if err != nil {
			return false, err
		}
		v, err := r.look(ctx)
		if err != nil {
			return false, err
		}
		seen, err := v.machine(r.old.Name)
		if err != nil {
			return false, nil //nolint:nilerr // it went in between, which the next look tells
		}
		if !r.sourced && v.source != "" && !v.silent {
			r.sourced = true
			r.say("Etcd is %s.", v.source)
		}
		switch {
		case seen.Hook == quorum.EntryAbsent && seen.Latch != quorum.EntryOurs:
			r.say("Machine %s is released: it is drained and terminated.", r.old.Name)
		case !v.Ring.Known:
			r.say("Machine %s is held (etcd: %s).", r.old.Name, shorten(v.Ring.Why, 200))
		default:
			for _, one := range membership.Replacements(v.Snapshot) {
				if one.Machine == r.old.Name {
					r.say("Machine %s is held: it waits for %s.", r.old.Name, phaseWords(one.Phase))
				}
			}
		}
		return false, nil
	})
}

// each looks every second until it is done. What the API server fails to answer now and then is no
// reason to stop: while etcd's leader moves it answers late.
func (r *replacing) each(ctx context.Context, look func() (done bool, err error)) error {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	failures := 0
	for {
		done, err := look()
		switch {
		case done:
			return nil
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
		case !transient(err):
			return err
		default:
			if failures++; failures >= 30 {
				return err
			}
			r.say("Not seen, trying again: %s", shorten(err.Error(), 200))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}

// transient says whether an error is the API server's or the network's of the moment.
func transient(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return errors.As(err, new(interface{ Timeout() bool })) || errors.Is(err, context.DeadlineExceeded)
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
