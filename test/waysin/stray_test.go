package waysin_test

import (
	"context"
	"encoding/json"
	"fmt"

	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
		if err := client.IgnoreNotFound(c.admin.Delete(ctx, m)); err != nil {
			return fmt.Errorf("delete Machine %s: %w", m.Name, err)
		}
		err := c.admin.Patch(ctx, m, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		if err := client.IgnoreNotFound(err); err != nil {
			return fmt.Errorf("take the finalizers off Machine %s: %w", m.Name, err)
		}
		return nil
	}, nil
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
		if err := r.admin.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
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

// planted has the sender write evidence on a stray worker, where nobody guards it, and then make that a
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
	if undone := r.admin.Delete(ctx, m); undone != nil {
		return nil, fmt.Errorf("delete Machine %s: %w", m.Name, undone)
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
