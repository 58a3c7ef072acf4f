package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/test/sandbox"
)

const scaleWithin = 6 * time.Minute

// learners scales from three voters to five, in turns with one learner at a time and with two, each with the largest amount of -data
// in etcd. Each has a control plane of its own: whether etcd takes two learners is a flag of its members.
func (b *bench) learners(ctx context.Context) (err error) {
	var data volume
	for _, v := range b.volumes {
		data = max(data, v)
	}
	section := "learners, " + data.String()
	planes := map[int]*cluster{}
	for _, n := range [...]int{1, 2} {
		limit := fmt.Sprintf("--max-learners=%d", n)
		c, err := b.startWith(ctx, fmt.Sprintf("learners-%d", n), sandbox.Options{Mode: "full", HoldfastArgs: []string{limit}, EtcdArgs: []string{limit}})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Stop()) }()
		if err := c.fill(ctx, data); err != nil {
			return err
		}
		planes[n] = c
	}
	took := map[int][]float64{}
	for i := range b.scales {
		for _, n := range [...]int{1, 2} {
			up, err := planes[n].scaleUp(ctx, i)
			if err != nil {
				return fmt.Errorf("scaling %d with %d at a time: %w", i+1, n, err)
			}
			progress("%s: %d of %d with %d at a time: five voters after %.1f s", section, i+1, b.scales, n, up.Seconds())
			took[n] = append(took[n], up.Seconds())
		}
	}
	one, two := quantile(took[1], .5), quantile(took[2], .5)
	b.report.figure(section, "from three voters to five, one learner at a time, median", one, "s", 0)
	b.report.figure(section, "the same, two learners at a time, median", two, "s", 0)
	b.report.figure(section, "two at a time by one at a time", two/one, "x", 0)
	return nil
}

// scaleUp is how long it takes from two more Machines to five healthy voters. It scales down again.
func (c *cluster) scaleUp(ctx context.Context, round int) (took time.Duration, err error) {
	var old machinev1beta1.Machine
	if err := c.admin.Get(ctx, client.ObjectKey{Namespace: sandbox.MachineNamespace, Name: "master-0"}, &old); err != nil {
		return 0, err
	}
	if err := c.want(ctx, 5); err != nil {
		return 0, err
	}
	var more []*machinev1beta1.Machine
	for _, name := range [...]string{"fourth", "fifth"} {
		m, err := sandbox.Replacement(&old, fmt.Sprintf("%s-%d", name, round), "m5.2xlarge")
		if err != nil {
			return 0, err
		}
		more = append(more, m)
	}
	began := time.Now()
	for _, m := range more {
		if err := c.admin.Create(ctx, m); err != nil {
			return 0, err
		}
	}
	if err := c.votersAre(ctx, 5); err != nil {
		return 0, err
	}
	took = time.Since(began)
	if err := c.want(ctx, 3); err != nil {
		return 0, err
	}
	for _, m := range more { // etcd may tolerate the second only once the first is gone
		if err := within(ctx, scaleWithin, "the deletion of Machine "+m.Name, func(ctx context.Context) error { return c.admin.Delete(ctx, m) }); err != nil {
			return 0, err
		}
	}
	return took, c.votersAre(ctx, 3)
}

// want writes a number of voters into the install-config.
func (c *cluster) want(ctx context.Context, voters int) error {
	var config corev1.ConfigMap
	if err := c.admin.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "cluster-config-v1"}, &config); err != nil {
		return err
	}
	config.Data = map[string]string{"install-config": fmt.Sprintf("controlPlane:\n  name: master\n  replicas: %d\n", voters)}
	return c.admin.Update(ctx, &config)
}

// votersAre waits for so many healthy voters, no learner, and no other Machine.
func (c *cluster) votersAre(ctx context.Context, want int) error {
	return within(ctx, scaleWithin, fmt.Sprintf("%d healthy voters", want), func(ctx context.Context) error {
		m, err := scrape(ctx, c.plain, c.MetricsURL())
		if err != nil {
			return err
		}
		if voters, others := m.sum("holdfast_etcd_members", `role="voter"`, `health="healthy"`), m.sum("holdfast_etcd_members"); voters != float64(want) || others != voters {
			return fmt.Errorf("etcd has %.0f healthy voters, and %.0f members", voters, others)
		}
		var list machinev1beta1.MachineList
		if err := c.admin.List(ctx, &list, client.InNamespace(sandbox.MachineNamespace)); err != nil || len(list.Items) != want {
			return errors.Join(err, fmt.Errorf("there are %d Machines", len(list.Items)))
		}
		return nil
	})
}
