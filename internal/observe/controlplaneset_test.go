package observe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/cpms"
	"github.com/holdfast-dev/holdfast/internal/quorum"
)

// unknownRing is an etcd of which nothing is known.
type unknownRing struct{}

func (unknownRing) Read(context.Context) quorum.Ring { return quorum.Ring{Why: "none"} }

// replacing is an etcd of four voters, of which the first one's Machine is being deleted.
type replacing struct{}

func (replacing) Read(context.Context) quorum.Ring {
	r := quorum.Ring{Known: true}
	for i, name := range []string{"master-0", "master-1", "master-2", "master-3"} {
		r.Members = append(r.Members, quorum.Member{
			ID: quorum.MemberID(0xa0 + i), Name: name, Healthy: true,
			PeerURLs: []string{fmt.Sprintf("https://10.0.0.1%d:2380", i)}, ClientURLs: []string{fmt.Sprintf("https://10.0.0.1%d:2379", i)},
		})
	}
	return r
}

// TestWantedBySet: the set that Holdfast reconciles says how many voters are wanted, whether or not its Machines name it as their owner, and by
// that number the API servers are waited for.
func TestWantedBySet(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, machinev1.Install, machinev1beta1.Install} {
		must(t, add(scheme))
	}
	set := &machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: cpms.Name, Finalizers: []string{cpms.Finalizer}}}
	set.Spec.State, set.Spec.Replicas = machinev1.ControlPlaneMachineSetStateActive, ptr.To[int32](3)
	installed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: installConfig().Namespace, Name: installConfig().Name}, Data: map[string]string{"install-config": "controlPlane: {replicas: 5}"}}
	servers := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "operator.openshift.io/v1", "kind": "KubeAPIServer", "metadata": map[string]any{"name": "cluster"},
		"spec": map[string]any{"observedConfig": map[string]any{"apiServerArguments": map[string]any{"etcd-servers": []any{"https://10.0.0.10:2379"}}}},
	}}
	objects := []client.Object{set, installed, servers}
	for i := range 4 {
		m := &machinev1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprintf("master-%d", i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{quorum.RoleLabel: "master"}}}
		m.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.0.1%d", i)}}
		if i == 0 {
			m.DeletionTimestamp, m.Finalizers = ptr.To(metav1.Now()), []string{quorum.Finalizer}
		}
		objects = append(objects, m)
	}
	o := &Observer{API: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), Etcd: replacing{}, Namespace: "n", Mode: quorum.ModeFull, Clock: clock.RealClock{}}
	s, err := o.Snapshot(t.Context())
	must(t, err)
	if s.Desired != 3 || s.Replicas != 3 || s.DesiredWhy != "" {
		t.Errorf("%d voters are wanted, %d in the end: %q", s.Desired, s.Replicas, s.DesiredWhy)
	}
	if !strings.Contains(s.APIServersWait, "do not know master-1") {
		t.Errorf("the API servers: %q", s.APIServersWait)
	}

	// A set that cannot be read holds the membership as it is.
	o.API = interceptor.NewClient(o.API.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			if _, ok := into.(*machinev1.ControlPlaneMachineSet); ok {
				return errors.New("etcdserver: request timed out")
			}
			return c.Get(ctx, key, into, opts...)
		},
	})
	s, err = o.Snapshot(t.Context())
	must(t, err)
	if s.Desired != 0 || !strings.Contains(s.DesiredWhy, "read ControlPlaneMachineSet n/cluster: etcdserver: request timed out") {
		t.Errorf("%d voters are wanted: %q", s.Desired, s.DesiredWhy)
	}
}

// TestTrialHangs: a webhook that never answers the trial leaves everything else about the set known.
func TestTrialHangs(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, machinev1.Install, machinev1beta1.Install, configv1.Install} {
		must(t, add(scheme))
	}
	set := &machinev1.ControlPlaneMachineSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: cpms.Name}}
	set.Spec.State, set.Spec.Replicas = machinev1.ControlPlaneMachineSetStateActive, ptr.To[int32](3)
	labels := map[string]string{machinev1beta1.MachineClusterIDLabel: "c", quorum.RoleLabel: "master", quorum.TypeLabel: "master"}
	set.Spec.Selector.MatchLabels = labels
	set.Spec.Template.MachineType = machinev1.OpenShiftMachineV1Beta1MachineType
	template := &machinev1.OpenShiftMachineV1Beta1MachineTemplate{}
	template.ObjectMeta.Labels = labels
	template.Spec.ProviderSpec.Value = &runtime.RawExtension{Raw: []byte(`{"apiVersion":"example.com/v1","kind":"ProviderSpec"}`)}
	set.Spec.Template.OpenShiftMachineV1Beta1Machine = template
	operator := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "control-plane-machine-set-operator"}}
	api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(set, operator).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return c.Get(ctx, key, into, opts...)
		},
		Create: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ ...client.CreateOption) error {
			<-ctx.Done()
			return ctx.Err()
		},
	})
	synctest.Test(t, func(t *testing.T) {
		o := &Observer{API: api, Tries: api, Etcd: unknownRing{}, Namespace: "n", Clock: clock.RealClock{}}
		_, seen, err := o.SnapshotWithSet(t.Context())
		must(t, err)
		if seen.Facts.OtherOperator == "" || seen.Facts.OperatorWhy != "" {
			t.Errorf("the platform's operator: %q, why not known: %q", seen.Facts.OtherOperator, seen.Facts.OperatorWhy)
		}
		if !strings.Contains(seen.Trial.Why, context.DeadlineExceeded.Error()) {
			t.Errorf("the trial: %q", seen.Trial.Why)
		}
	})
}
