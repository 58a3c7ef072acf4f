package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/etcd"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// look measures, in this process, what reading the cluster for a decision takes, and its parts.
func (b *bench) look(ctx context.Context) (err error) {
	c, err := b.start(ctx, "look", sandbox.Options{Mode: "full"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.quiet(ctx); err != nil {
		return err
	}
	types := runtime.NewScheme()
	if err := errors.Join(machinev1beta1.Install(types), corev1.AddToScheme(types)); err != nil {
		return fmt.Errorf("know the types: %w", err)
	}
	config := c.Config(sandbox.Admin)
	config.QPS = -1
	api, err := client.New(config, client.Options{Scheme: types})
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	ring, err := etcd.New(etcd.Config{Endpoints: c.Endpoints(), CACert: c.EtcdFiles.CA, Cert: c.EtcdFiles.Cert, Key: c.EtcdFiles.Key})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	defer ring.Close()
	o := &observe.Observer{API: api, Etcd: ring, Namespace: sandbox.MachineNamespace, EtcdNamespace: "openshift-etcd", Mode: quorum.ModeFull, Clock: clock.RealClock{}}
	for _, part := range []struct {
		what string
		read func() error
	}{
		{"a look", func() error { _, err := o.Snapshot(ctx); return err }},
		{"of these, etcd", func() error { ring.Read(ctx); return nil }},
		{"of these, the Machines", func() error { _, err := o.Machines(ctx); return err }},
		{"of these, one ConfigMap of four", func() error { _, err := o.Ledger(ctx); return err }},
	} {
		if err := b.reads(part.what, part.read); err != nil {
			return fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return nil
}

// reads measures one reading, -requests times one after the other.
func (b *bench) reads(what string, read func() error) error {
	if err := read(); err != nil { // the first one connects
		return err
	}
	before, err := ownCPU()
	if err != nil {
		return err
	}
	took := make([]time.Duration, 0, b.requests)
	for range b.requests {
		began := time.Now()
		if err := read(); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	after, err := ownCPU()
	if err != nil {
		return err
	}
	b.report.figure("look", what+", p50", ms(quantile(took, .5)), "ms", 0)
	b.report.figure("look", what+", CPU", ms((after-before)/time.Duration(b.requests)), "ms", 0)
	return nil
}

// ownCPU is what this process has used.
func ownCPU() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("ask for this process's CPU: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
