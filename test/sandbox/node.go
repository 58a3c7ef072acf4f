package sandbox

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/hostenv"
)

const (
	// heartbeat is how often a kubelet writes the status of a Node. Kubelets look at it as often, and write one that has not changed every 5
	// minutes; with that the long tests pass, too, and take a quarter longer.
	heartbeat = 10 * time.Second
	// nodeCheck is how soon a Node that somebody deleted is registered again.
	nodeCheck = 2 * time.Second
)

// runKubelet plays the kubelet, which registers the Node and renews its Ready
// condition, and the node lifecycle controller, which marks the Node of a host
// without power, or without a network.
func (h *host) runKubelet(ctx context.Context) {
	said := ""
	for {
		on, _, changed := h.state()
		wait := nodeCheck
		if err := h.syncNode(ctx, on && h.connected()); err != nil && ctx.Err() == nil {
			// At first the API server is not there; say what is wrong once.
			if text := err.Error(); text != said {
				said = text
				h.log.Warn("kubelet", "error", err)
			}
			wait = 200 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(wait):
		}
	}
}

// connected reports whether the host has its address: a test takes that away to cut it off.
func (h *host) connected() bool {
	socket, err := net.ListenPacket("udp", net.JoinHostPort(h.at(), "0"))
	return err == nil && socket.Close() == nil
}

// followEnvironments keeps up with the ConfigMap that Holdfast renders, as a kubelet does with what its
// pods mount. While the API server is away, what was read last stays.
func (c *cloud) followEnvironments(ctx context.Context, configMaps corev1client.ConfigMapInterface) {
	for ctx.Err() == nil {
		watch, err := configMaps.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + hostenv.Name})
		if err == nil {
			for event := range watch.ResultChan() {
				if cm, ok := event.Object.(*corev1.ConfigMap); ok {
					c.relieved.Store(true) // whoever writes it drives the membership
					c.environments.set(cm.Data)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (h *host) syncNode(ctx context.Context, on bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	node, err := h.cloud.nodes.Get(ctx, h.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if !on {
			return nil
		}
		node, err = h.cloud.nodes.Create(ctx, h.node(), metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", h.name, err)
	}
	if node, err = h.syncStatus(ctx, node, on); err == nil {
		err = h.syncTaints(ctx, node, on)
	}
	if err != nil {
		return fmt.Errorf("node %s: %w", h.name, err)
	}
	return nil
}

// syncStatus writes a Node's status if the host has come or gone, or if it is time to.
func (h *host) syncStatus(ctx context.Context, node *corev1.Node, on bool) (*corev1.Node, error) {
	ready := readyCondition(on)
	if current := nodeReady(node); current != nil && current.Status == ready.Status {
		if !on || time.Since(current.LastHeartbeatTime.Time) < heartbeat {
			return node, nil
		}
		ready.LastTransitionTime = current.LastTransitionTime
	}
	node.Status.Conditions = []corev1.NodeCondition{ready}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: h.at()},
		{Type: corev1.NodeHostName, Address: h.name},
	}
	if h.cloud.runPods {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: h.external()})
	}
	node.Status.NodeInfo.KubeletVersion = "v1.36.3"
	node.Status.Capacity, node.Status.Allocatable = capacity(), capacity()
	return h.cloud.nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
}

// syncTaints does for the Node what the node lifecycle controller does: the API
// server taints each new Node, and a Node that is not ready keeps new pods away. Its NoExecute taints are left to the real one.
func (h *host) syncTaints(ctx context.Context, node *corev1.Node, on bool) error {
	var taints []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectNoSchedule || taint.Key != corev1.TaintNodeNotReady && taint.Key != corev1.TaintNodeUnreachable {
			taints = append(taints, taint)
		}
	}
	if !on {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule})
	}
	if equality.Semantic.DeepEqual(taints, node.Spec.Taints) {
		return nil
	}
	node.Spec.Taints = taints
	_, err := h.cloud.nodes.Update(ctx, node, metav1.UpdateOptions{})
	return err
}

func (h *host) node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: h.name,
			Labels: map[string]string{
				corev1.LabelHostname:                    h.name,
				corev1.LabelInstanceTypeStable:          h.kind,
				corev1.LabelTopologyZone:                h.zone,
				corev1.LabelOSStable:                    "linux",
				"node-role.kubernetes.io/master":        "",
				"node-role.kubernetes.io/control-plane": "",
			},
		},
		Spec: corev1.NodeSpec{ProviderID: providerID(h.id)},
	}
}

func readyCondition(on bool) corev1.NodeCondition {
	now := metav1.Now()
	condition := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		Reason: "KubeletReady", Message: "the host has power and a network",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if !on {
		condition.Status = corev1.ConditionUnknown
		condition.Reason, condition.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
	}
	return condition
}

func nodeReady(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}
