package plugin

import (
	"context"
	"fmt"
	"strings"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/machineapi"
	"github.com/holdfast-dev/holdfast/internal/observe"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// excludeDraining has the machine controller skip the drain, and the preDrain hooks with it.
const excludeDraining = "machine.openshift.io/exclude-node-draining"

// ownsHook reports whether etcd's hook is Holdfast's, and goes with it. Beside cluster-etcd-operator it never is,
// whatever Holdfast's mode was.
func (c *cluster) ownsHook(ctx context.Context) (bool, error) {
	mode, err := c.modeOf(ctx, c.readRingReport(ctx))
	if err != nil || mode != quorum.ModeFull {
		return false, err
	}
	sign, err := observe.EtcdOperator(ctx, c)
	return sign == "", err
}

// alone refuses where pods of somebody else's are in Holdfast's namespace, and would go with it.
func (u *uninstalling) alone(ctx context.Context) error {
	var pods corev1.PodList
	if err := u.List(ctx, &pods, client.InNamespace(u.holdfast)); err != nil {
		return fmt.Errorf("list the pods in namespace %s: %w", u.holdfast, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Labels["app.kubernetes.io/name"] != "holdfast" {
			return fmt.Errorf("pod %s in namespace %s is not Holdfast's, and the namespace goes with all in it: see whose it is (kubectl -n %s describe pod %s), and move it away first", p.Name, u.holdfast, u.holdfast, p.Name)
		}
	}
	return nil
}

// mayGo refuses where uninstall would take off what holds a voter's Machine that is being deleted.
func (u *uninstalling) mayGo(ctx context.Context) error { return u.eachMachine(ctx, u.mayStrip) }

// mayStrip is mayGo for one Machine.
func (u *uninstalling) mayStrip(m *machinev1beta1.Machine) error {
	seen := machineapi.Machine(m)
	if !seen.Deleting() || seen.Latch != quorum.EntryOurs && (!u.full || seen.Hook != quorum.EntryOurs) {
		return nil
	}
	how, first := "held until a replacement votes", fmt.Sprintf("release the Machine first (kubectl holdfast release %s --reason ...)", m.Name)
	if seen.Hook != quorum.EntryOurs {
		first = "take the latch off by hand, once etcdctl member list shows no member on it (kubectl holdfast off --policies says how)"
	}
	if !u.full {
		loose := unhooked(m)
		if loose == "" {
			return nil // etcd's hook stays, and holds it
		}
		how = "held by its latch alone, since " + loose
	}
	return fmt.Errorf("Machine %s is being deleted and %s; without Holdfast it would be terminated at once, and a member on it with it. Let that replacement finish (kubectl holdfast explain %s), for which Holdfast has to run (if it is stopped: kubectl -n %s scale deployment holdfast --replicas 2), or %s", m.Name, how, m.Name, u.holdfast, first)
}

// unhooked says why the machine controller goes past etcd's hook on a Machine, "" if it does not.
func unhooked(m *machinev1beta1.Machine) string {
	_, excluded := m.Annotations[excludeDraining]
	switch seen := machineapi.Machine(m); {
	case seen.Hook != quorum.EntryOurs:
		return "etcd's hook is not on it"
	case m.Status.NodeRef == nil:
		return "it has no Node, and preDrain hooks are skipped then"
	case excluded:
		return "annotation " + excludeDraining + " has preDrain hooks skipped"
	case seen.Drained:
		return "it is drained already, which is all that preDrain hooks hold up"
	}
	return ""
}

// nobodysHooks refuses to leave etcd's hook where nothing takes it off any more. A mode by flag is believed.
func (u *uninstalling) nobodysHooks(ctx context.Context) error {
	if u.full || u.mode != 0 {
		return nil
	}
	if sign, err := observe.EtcdOperator(ctx, u); err != nil || sign != "" {
		return err
	}
	var hooked []string
	if err := u.eachMachine(ctx, func(m *machinev1beta1.Machine) error {
		if machineapi.Machine(m).Hook == quorum.EntryOurs {
			hooked = append(hooked, m.Name)
		}
		return nil
	}); err != nil || len(hooked) == 0 {
		return err
	}
	return fmt.Errorf("etcd's hook is on Machines %s, and cluster-etcd-operator, whose it is in guard mode, is not here (there is no Deployment openshift-etcd-operator/etcd-operator). If it comes back, or runs under another name: --mode guard leaves it the hook. If it does not, the hook would hold every later deletion for ever: --mode full takes it off as well", strings.Join(hooked, ", "))
}

// lingering says which pods are still there, and what to do about one whose kubelet does not answer.
func lingering(pods []corev1.Pod) string {
	var out []string
	for i := range pods {
		p := &pods[i]
		said := fmt.Sprintf("pod %s on Node %s is still there", p.Name, p.Spec.NodeName)
		if p.DeletionTimestamp != nil {
			said = fmt.Sprintf("pod %s on Node %s is still Terminating: if that host is down, and only once it surely is off, kubectl -n %s delete pod %s --force --grace-period=0", p.Name, p.Spec.NodeName, p.Namespace, p.Name)
		}
		out = append(out, said)
	}
	return strings.Join(out, "; ")
}
