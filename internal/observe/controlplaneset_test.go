package observe

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	configv1 "github.com/openshift/api/config/v1"
	machinev1 "github.com/openshift/api/machine/v1"
	machinev1beta1 "github.com/openshift/api/machine/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
