package custodian

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"

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

// add adds one member as a learner: that of a ready Node whose Machine may have one. It adds nobody
// while a voter is ill or another learner waits.
func (o *Operator) add(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(members, (*etcdserverpb.Member).GetIsLearner) || len(members) == 0 {
		return nil
	}
	if ill := o.unhealthy(ctx, members); len(ill) > 0 {
		return fmt.Errorf("nobody is added while members do not answer: %v", ill)
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

// removeLearners removes the learner of every deleting Machine.
func (o *Operator) removeLearners(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range machines {
		if member := memberOf(m, members); deleting(m) && hooked(m) && member != nil && member.GetIsLearner() {
			errs = append(errs, o.remove(ctx, m, member))
		}
	}
	return errors.Join(errs...)
}

// removeVoter removes the voter of one deleting Machine, once there are more voters than desired; a
// voter that does not answer goes before that.
func (o *Operator) removeVoter(ctx context.Context) error {
	machines, members, err := o.look(ctx)
	if err != nil {
		return err
	}
	voters := slices.DeleteFunc(members, (*etcdserverpb.Member).GetIsLearner)
	machines = slices.DeleteFunc(machines, func(m *machinev1beta1.Machine) bool {
		return !deleting(m) || !hooked(m) || memberOf(m, voters) == nil
	})
	if len(machines) == 0 || len(voters) < o.options.Desired {
		return nil
	}
	switch ill := o.unhealthy(ctx, voters); {
	case len(voters)-len(ill) < o.options.Desired/2+1:
		return nil
	case len(ill) == 0 && len(voters) <= o.options.Desired:
		return nil
	case len(ill) > 0:
		machines = slices.DeleteFunc(machines, func(m *machinev1beta1.Machine) bool {
			return !slices.Contains(ill, memberOf(m, voters).GetName())
		})
		if len(machines) == 0 {
			return fmt.Errorf("no voter is removed while others do not answer: %v", ill)
		}
	}
	var errs []error
	for _, m := range machines {
		err := o.remove(ctx, m, memberOf(m, voters))
		if err == nil {
			return errors.Join(errs...) // one at a time
		}
		errs = append(errs, err)
		if !lost(err) || !o.options.NextAfterLost {
			break
		}
	}
	return errors.Join(errs...)
}

// lost says whether a request may have been applied, and its answer did not come.
func lost(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rpctypes.ErrTimeout)
}

func (o *Operator) remove(ctx context.Context, m *machinev1beta1.Machine, member *etcdserverpb.Member) error {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := o.etcd.MemberRemove(call, member.GetID())
	if err == nil {
		return nil
	}
	if lost(err) && o.options.DoneIfLost {
		o.gone[member.GetID()] = true
	}
	return fmt.Errorf("removing the member of Machine %s: %w", m.Name, err)
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

// unhealthy are the names of the voters that do not answer.
func (o *Operator) unhealthy(ctx context.Context, members []*etcdserverpb.Member) []string {
	var ill []string
	for _, m := range members {
		if m.GetIsLearner() {
			continue
		}
		if err := o.answers(ctx, m); err != nil {
			ill = append(ill, m.GetName())
		}
	}
	return ill
}

func (o *Operator) answers(ctx context.Context, m *etcdserverpb.Member) error {
	if len(m.GetClientURLs()) == 0 {
		return fmt.Errorf("member %x has not started", m.GetID())
	}
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	_, err := o.etcd.Status(ctx, m.GetClientURLs()[0])
	return err
}
