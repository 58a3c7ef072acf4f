package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/custodian"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// operator is who moves etcd's members and keeps the hooks in guard mode.
const operator = "cluster-etcd-operator"

// guardMode shows the same attack on two control planes: without Holdfast the first is lost, with Holdfast the second is not.
func guardMode(ctx context.Context, n *narrator, dir string) error {
	n.line(n.paint(bold, "Holdfast in guard mode, beside cluster-etcd-operator: the same attack twice, without Holdfast and with it"))
	n.line("etcd, kube-apiserver, the Machine API controllers and Holdfast start on this computer, as they are. A program of this project")
	n.line("stands in for cluster-etcd-operator: it puts on and releases the hook, and moves etcd's members. All takes a minute or two.")
	for _, act := range []struct {
		dir  string
		play func(context.Context, *demo) error
	}{
		{"without", without},
		{"with", with},
	} {
		n.line("")
		if err := beside(ctx, n, filepath.Join(dir, act.dir), act.play); err != nil {
			return err
		}
	}
	return nil
}

// beside plays an act on a control plane with that operator.
func beside(ctx context.Context, n *narrator, dir string, play func(context.Context, *demo) error) (err error) {
	d, end, err := begin(ctx, n, sandbox.Options{Dir: dir, Replicas: 3, Mode: "guard", WithoutHoldfast: true, HoldfastReplicas: 2}, operator)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	// It has a client of its own, as the real one.
	etcd, err := d.sandbox.EtcdClient(d.sandbox.Endpoints()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	o, err := custodian.New(d.sandbox.Config(sandbox.EtcdOperator), etcd, custodian.Options{Desired: 3})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() { _ = o.Run(ctx, time.Second) }) // what it cannot do shows in the story
	return play(ctx, d)
}

// without is the first act, chapters 1 and 2.
func without(ctx context.Context, d *demo) error {
	d.chapter(1, "Without Holdfast: cluster-etcd-operator's hook is all that holds a deleted Machine", "Three voters: etcd can lose one.")
	s, err := d.follow(ctx, time.Minute, "hooks on all Machines", time.Now(), func(s sight) bool {
		return len(s.machines) == 3 && s.voters() == 3 && !slices.ContainsFunc(s.machines, func(m quorum.Machine) bool { return m.Hook != quorum.EntryOurs })
	})
	if err != nil {
		return err
	}
	d.table(s)
	files, err := d.bothInGit(ctx)
	if err != nil {
		return err
	}
	d.chapter(2, "Two Machines are deleted, and a GitOps tool writes them as they stand in Git: without hooks",
		"The API server lets both deletions in, and the operator puts no hook on a Machine that is being deleted.")
	for _, name := range [...]string{leaving, second} {
		if _, err := d.run(ctx, sandbox.Alice, "delete", "machine", name, "--wait=false"); err != nil {
			return fmt.Errorf("delete Machine %s: %w", name, err)
		}
	}
	from := time.Now()
	for _, file := range files {
		if _, err := d.run(ctx, sandbox.GitOps, "replace", "-f", file); err != nil {
			return fmt.Errorf("the GitOps tool: %w", err)
		}
	}
	if err := d.lost(ctx, from); err != nil {
		return err
	}
	if _, err := d.run(ctx, sandbox.Alice, "get", "machines", "--request-timeout=5s"); err == nil {
		return errors.New("the API server answers, though etcd has no quorum")
	}
	d.line("")
	d.line(d.paint(red, "   The control plane is lost: what is left is a restore from a backup."))
	return nil
}

// lost follows until two of the three hosts are terminated and etcd does not answer.
func (d *demo) lost(ctx context.Context, from time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	before := d.sandbox.Hosts()
	all := len(before)
	for {
		now := d.sandbox.Hosts()
		for _, was := range before {
			if !slices.ContainsFunc(now, func(h sandbox.Host) bool { return h.Name == was.Name }) {
				d.event(from, "Machine %s is drained, and its host terminated, with the etcd member on it", was.Name)
			}
		}
		before = now
		if len(now) < quorum.Size(all) {
			if err := d.linearizable(ctx); err != nil {
				d.event(from, "etcd has no quorum: %d of %d members is left, and a read ends with: %v", len(now), all, err)
				return nil
			}
		}
		d.wait("both Machines to go")
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d hosts are there still: %w", len(now), all, ctx.Err())
		case err := <-d.sandbox.Failed():
			return err
		case <-tick.C:
		}
	}
}

// linearizable reads from etcd what needs a quorum.
func (d *demo) linearizable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := d.etcd.Get(ctx, "any", clientv3.WithCountOnly())
	return err
}

// with is the second act, chapters 3 to 7.
func with(ctx context.Context, d *demo) error {
	return d.proven(ctx, "the same attack took no host, one Machine was replaced, and quorum never shook", func(ctx context.Context) error {
		d.chapter(3, "Another control plane, with Holdfast in guard mode", "Where the operator has put its hook, Holdfast puts a latch beside it: the hook that only Holdfast takes off.")
		from := time.Now()
		if err := d.sandbox.StartHoldfast(ctx); err != nil {
			return err
		}
		s, err := d.follow(ctx, time.Minute, "hook and latch on all Machines", from, func(s sight) bool {
			return len(s.machines) == 3 && s.voters() == 3 && !slices.ContainsFunc(s.machines, func(m quorum.Machine) bool { return !m.Protected() })
		})
		if err != nil {
			return err
		}
		d.table(s)
		return nil
	}, func(ctx context.Context) error {
		files, err := d.bothInGit(ctx)
		if err != nil {
			return err
		}
		if err := d.remove(ctx, 4); err != nil {
			return err
		}
		d.chapter(5, "The GitOps tool writes both as they stand in Git", "The hooks stay, the tool gets no error, and the Warning says why.")
		// The first is being deleted, the second is not.
		if err := errors.Join(d.synced(ctx, files[0], quorum.RuleAutomationRelease), d.synced(ctx, files[1], quorum.RuleKeepHook)); err != nil {
			return err
		}
		return d.kept(ctx, leaving, second)
	}, func(ctx context.Context) error {
		return d.replace(ctx, 6, "Its Node comes up, cluster-etcd-operator adds a learner there, promotes it, removes the old member and releases its hook.\nThen Holdfast takes the latch off, and the old Machine goes.")
	})
}

// bothInGit are the files of both Machines as they stand in Git.
func (d *demo) bothInGit(ctx context.Context) (files []string, err error) {
	for _, name := range [...]string{leaving, second} {
		file, err := d.inGit(ctx, name)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}
