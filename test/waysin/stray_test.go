package waysin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/quorum"
	"github.com/holdfast-dev/holdfast/test/sandbox"
)

// stray makes a Machine that never gets an instance, because its provider spec is none, and takes it
// away again when done is called.
func (c *cluster) stray(ctx context.Context, labels map[string]string, finalizers ...string) (m *machinev1beta1.Machine, done func() error, err error) {
	m = &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "stray-", Namespace: sandbox.MachineNamespace, Labels: labels, Finalizers: finalizers,
	}}
	m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{}`)}
	if err := c.admin.Create(ctx, m); err != nil {
		return nil, nil, fmt.Errorf("the stray Machine: %w", err)
	}
	return m, func() error {
		if err := c.delete(ctx, m); err != nil {
			return err
		}
		err := c.bare(ctx, m)
		if err == nil {
			err = client.IgnoreNotFound(c.admin.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
		}
		if err != nil {
			return fmt.Errorf("take hooks and finalizers off Machine %s: %w", m.Name, err)
		}
		return nil
	}, nil
}

// bare takes off what a deleting Machine that hosts nothing has of hooks. In guard mode cluster-etcd-operator may have put its own on it before.
func (c *cluster) bare(ctx context.Context, m *machinev1beta1.Machine) error {
	return client.IgnoreNotFound(c.operator.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"lifecycleHooks":null}}`))))
}

// delete deletes a Machine, if it is there. One that has come to be the control plane's is not deleted before the machine
// controller has seen it.
func (c *cluster) delete(ctx context.Context, m *machinev1beta1.Machine) error {
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, within, true, func(ctx context.Context) (bool, error) {
		err := client.IgnoreNotFound(c.admin.Delete(ctx, m))
		if outcomeOf(err, nil) == denied(quorum.RuleUnprotectedDelete) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return fmt.Errorf("delete Machine %s: %w", m.Name, err)
	}
	return nil
}

// onStray sends a request about a stray Machine, with the row's as the other one.
func onStray(labels map[string]string, send sender) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		m, done, err := r.stray(ctx, labels)
		if err != nil {
			return nil, err
		}
		about := *r
		about.on, about.other = m, r.on
		heard, err := send(ctx, &about)
		if undone := done(); undone != nil {
			return nil, undone
		}
		return heard, err
	}
}

// reaching sends a request about a stray worker that the Machine API has joined to the other Machine's Node.
func reaching(send sender) sender {
	return onStray(worker(), func(ctx context.Context, r *request) ([]string, error) {
		join := func(node *corev1.ObjectReference) error {
			body, err := json.Marshal(map[string]any{"status": map[string]any{"nodeRef": node}})
			if err != nil {
				return err
			}
			return r.machineAPI.Status().Patch(ctx, r.on.DeepCopy(), client.RawPatch(types.MergePatchType, body))
		}
		if err := join(r.other.Status.NodeRef); err != nil {
			return nil, fmt.Errorf("the Node itself: %w", err)
		}
		heard, err := send(ctx, r)
		if undone := join(nil); undone != nil {
			return nil, fmt.Errorf("take the Node away: %w", undone)
		}
		return heard, err
	})
}

// onLeaving sends a request about a stray control-plane Machine that is being deleted and has no hook,
// and looks whether it got one.
func onLeaving(send sender) sender {
	return func(ctx context.Context, r *request) (heard []string, err error) {
		m, done, err := r.stray(ctx, map[string]string{quorum.RoleLabel: "master"}, "example.com/stays")
		if err != nil {
			return nil, err
		}
		defer func() {
			if undone := done(); undone != nil {
				err = undone
			}
		}()
		if err := r.admin.Delete(ctx, m); err != nil {
			return nil, fmt.Errorf("delete Machine %s: %w", m.Name, err)
		}
		if err := r.bare(ctx, m); err != nil {
			return nil, fmt.Errorf("deleting Machine %s: %w", m.Name, err)
		}
		about := *r
		about.on, about.other = m, r.on
		if heard, err = send(ctx, &about); err != nil {
			return heard, err
		}
		if err := r.admin.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return heard, fmt.Errorf("deleting Machine %s: %w", m.Name, err)
		}
		if hooks := m.Spec.LifecycleHooks; len(hooks.PreDrain)+len(hooks.PreTerminate) > 0 {
			return heard, fmt.Errorf("Machine %s has hooks %v", m.Name, hooks)
		}
		return heard, nil
	}
}

// planted has the sender write evidence on a stray worker, and then make that a
// control-plane Machine. It looks whether the evidence is still there.
func planted(ctx context.Context, r *request) ([]string, error) {
	return onStray(map[string]string{quorum.RoleLabel: "worker"}, func(ctx context.Context, r *request) ([]string, error) {
		evidence, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{quorum.EvidenceAnnotation: r.other.Annotations[quorum.EvidenceAnnotation]}}})
		if err != nil {
			return nil, err
		}
		if err := r.client.Patch(ctx, r.on.DeepCopy(), client.RawPatch(types.MergePatchType, evidence)); err != nil {
			return nil, fmt.Errorf("the evidence itself: %w", err)
		}
		return promoted(ctx, r)
	})(ctx, r)
}

// promoted makes a Machine one of the control plane's, and looks whether it brought evidence along.
func promoted(ctx context.Context, r *request) ([]string, error) {
	m := r.on.DeepCopy()
	err := r.client.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+quorum.RoleLabel+`":"master"}}}`)), r.patchOptions()...)
	if err == nil && m.Annotations[quorum.EvidenceAnnotation] != "" {
		err = fmt.Errorf("Machine %s has evidence %s", m.Name, m.Annotations[quorum.EvidenceAnnotation])
	}
	return nil, err
}

// createdAndPromoted creates a Machine without role labels that carries evidence, and labels it after.
func createdAndPromoted(ctx context.Context, r *request) ([]string, error) {
	m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "stray-", Namespace: r.on.Namespace, Annotations: map[string]string{quorum.EvidenceAnnotation: r.on.Annotations[quorum.EvidenceAnnotation]},
	}}
	m.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{}`)}
	if r.dry {
		return nil, r.client.Create(ctx, m, client.DryRunAll)
	}
	if err := r.client.Create(ctx, m); err != nil {
		return nil, err
	}
	about := *r
	about.on = m
	heard, err := promoted(ctx, &about)
	if undone := r.delete(ctx, m); undone != nil {
		return nil, undone
	}
	return heard, err
}

// misdirected points a Machine's status at the other one's instance.
func misdirected(ctx context.Context, r *request) ([]string, error) {
	m := r.on.DeepCopy()
	m.Status.ProviderStatus = r.other.Status.ProviderStatus
	if r.dry {
		return nil, r.client.Status().Update(ctx, m, client.DryRunAll)
	}
	return nil, r.client.Status().Update(ctx, m)
}

// misdirectedByPatch does so with kubectl patch --subresource.
func misdirectedByPatch(ctx context.Context, r *request) ([]string, error) {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"providerStatus": r.other.Status.ProviderStatus}})
	if err != nil {
		return nil, err
	}
	return kubectl("patch", "machine", "MACHINE", "--subresource=status", "--type=merge", "-p", string(body))(ctx, r)
}

// nodeAddress gives the Machine's Node the address of the other one's.
func nodeAddress(ctx context.Context, r *request) ([]string, error) {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": r.other.Status.Addresses}})
	if err != nil {
		return nil, err
	}
	return kubectl("patch", "node", "MACHINE", "--subresource=status", "--type=merge", "-p", string(body))(ctx, r)
}

// installConfig changes words of the cluster's install-config.
func installConfig(from, to string) sender {
	return func(ctx context.Context, r *request) ([]string, error) {
		var cm corev1.ConfigMap
		if err := r.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "cluster-config-v1"}, &cm); err != nil {
			return nil, fmt.Errorf("the install-config: %w", err)
		}
		before := cm.Data["install-config"]
		cm.Data["install-config"] = strings.Replace(before, from, to, 1)
		if cm.Data["install-config"] == before {
			return nil, fmt.Errorf("the install-config has no %q: %s", from, before)
		}
		return nil, r.client.Update(ctx, &cm)
	}
}
