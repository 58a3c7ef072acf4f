package custodian

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// internalIPs are those in the Machine's status.
func internalIPs(m *machinev1beta1.Machine) []string { return addresses(m.Status.Addresses) }

func addresses(all []corev1.NodeAddress) []string {
	var ips []string
	for _, a := range all {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// peer is the host of a member's first peer URL, and its port; empty if there is none.
func peer(m *etcdserverpb.Member) (ip, port string) {
	if len(m.GetPeerURLs()) == 0 {
		return "", ""
	}
	at, err := url.Parse(m.GetPeerURLs()[0])
	if err != nil {
		return "", ""
	}
	return at.Hostname(), at.Port()
}

// memberOf is the member at one of the Machine's addresses, nil if there is none.
func memberOf(m *machinev1beta1.Machine, members []*etcdserverpb.Member) *etcdserverpb.Member {
	i := slices.IndexFunc(members, func(member *etcdserverpb.Member) bool {
		ip, _ := peer(member)
		return slices.Contains(internalIPs(m), ip)
	})
	if i < 0 {
		return nil
	}
	return members[i]
}

// ready says whether a Machine may have a member: it is live and hooked.
func ready(m *machinev1beta1.Machine) bool { return !deleting(m) && hooked(m) }

// publish publishes the addresses of the voters, which begins a revision.
func (o *Operator) publish(ctx context.Context) error {
	members, err := o.members(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := voterIPs(members); !slices.Equal(now, o.endpoints) {
		o.endpoints, o.stableAt = now, time.Now().Add(o.options.Revision)
	}
	return nil
}

// stable says whether no revision is under way.
func (o *Operator) stable() bool { return !time.Now().Before(o.stableAt) }

func voterIPs(members []*etcdserverpb.Member) []string {
	var ips []string
	for _, m := range members {
		if ip, _ := peer(m); !m.GetIsLearner() {
			ips = append(ips, ip)
		}
	}
	slices.Sort(ips)
	return ips
}

// grow adds a learner and promotes those that are ready, while every member answers.
func (o *Operator) grow(ctx context.Context) error {
	members, err := o.members(ctx)
	if err != nil {
		return err
	}
	if len(o.unhealthy(ctx, members)) > 0 {
		return nil
	}
	return errors.Join(o.add(ctx), o.promote(ctx))
}

// add adds one member as a learner: that of a ready Node whose Machine may have one. While another learner waits, etcd refuses that.
func (o *Operator) add(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil || len(members) == 0 {
		return err
	}
	var nodes corev1.NodeList
	if err := o.client.List(ctx, &nodes, client.HasLabels{nodeLabel}); err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	_, port := peer(members[0])
	for i := range nodes.Items {
		ips := addresses(nodes.Items[i].Status.Addresses)
		if !nodeReady(&nodes.Items[i]) || len(ips) == 0 {
			continue
		}
		k := slices.IndexFunc(machines, func(m *machinev1beta1.Machine) bool { return slices.Contains(internalIPs(m), ips[0]) })
		if k < 0 || !ready(machines[k]) || memberOf(machines[k], members) != nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		if _, err := o.etcd.MemberAddAsLearner(call, []string{"https://" + net.JoinHostPort(ips[0], port)}); err != nil {
			return fmt.Errorf("adding a learner for Node %s: %w", nodes.Items[i].Name, err)
		}
		return nil
	}
	return nil
}

func nodeReady(n *corev1.Node) bool {
	return n.DeletionTimestamp == nil && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// promote promotes every learner whose Machine may have a member and that etcd finds ready.
func (o *Operator) promote(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range machines {
		member := memberOf(m, members)
		if !ready(m) || member == nil || !member.GetIsLearner() {
			continue
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		_, err := o.etcd.MemberPromote(call, member.GetID())
		cancel()
		if err != nil && !errors.Is(err, rpctypes.ErrMemberLearnerNotReady) {
			errs = append(errs, fmt.Errorf("promoting the member of Machine %s: %w", m.Name, err))
		}
	}
	return errors.Join(errs...)
}

// shrink removes members, while no revision is under way and the endpoints are published as the voters are.
func (o *Operator) shrink(ctx context.Context) error {
	members, err := o.members(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	may := o.stable() && slices.Equal(voterIPs(members), o.endpoints)
	o.mu.Unlock()
	if !may {
		return nil
	}
	return errors.Join(o.removeOrphans(ctx), o.removeLearners(ctx), o.removeVoter(ctx))
}

// removeOrphans removes the voters that have neither a Machine nor a Node, and do not answer.
func (o *Operator) removeOrphans(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := o.client.List(ctx, &nodes, client.HasLabels{nodeLabel}); err != nil {
		return fmt.Errorf("listing Nodes: %w", err)
	}
	for _, member := range members {
		ip, _ := peer(member)
		if member.GetIsLearner() ||
			slices.ContainsFunc(machines, func(m *machinev1beta1.Machine) bool { return slices.Contains(internalIPs(m), ip) }) ||
			slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return slices.Contains(addresses(n.Status.Addresses), ip) }) {
			continue
		}
		if err := o.answers(ctx, member); err == nil {
			return fmt.Errorf("member %s answers, and has neither a Machine nor a Node", member.GetName())
		}
		if err := o.remove(ctx, member); err != nil {
			return err
		}
	}
	return nil
}

// removeLearners removes the learner of every deleting Machine.
func (o *Operator) removeLearners(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range machines {
		if member := memberOf(m, members); deleting(m) && hooked(m) && member != nil && member.GetIsLearner() {
			errs = append(errs, o.remove(ctx, member))
		}
	}
	return errors.Join(errs...)
}

// removeVoter removes the voter of one deleting Machine, once there are more voters than desired, or one is ill. Those that are ill are
// tried first, then those of the failure domains that have most voters. One whose removal fails, by the answer at least, is
// followed by the next, by the list from before. The voters are asked how they are, and then all members are: the list is as old as
// both take.
func (o *Operator) removeVoter(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil {
		return err
	}
	voters := slices.DeleteFunc(slices.Clone(members), (*etcdserverpb.Member).GetIsLearner)
	machines = slices.DeleteFunc(machines, func(m *machinev1beta1.Machine) bool { return !hooked(m) || memberOf(m, voters) == nil })
	inDomain := map[string]int{}
	for _, m := range machines {
		inDomain[domain(m)]++
	}
	machines = slices.DeleteFunc(machines, func(m *machinev1beta1.Machine) bool { return !deleting(m) })
	if len(machines) == 0 || len(voters) < o.options.Desired {
		return nil
	}
	slices.SortStableFunc(machines, func(a, b *machinev1beta1.Machine) int { return inDomain[domain(b)] - inDomain[domain(a)] })
	illVoters := len(o.unhealthy(ctx, voters))
	if len(voters)-illVoters < o.options.Desired/2+1 {
		return nil
	}
	if members, err = o.members(ctx); err != nil {
		return err
	}
	ill := o.unhealthy(ctx, members)
	isIll := func(m *machinev1beta1.Machine) bool { return memberOf(m, ill) != nil }
	switch {
	case len(ill) > 0 && !slices.ContainsFunc(machines, isIll):
		return fmt.Errorf("no voter is removed while others do not answer: %v", ill)
	case illVoters == 0 && len(voters) <= o.options.Desired:
		return nil
	}
	slices.SortStableFunc(machines, func(a, b *machinev1beta1.Machine) int { return rank(isIll(a)) - rank(isIll(b)) })
	var errs []error
	for _, m := range machines {
		err := o.remove(ctx, memberOf(m, voters))
		if err == nil {
			return errors.Join(errs...) // one at a time
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// domain is the last character of a Machine's name: the platform's sets number their failure domains like that.
func domain(m *machinev1beta1.Machine) string { return m.Name[len(m.Name)-1:] }

// lost says whether a request may have been applied, and its answer did not come.
func lost(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rpctypes.ErrTimeout)
}

func (o *Operator) remove(ctx context.Context, member *etcdserverpb.Member) error {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := o.etcd.MemberRemove(call, member.GetID())
	if err == nil {
		return nil
	}
	if lost(err) && o.options.DoneIfLost {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.gone[member.GetID()] = true
	}
	return fmt.Errorf("removing member %s (%x): %w", member.GetName(), member.GetID(), err)
}

// look reads Machines and members anew.
func (o *Operator) look(ctx context.Context) ([]*machinev1beta1.Machine, []*etcdserverpb.Member, error) {
	machines, err := o.machines(ctx)
	if err != nil {
		return nil, nil, err
	}
	members, err := o.members(ctx)
	return machines, members, err
}

// unhealthy are the members that do not answer, learners that have not started among them. They are asked side by side.
func (o *Operator) unhealthy(ctx context.Context, members []*etcdserverpb.Member) []*etcdserverpb.Member {
	errs := make([]error, len(members))
	var work sync.WaitGroup
	for i, m := range members {
		work.Go(func() { errs[i] = o.answers(ctx, m) })
	}
	work.Wait()
	var ill []*etcdserverpb.Member
	for i, m := range members {
		if errs[i] != nil {
			ill = append(ill, m)
		}
	}
	return ill
}

// answers asks a member again and again until it answers and knows a leader, or may be called ill.
func (o *Operator) answers(ctx context.Context, m *etcdserverpb.Member) error {
	if len(m.GetClientURLs()) == 0 {
		return fmt.Errorf("member %x has not started", m.GetID())
	}
	ctx, cancel := context.WithTimeout(ctx, o.options.Health)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := o.etcd.Status(ctx, m.GetClientURLs()[0])
		if err == nil && status.Leader != 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("member %s does not answer, or knows no leader", m.GetName()), err)
		case <-tick.C:
		}
	}
}
