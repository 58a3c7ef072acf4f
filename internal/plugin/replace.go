package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// replacesLabel on a Machine is the UID of the Machine that it was made to replace.
const replacesLabel = "holdfast.dev/replaces"

type replaceOptions struct {
	*clusterFlags
	instanceType, name, confirm string
	patch                       string
	dryRun                      bool
	yes                         bool
	timeout                     time.Duration
}

func replaceCommand(t terminal, c *clusterFlags) *cobra.Command {
	o := replaceOptions{clusterFlags: c}
	cmd := &cobra.Command{
		Use:   "replace MACHINE",
		Short: "Replace a control-plane Machine, for example with another instance type",
		Long: `Replace a control-plane Machine: create a copy of it, under a new name and with what --instance-type and --patch change in its
providerSpec, wait until the copy is Running, delete the old one, and follow until that is gone and the copy's etcd member
votes. Holdfast holds the old Machine until then. If the copy fails, the old Machine stays as it was.

Before anything is created it asks the server, by a trial, whether the old Machine could be deleted now, and then you. It may be
interrupted at any time: the same command goes on where it was, with the copy that has label ` + replacesLabel + `.

Where the Machine is gone already and etcd lacks a voter, it asks, also with --yes but not with --confirm, and creates a copy of another one.

A Machine that a ControlPlaneMachineSet keeps is replaced by the set: the command deletes the Machine, the set creates another, and the
command follows. --instance-type and --patch then change the set's template, so that all its Machines are replaced, one after the other; the
command tries the change first, and asks.`,
		Example: `  kubectl holdfast replace master-0 --instance-type m5.2xlarge

  # See the manifest first
  kubectl holdfast replace master-0 --dry-run --patch '[{op: replace, path: /rootVolume/size, value: 200}]'

  # A set keeps the Machines: resize all of them, without a question
  kubectl holdfast replace master-0 --instance-type m5.2xlarge --yes

  # The same again, to make a host anew
  kubectl holdfast replace master-0 --name master-3

  # One Machine after the other, in a script: exit status 0 means that the new member votes
  for name in master-0 master-1 master-2; do
    kubectl holdfast replace $name --instance-type m5.2xlarge --yes || break
  done`,
		Args: oneMachine,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.instanceType, "instance-type", "", "the new Machine's instance type: instanceType, vmSize, machineType or flavor of its providerSpec, whichever the old one has")
	f.StringVar(&o.patch, "patch", "", "what else to change in spec.providerSpec.value: a JSON patch, as for kubectl patch --type=json")
	f.StringVar(&o.name, "name", "", "the new Machine's name (default the old one's with other five characters before its index)")
	f.StringVar(&o.confirm, "confirm", "", "the name of a Machine that is gone already, so that it is not asked for")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the new Machine's manifest and change nothing; a warning says if the old one could not be deleted now")
	f.BoolVarP(&o.yes, "yes", "y", false, "delete the Machine, or change the template of its ControlPlaneMachineSet, without a question")
	f.DurationVar(&o.timeout, "timeout", time.Hour, "how long to follow")
	return cmd
}

func (o *replaceOptions) run(ctx context.Context, t terminal, name string) error {
	if o.timeout <= 0 {
		return cli.Usage("--timeout must be longer than 0")
	}
	c, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	old, err := c.machine(ctx, name)
	if errors.Is(err, errGone) {
		return o.anew(ctx, t, c, name, err)
	}
	if err != nil {
		return err
	}
	owner := metav1.GetControllerOf(old)
	if keeps(owner) {
		return o.inSet(ctx, t, c, old)
	}
	if owner != nil {
		return fmt.Errorf("Machine %s is controlled by %s %s, which may make a replacement of its own. Either have that do it, or take that owner reference off the Machine and try again",
			name, owner.Kind, owner.Name)
	}
	next, err := o.manifest(old)
	if err != nil {
		return err
	}
	r := &replacing{cluster: c, t: t, old: old, yes: o.yes}
	if o.dryRun {
		if err := r.trial(ctx); err != nil {
			fmt.Fprintln(t.err, "Warning: "+err.Error())
		}
		return printData(t.out, "yaml", next)
	}
	return o.inTime(ctx, name, func(ctx context.Context) error { return r.run(ctx, next) })
}

// inTime does something for as long as --timeout allows.
func (o *replaceOptions) inTime(ctx context.Context, name string, do func(context.Context) error) error {
	deadline := time.Now().Add(o.timeout)
	within, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := do(within)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.New("interrupted; nothing is lost: the same command goes on")
	case !time.Now().Before(deadline): // the client's rate limiter may say so before the context ends
		return fmt.Errorf("Machine %s is not replaced after %s; nothing is lost: the same command goes on", name, o.timeout)
	}
	return err
}

// anew creates a Machine where the one to replace is gone already, and etcd has fewer voters than are wanted: a copy of another one. gone is the error
// where that is not so.
func (o *replaceOptions) anew(ctx context.Context, t terminal, c *cluster, name string, gone error) error {
	v, err := c.look(ctx)
	if err != nil {
		return err
	}
	if !v.Ring.Known {
		return gone
	}
	var like *quorum.Machine
	for i := range v.Machines {
		switch m := &v.Machines[i]; {
		case m.Deleting() || m.Mirrored:
		case m.Controller() != nil: // its owner sees to it
			return gone
		case v.join.Voter(m) == nil:
			return fmt.Errorf("there is no Machine %s, and Machine %s hosts no voter yet, so no other is created beside it: kubectl holdfast explain %s", name, m.Name, m.Name)
		case like == nil:
			like = m
		}
	}
	if like == nil || v.staying() >= v.Desired {
		return gone
	}
	copied, err := c.machine(ctx, like.Name)
	if err != nil {
		return err
	}
	copied.Name, copied.UID = name, types.UID(name)
	next, err := o.manifest(copied)
	if err != nil {
		return err
	}
	delete(next.Labels, replacesLabel)
	if o.dryRun {
		return printData(t.out, "yaml", next)
	}
	// Nothing is left that says whether there ever was a Machine of that name, so --yes is no answer.
	if o.confirm != "" && o.confirm != name {
		return cli.Usage("--confirm is %q, and the Machine is %q", o.confirm, name)
	}
	what := fmt.Sprintf("There is no Machine %s, and etcd has %d healthy voters whose Machines stay, of %d wanted.", name, v.staying(), v.Desired)
	if o.confirm == "" {
		question := fmt.Sprintf("%s Machine %s will be created, a copy of %s, in the same failure domain.\nTo go ahead, type the name of the Machine that is gone: ", what, next.Name, like.Name)
		if err := ask(ctx, t, name, question, "--confirm "+name); err != nil {
			return err
		}
	}
	if err := c.Create(ctx, next, fieldManager); err != nil {
		return fmt.Errorf("create Machine %s: %s", next.Name, serverMessage(err))
	}
	fmt.Fprintf(t.out, "Machine %s is created, a copy of %s. Follow it: kubectl holdfast status --watch\n", next.Name, like.Name)
	return nil
}
