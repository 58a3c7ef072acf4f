package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// sight is the control plane at a moment, as anybody can see it with kubectl and etcdctl.
type sight struct {
	machines []quorum.Machine
	types    map[string]string // instance type by Machine
	nodes    []quorum.Node
	members  []member
}

type member struct {
	name, peer string
	learner    bool
}

// look reads the control plane.
func (d *demo) look(ctx context.Context) (sight, error) {
	s := sight{types: map[string]string{}}
	var machines machinev1beta1.MachineList
	if err := d.client.List(ctx, &machines, client.InNamespace(sandbox.MachineNamespace)); err != nil {
		return s, fmt.Errorf("list Machines: %w", err)
	}
	for i := range machines.Items {
		s.machines = append(s.machines, machineapi.Machine(&machines.Items[i]))
		s.types[machines.Items[i].Name] = machines.Items[i].Labels["machine.openshift.io/instance-type"]
	}
	var nodes corev1.NodeList
	if err := d.client.List(ctx, &nodes); err != nil {
		return s, fmt.Errorf("list Nodes: %w", err)
	}
	for i := range nodes.Items {
		s.nodes = append(s.nodes, machineapi.Node(&nodes.Items[i]))
	}
	list, err := d.etcd.MemberList(ctx)
	if err != nil {
		return s, fmt.Errorf("list etcd's members: %w", err)
	}
	for _, m := range list.Members {
		s.members = append(s.members, member{m.GetName(), strings.Join(m.GetPeerURLs(), ","), m.GetIsLearner()})
	}
	return s, nil
}

func (s *sight) machine(name string) *quorum.Machine {
	i := slices.IndexFunc(s.machines, func(m quorum.Machine) bool { return m.Name == name })
	if i < 0 {
		return nil
	}
	return &s.machines[i]
}

// voters counts the voting members.
func (s *sight) voters() int {
	n := 0
	for _, m := range s.members {
		if !m.learner {
			n++
		}
	}
	return n
}

// table shows the Machines with their Nodes and members.
func (d *demo) table(s sight) {
	longest := len("MACHINE")
	for i := range s.machines {
		longest = max(longest, len(s.machines[i].Name))
	}
	row := fmt.Sprintf("%%-%ds", longest) + " %-11s %-9s %-10s %-8s %-5s %s"
	d.say(row, "MACHINE", "TYPE", "PHASE", "NODE", "ETCD", "HOOK", "LATCH")
	for _, m := range s.machines {
		node, etcd := "-", "-"
		for _, n := range s.nodes {
			if n.Name == m.NodeName {
				node = map[bool]string{true: "Ready", false: "not ready"}[n.Ready]
			}
		}
		for _, e := range s.members {
			if e.name == m.Name {
				etcd = map[bool]string{true: "learner", false: "voter"}[e.learner]
			}
		}
		d.say(row, m.Name, s.types[m.Name], m.Phase, node, etcd, mark(m.Hook), mark(m.Latch))
	}
}

func mark(e quorum.Entry) string {
	if e == quorum.EntryOurs {
		return "yes"
	}
	return "-"
}

// follow tells what changes, until done says so or the time is over.
func (d *demo) follow(ctx context.Context, within time.Duration, what string, from time.Time, done func(sight) bool) (sight, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	before, err := d.look(ctx)
	if err == nil {
		d.picture.see(time.Since(d.begun), &before)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err == nil && done(before) {
			d.wait("")
			return before, nil
		}
		d.wait(what)
		select {
		case <-ctx.Done():
			return before, fmt.Errorf("%s: not within %s (last: %w)", what, within, err)
		case err := <-d.sandbox.Failed():
			return before, err
		case <-tick.C:
		}
		var now sight
		if now, err = d.look(ctx); err == nil {
			d.tell(before, now, from)
			d.picture.see(time.Since(d.begun), &now)
			before = now
		}
	}
}

// tell writes a line for each difference of two sights.
func (d *demo) tell(before, now sight, from time.Time) {
	for _, m := range now.machines {
		was := before.machine(m.Name)
		if was == nil {
			was = &quorum.Machine{Hook: quorum.EntryAbsent, Latch: quorum.EntryAbsent}
			d.event(from, "Machine %s exists", m.Name)
		}
		if was.Phase != m.Phase && m.Phase != "" {
			d.event(from, "Machine %s is %s", m.Name, m.Phase)
		}
		switch hooked, hooks := was.Hook == quorum.EntryOurs, m.Hook == quorum.EntryOurs; {
		case hooks && !hooked:
			d.event(from, "%s put hook%s on Machine %s", d.hooks, map[bool]string{true: " and latch"}[d.hooks == holdfast && m.Latch == quorum.EntryOurs], m.Name)
			d.stamp("hooked", from)
		case hooked && !hooks:
			d.event(from, "%s released hook%s of Machine %s", d.hooks, map[bool]string{true: " and latch"}[d.hooks == holdfast], m.Name)
			d.stamp("released", from)
		}
		switch latched, latches := was.Latch == quorum.EntryOurs, m.Latch == quorum.EntryOurs; {
		case d.hooks == holdfast: // both at once
		case latches && !latched:
			d.event(from, "%s put latch and evidence on Machine %s", holdfast, m.Name)
		case latched && !latches:
			d.event(from, "%s took the latch off Machine %s", holdfast, m.Name)
		}
	}
	for _, m := range before.machines {
		if now.machine(m.Name) == nil {
			d.event(from, "Machine %s is gone, its instance terminated", m.Name)
			d.stamp("gone", from)
		}
	}
	for _, n := range now.nodes {
		if n.Ready && !slices.ContainsFunc(before.nodes, func(o quorum.Node) bool { return o.Name == n.Name && o.Ready }) {
			d.event(from, "Node %s is Ready", n.Name)
			d.stamp("node", from)
		}
	}
	for _, e := range now.members {
		i := slices.IndexFunc(before.members, func(o member) bool { return o.peer == e.peer })
		switch {
		case i < 0 && e.learner:
			d.event(from, "etcd lists a learner at %s: it gets the log, but no vote", e.peer)
			d.stamp("learner", from)
		case i < 0:
			d.event(from, "etcd lists a voter at %s", e.peer)
		case before.members[i].name == "" && e.name != "":
			d.event(from, "learner %s has started", e.name)
			d.stamp("started", from)
		case before.members[i].learner && !e.learner:
			d.event(from, "learner %s is a voter now: %d voters for a moment", e.name, now.voters())
			d.stamp("promoted", from)
		}
	}
	for _, e := range before.members {
		if !slices.ContainsFunc(now.members, func(o member) bool { return o.peer == e.peer }) {
			d.event(from, "member %s has left etcd: %d voters remain", e.name, now.voters())
			d.stamp("removed", from)
		}
	}
}
