package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// sight is the control plane at a moment, as anybody can see it with kubectl and etcdctl.
type sight struct {
	machines []machineSight
	facts    []fact
	members  int
	voters   int
}

type machineSight struct {
	quorum.Machine
	kind, node, etcd string // instance type; "Ready" or not; "voter", "learner" or "-"
}

// fact is one thing that is so at a moment.
type fact struct{ about, text, gone string }

// look reads the control plane.
func (d *demo) look(ctx context.Context) (*sight, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var machines machinev1beta1.MachineList
	var nodes corev1.NodeList
	if err := errors.Join(d.client.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)), d.client.List(ctx, &nodes)); err != nil {
		return nil, err
	}
	list, err := d.etcd.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list etcd's members: %w", err)
	}
	s := &sight{members: len(list.Members)}
	etcd, node := map[string]string{}, map[string]string{}
	fact := func(about, gone, format string, args ...any) {
		s.facts = append(s.facts, fact{about, fmt.Sprintf(format, args...), gone})
	}
	for i := range nodes.Items {
		n := machineapi.Node(&nodes.Items[i])
		node[n.Name] = map[bool]string{true: "Ready", false: "not ready"}[n.Ready]
		fact("Node "+n.Name, "", "Node %s is %s", n.Name, node[n.Name])
	}
	for _, m := range list.Members {
		name, at := m.GetName(), strings.Join(m.GetPeerURLs(), ",")
		switch gone := "member " + name + " has left etcd"; {
		case !m.GetIsLearner():
			s.voters++
			etcd[name] = "voter"
			fact(at, gone, "member %s is a voter", name)
		case name == "":
			fact(at, gone, "etcd lists a learner at %s: it gets the log, but no vote", at)
		default:
			etcd[name] = "learner"
			fact(at, gone, "learner %s has started", name)
		}
	}
	fact("etcd", "", "etcd has %d voters", s.voters)
	for i := range machines.Items {
		m := machineSight{machineapi.Machine(&machines.Items[i]), machines.Items[i].Labels["machine.openshift.io/instance-type"], "-", "-"}
		m.node, m.etcd = cmp.Or(node[m.NodeName], "-"), cmp.Or(etcd[m.Name], "-")
		s.machines = append(s.machines, m)
		held := "nothing holds it"
		switch hook, latch := m.Hook == quorum.EntryOurs, m.Latch == quorum.EntryOurs; {
		case hook && latch:
			held = "held by hook and latch"
		case hook:
			held = "held by the hook"
		case latch:
			held = "held by the latch"
		}
		fact("Machine "+m.Name, "Machine "+m.Name+" is gone, its instance terminated", "Machine %s is %s, %s", m.Name, cmp.Or(m.Phase, "new"), held)
	}
	return s, nil
}

// tell writes what is otherwise than at the last sight, and remembers this one.
func (d *demo) tell(s *sight) {
	if len(d.seen) > 0 {
		for _, f := range s.facts {
			if !slices.Contains(d.facts, f) {
				d.event("%s", f.text)
			}
		}
		for _, was := range d.facts {
			if was.gone != "" && !slices.ContainsFunc(s.facts, func(f fact) bool { return f.about == was.about }) {
				d.event("%s", was.gone)
			}
		}
	}
	d.facts = s.facts
	now := moment{at: time.Since(d.begun), voters: s.voters, states: map[string]string{}}
	for _, m := range s.machines {
		now.states[m.Name] = state(&m)
	}
	d.seen = append(d.seen, now)
}

// follow tells what changes, until done says so.
func (d *demo) follow(ctx context.Context, what string, done func(*sight) bool) (s *sight, err error) {
	var last error
	err = d.poll(ctx, func(ctx context.Context) bool {
		if s, last = d.look(ctx); last != nil {
			return false
		}
		d.tell(s)
		return done(s)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, errors.Join(err, last))
	}
	return s, nil
}

// poll asks until it is done, two minutes have passed, or a part of the control plane has ended by itself.
func (d *demo) poll(ctx context.Context, done func(context.Context) bool) error {
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-d.sandbox.Failed():
			return false, err
		default:
			return done(ctx), nil
		}
	})
}

// all says whether there are three Machines and as many voters, and each Machine is so.
func (s *sight) all(so func(m *machineSight) bool) bool {
	return len(s.machines) == 3 && s.voters == 3 && s.members == 3 && !slices.ContainsFunc(s.machines, func(m machineSight) bool { return !so(&m) })
}

func (s *sight) machine(name string) *machineSight {
	if i := slices.IndexFunc(s.machines, func(m machineSight) bool { return m.Name == name }); i >= 0 {
		return &s.machines[i]
	}
	return nil
}

// table shows the Machines with their Nodes and members.
func (d *demo) table(s *sight) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MACHINE\tTYPE\tPHASE\tNODE\tETCD\tHOOK\tLATCH")
	mark := map[bool]string{true: "yes", false: "-"}
	for _, m := range s.machines {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, m.kind, m.Phase, m.node, m.etcd, mark[m.Hook == quorum.EntryOurs], mark[m.Latch == quorum.EntryOurs])
	}
	_ = w.Flush() // into memory
	d.output(text.String())
}
